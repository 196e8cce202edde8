"""The whole set of benchmarks: what is measured is kept, whatever fails beside it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from testbed.benchmarks import containers
from testbed.benchmarks.suite import every_part, run_all
from testbed.benchmarks.targets import Benchmarks, NotMeasuredError, Row, target_row
from testbed.errors import CalibrationError, SpecError


def _one() -> Iterator[Row]:
    yield target_row("something", 1.0, 2.0, {})


def _failing() -> Iterator[Row]:
    yield target_row("measured before", 1.0, None, {})
    raise CalibrationError("links do not do what they say")


def test_one_that_fails_stops_no_other_and_is_named_in_the_end(tmp_path: Path) -> None:
    parts: dict[str, Benchmarks] = {"first": {"bad": _failing, "good": _one}, "second": {"fine": _one}}
    output = tmp_path / "bench.json"
    with pytest.raises(NotMeasuredError, match="first, bad: not measured: links do not"):
        run_all(parts, output, Console(quiet=True))
    written = json.loads(output.read_text())
    assert [(row["part"], row["benchmark"], row["holds"]) for row in written["rows"]] == [
        ("first", "bad", None),
        ("first", "good", True),
        ("second", "fine", True),
    ]
    assert written["failures"] == {"first, bad": "links do not do what they say"}


def test_what_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="--output"):
        run_all({"first": {"bad": _failing}}, tmp_path / "none" / "bench.json", Console(quiet=True))


def test_the_set_has_every_part() -> None:
    image = [] if containers.missing() else ["containers"]
    assert list(every_part()) == [
        "links",
        "transports",
        "the aggregating switch",
        "training",
        "hosts",
        "around a run",
        *image,
    ]
