"""The specs of the benchmarks can be planned, and what is missing of a run is said."""

from typing import Any

import pytest

from testbed.benchmarks import training
from testbed.benchmarks.training import BENCHMARKS
from testbed.errors import RunFailedError
from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan
from testbed.record.summary import Quantiles, Summary

ITERATION_S = {"none": 0.6, "layers": 0.4, "merged": 0.4, "time": 0.4, "priority": 0.36, "size": 0.5}


def summary(**values: Any) -> Summary:
    return Summary.model_construct(**{"exposed_communication_s": 0.26, "outcome": "valid", "reasons": [], **values})


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_run_is_one_that_can_be_planned_and_holds_its_target(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(spec: Any) -> Summary:
        experiment = validate(dict(spec))
        make_plan(experiment)
        slower = 4 if experiment.collective.kind == "parameter_server" else 1
        slower *= 2 if spec["link"].get("delay") and experiment.fusion.kind == "layers" else 1
        median = slower * ITERATION_S[experiment.fusion.kind]
        return summary(
            iteration_time_s=Quantiles(mean=median, median=median, p10=median, p90=median), compute_only_time_s=0.3
        )

    monkeypatch.setattr(training, "trained", planned)
    rows = list(BENCHMARKS[name]())
    assert rows
    assert all(row["holds"] in (True, None) for row in rows)


def test_a_run_without_iterations_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = summary(iteration_time_s=None, reasons=["nobody came"])
    monkeypatch.setattr(training, "run_experiment", lambda *_, **__: empty)
    with pytest.raises(RunFailedError, match="nobody came"):
        training.trained({"name": "x"})


@pytest.mark.parametrize("outcome", ["invalid", "unsupported"])
def test_nothing_is_held_to_a_run_whose_numbers_do_not_stand(outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = summary(
        iteration_time_s=Quantiles(mean=0.1, median=0.1, p10=0.1, p90=0.1),
        compute_only_time_s=0.05,
        outcome=outcome,
        reasons=["the cores decided", "a note"],
    )
    monkeypatch.setattr(training, "run_experiment", lambda *_, **__: run)
    with pytest.raises(RunFailedError, match=f"the run is {outcome}: the cores decided; a note"):
        training.trained({"name": "x"})


def test_a_row_says_which_of_its_runs_are_degraded_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(spec: Any) -> Summary:
        degraded = validate(dict(spec)).fusion.kind == "layers"
        return summary(
            iteration_time_s=Quantiles(mean=0.4, median=0.4, p10=0.4, p90=0.4),
            compute_only_time_s=0.3,
            **(
                {"outcome": "degraded", "reasons": ["threads waited", "a note"]}
                if degraded
                else {"reasons": ["a note"]}
            ),
        )

    monkeypatch.setattr(training, "trained", ran)
    (row,) = BENCHMARKS["merging"]()
    assert row["degraded"] == ["layers: threads waited"]
