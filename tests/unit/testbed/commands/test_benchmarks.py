"""The help of each command names exactly the benchmarks that there are."""

import importlib
import json
import re
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from testbed.benchmarks.targets import NotMeasuredError, Row, target_row
from testbed.cli import app
from testbed.errors import CalibrationError, SpecError


@pytest.mark.parametrize("part", ["links", "transports", "training", "aggregation", "containers"])
def test_help_names_every_benchmark(part: str) -> None:
    shown = CliRunner().invoke(app, ["bench", part, "--help"], env={"COLUMNS": "80"}).stdout
    listed = re.search(r"--only <str>(.*?)--(json|runtime)", shown, re.DOTALL)
    assert listed is not None
    words = "".join(listed[1].split()).partition("these:")[2].rstrip(".")
    module = importlib.import_module(f"testbed.benchmarks.{part}")
    assert words.split(",") == list(module.benchmarks() if part == "links" else module.BENCHMARKS)


def test_what_was_measured_is_printed_though_a_later_benchmark_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> Iterator[Row]:
        yield target_row("measured", 1.0, 2.0, {})
        raise CalibrationError("links do not do what they say")

    monkeypatch.setattr("testbed.benchmarks.training.BENCHMARKS", {"overlap": failing, "merging": lambda: iter([])})
    monkeypatch.setattr("testbed.machine.doctor.require_root", lambda: None)
    done = CliRunner().invoke(app, ["bench", "training", "--json"])
    printed = json.loads(done.stdout)
    assert [row["what"] for row in printed["rows"]] == ["measured"]
    assert printed["failures"] == {"overlap": "links do not do what they say"}
    assert isinstance(done.exception, NotMeasuredError)
    assert done.exception.exit_code == CalibrationError.exit_code


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--link", "1gbit,,"], "--link 1gbit,,: write RATE"),
        (["--stack", "rign/tcp"], "rign"),
        (["--stack", "ring/memory"], "workload.stacks: 'ring/memory' joins ranks of one process"),
        (["--sizes", "3B"], "multiples of 4"),
    ],
)
def test_what_cannot_be_timed_is_refused_before_anything_is_made(options: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["bench", "allreduce", *options])
    assert isinstance(done.exception, SpecError)
    assert words in str(done.exception)


def test_a_choice_of_targets_does_not_go_with_a_link_of_ones_own() -> None:
    done = CliRunner().invoke(app, ["bench", "links", "--link", "1gbit", "--only", "rate"])
    assert isinstance(done.exception, SpecError)
    assert "--only rate: of the targets" in str(done.exception)
