"""Sweeps of the package: which there are, how long each is, and that a run which is not valid is seen."""

from typing import Any

import pytest

from testbed.benchmarks.sweeps import benchmarks, held_rows
from testbed.experiment.documents import read_document
from testbed.experiment.shipped import shipped_specs

QUESTIONS = {"link_speed", "compression", "transports", "workers", "loss", "topology", "straggler", "overlap"}


def test_every_sweep_of_the_package_is_one() -> None:
    assert set(benchmarks()) >= QUESTIONS
    assert "quickstart" not in benchmarks()


@pytest.mark.parametrize("name", list(benchmarks()))
def test_each_point_has_three_runs_of_fifteen_iterations(name: str) -> None:
    document = read_document(shipped_specs()[name])
    assert document["repeat"] >= 3
    if document["workload"]["kind"] != "command":
        assert document["workload"]["iterations"] >= 15


def point(*outcomes: str, requested: int = 3) -> dict[str, Any]:
    runs = [{"outcome": each, "reasons": [] if each == "valid" else [f"why {each}"]} for each in outcomes]
    return {"settings": {"workers": 2}, "num_requested": requested, "runs": runs}


@pytest.mark.parametrize(
    ("points", "share"),
    [
        ([point("valid", "valid", "valid")], 1.0),
        ([point("valid", "valid", "degraded"), point("valid", "valid", "valid")], 5 / 6),
        ([point("valid", "invalid", "valid", "valid")], 3 / 4),
        ([point("valid", "valid")], 2 / 3),
    ],
    ids=["all", "one degraded", "one repeated", "one missing"],
)
def test_every_run_counts_those_that_were_repeated_or_are_missing_too(points: list[Any], share: float) -> None:
    minutes, valid = held_rows("workers", points, 300.0)
    assert minutes["value"] == pytest.approx(5.0)
    assert minutes["holds"]
    assert valid["value"] == pytest.approx(share)
    assert valid["holds"] is (share == 1.0)
    assert len(valid["reasons"]) == sum(run["outcome"] != "valid" for each in points for run in each["runs"])


def test_more_than_ten_minutes_are_too_many() -> None:
    minutes, _ = held_rows("workers", [point("valid")], 601.0)
    assert not minutes["holds"]
