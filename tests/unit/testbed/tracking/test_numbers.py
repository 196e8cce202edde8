"""What a record says to trackers is what its summary says, and what does not stand is named so."""

import json
import shutil
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest

from testbed.record.reader import Record, load
from testbed.tracking.numbers import tracked

RECORD = Path("tests/records/version_3")


def judged(folder: Path, outcome: str, *reasons: str) -> Record:
    """A record with that verdict."""
    shutil.copytree(RECORD, folder / "record")
    path = folder / "record" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "outcome": outcome, "reasons": reasons}))
    return load(path.parent)


def test_numbers_of_iterations_are_those_of_the_summary() -> None:
    record = load(RECORD)
    run, summary = tracked(record), record.summary
    series = {name: [each.value for each in values] for name, values in run.series.items()}
    assert sum(series["iteration/time_s"]) / summary.num_iterations == pytest.approx(summary.iteration_time_s.mean)
    exposed = series["iteration/exposed_communication_s"]
    assert sum(exposed) / len(exposed) == pytest.approx(summary.exposed_communication_s)
    assert series["iteration/loss"][0] == pytest.approx(summary.loss.first)
    assert [each.step for each in run.series["iteration/loss"]] == list(range(summary.num_iterations))
    assert run.totals["run/scaling_factor"] == summary.scaling_factor
    assert run.stands


def test_utilization_of_iterations_is_that_of_the_whole_in_the_mean() -> None:
    record = load(RECORD)
    run = tracked(record)
    assert len(record.summary.links) == 8
    for link in record.summary.links:
        name = f"links/{link.from_}-{link.to}/utilization"
        values = [each.value for each in run.series[name]]
        assert len(values) == record.summary.num_iterations
        assert sum(values) / len(values) == pytest.approx(link.utilization_mean, rel=0.05)
        assert run.totals[f"run/{name}"] == link.utilization_mean


def test_times_are_those_of_the_calendar() -> None:
    record = load(RECORD)
    run = tracked(record)
    assert run.began_s == datetime.fromisoformat(record.summary.started_at).timestamp()
    at_s = [each.at_s for each in run.series["iteration/loss"]]
    assert at_s == sorted(at_s)
    assert run.began_s < at_s[0] < at_s[-1] <= run.ended_s < run.began_s + 600


def test_settings_and_the_verdict_are_there() -> None:
    run = tracked(load(RECORD))
    assert run.parameters["link.rate"] == "100mbit"
    assert run.parameters["workers"] == 4
    assert run.parameters["collective.kind"] == "ring"
    assert run.tags["testbed.outcome"] == "valid"
    assert run.tags["testbed.record"] == str(RECORD.absolute())


@pytest.mark.parametrize("outcome", ["invalid", "failed"])
def test_numbers_that_do_not_stand_are_named_so(tmp_path: Path, outcome: str) -> None:
    run = tracked(judged(tmp_path, outcome, "the links were slower", "and late"))
    assert not run.stands
    assert run.series
    assert all(name.startswith("invalid/") for name in (*run.series, *run.totals))
    assert run.tags["testbed.outcome"] == outcome
    assert run.tags["testbed.reasons"] == "the links were slower\nand late"


def test_numbers_with_reservations_keep_their_names(tmp_path: Path) -> None:
    run = tracked(judged(tmp_path, "degraded", "busy"))
    assert run.stands
    assert "run/scaling_factor" in run.totals


def test_a_run_that_ended_before_it_measured_anything_has_only_settings_and_a_verdict(tmp_path: Path) -> None:
    record = judged(tmp_path, "failed", "w1 died")
    for name in ("iterations", "links", "machine"):
        path = record.path / f"{name}.parquet"
        pl.read_parquet(path).clear().write_parquet(path)
    run = tracked(load(record.path))
    assert run.series == {}
    assert run.ended_s == run.began_s
    assert run.parameters


def test_a_loss_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    record = judged(tmp_path, "valid")
    path = record.path / "iterations.parquet"
    pl.read_parquet(path).with_columns(
        loss=pl.when(pl.col("index") == 2).then(float("nan")).otherwise(pl.col("loss"))
    ).write_parquet(path)
    steps = [each.step for each in tracked(load(record.path)).series["iteration/loss"]]
    assert 2 not in steps
    assert {0, 1, 3} <= set(steps)
