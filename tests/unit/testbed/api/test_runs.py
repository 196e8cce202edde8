"""A record as an object: everything is there, and a number for conclusions only where it stands."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from testbed.api.runs import Run
from testbed.errors import InvalidResultError, SpecError
from testbed.record.frames import FRAMES

RECORD = Path("tests/records/version_3")
NUMBERS = (
    *("iteration_time_s", "compute_time_s", "exposed_communication_s", "samples_per_s", "scaling_factor"),
    *("network_efficiency", "allreduce_time_s", "command_time_s"),
)


@pytest.fixture
def judged(tmp_path: Path) -> Callable[..., Run]:
    """A run with that verdict."""

    def make(outcome: str, *reasons: str) -> Run:
        shutil.copytree(RECORD, tmp_path / "record", dirs_exist_ok=True)
        path = tmp_path / "record" / "summary.json"
        document: dict[str, Any] = {**json.loads(path.read_text()), "outcome": outcome, "reasons": reasons}
        path.write_text(json.dumps(document))
        return Run(path.parent)

    return make


def test_numbers_are_the_summarys() -> None:
    run = Run(RECORD)
    summary = run.summary
    assert run.stands
    assert run.iteration_time_s == summary.iteration_time_s.mean
    assert run.allreduce_time_s == summary.allreduce.time_s
    assert run.scaling_factor == summary.scaling_factor == pytest.approx(0.408, abs=0.001)
    assert run.command_time_s is None
    assert run.require_standing() is run
    assert summary.record == str(RECORD.absolute()) == str(run.path)


def test_tables_are_read_when_they_are_wanted(judged: Callable[..., Run]) -> None:
    run = judged("valid")
    (run.path / "links.parquet").write_text("no parquet")
    for name, schema in FRAMES.items():
        if name != "links":
            assert dict(getattr(run, name).schema) == dict(schema)
    assert run.iterations is run.iterations
    with pytest.raises(SpecError, match=r"links\.parquet cannot be read"):
        _ = run.links


def test_parts_of_an_iteration_add_up_to_what_the_summary_says() -> None:
    run = Run(RECORD)
    assert run.per_iteration.height == run.summary.num_iterations
    assert run.per_iteration["time_s"].mean() == pytest.approx(run.iteration_time_s)


def test_the_spec_and_the_other_documents_are_there() -> None:
    run = Run(RECORD)
    assert run.spec["link"]["rate"] == "100mbit"
    assert run.record.environment["num_cores"]
    assert run.report.name == "report.html"


@pytest.mark.parametrize("outcome", ["invalid", "failed", "unsupported"])
def test_numbers_that_do_not_stand_are_refused_with_the_reasons(judged: Callable[..., Run], outcome: str) -> None:
    run = judged(outcome, "the links were slower", "and late")
    for name in NUMBERS:
        with pytest.raises(InvalidResultError, match=f"is {outcome}.*the links were slower; and late") as refused:
            getattr(run, name)
        assert refused.value.exit_code == 4
    assert run.summary.iteration_time_s.mean > 0, "as it was measured"
    assert run.iterations.height > 0


def test_numbers_with_reservations_stand_and_say_so(judged: Callable[..., Run]) -> None:
    run = judged("degraded", "the machine was busy")
    assert run.stands
    assert run.iteration_time_s is not None
    assert "DEGRADED: the machine was busy" in repr(run)


def test_the_verdict_is_in_whatever_is_shown(judged: Callable[..., Run]) -> None:
    run = judged("invalid", "the links were slower")
    shown = run._repr_mimebundle_()
    for text in (repr(run), *shown.values(), *(each.svg() for each in run.figures.values())):
        assert "INVALID" in text
        assert "the links were slower" in text
    assert "Scaling factor" in shown["text/markdown"]
    assert set(run.figures) >= {"utilization", "breakdown", "timeline", "loss"}


def test_what_is_no_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such directory"):
        Run(tmp_path / "nowhere")
    with pytest.raises(SpecError, match="is not a record"):
        Run(tmp_path)


def test_a_frame_of_iterations_is_polars() -> None:
    slowest = Run(RECORD).iterations.filter(pl.col("phase") == "measured").group_by("rank").len()
    assert slowest.height == 4
