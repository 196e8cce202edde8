from typing import Any

import pytest

from testbed.experiment.experiment import validate
from testbed.plan.plan import Plan, make_plan
from testbed.runner.remaining import AROUND_RUN_S, expected_run_s, remaining_s
from testbed.theory.predict import RunPrediction, predict_run

REPLAY: dict[str, Any] = {"kind": "replay", "trace": "resnet50", "warmup": 2, "compute_only": 3, "iterations": 5}


def planned(**keys: Any) -> Plan:
    return make_plan(validate({"name": "t", "workers": 4, "link": {"rate": "10gbit"}, **keys}))


def test_a_run_takes_its_iterations_as_many_times_longer_as_time_runs_slower() -> None:
    plan = planned(workload=REPLAY, dilation=20)
    table, predicted = plan.experiment.workload.timed_layers(), RunPrediction(0.5, None, None, (), None)
    assert table is not None
    assert expected_run_s(plan, predicted) == pytest.approx(AROUND_RUN_S + 20 * (7 * 0.5 + 3 * table.compute_s))


def test_nobody_knows_how_long_real_computing_takes() -> None:
    plan = planned()
    predicted = predict_run(plan, None)
    assert predicted is not None
    assert expected_run_s(plan, predicted) is None
    assert expected_run_s(plan, None) is None


def test_what_is_left_goes_by_what_each_run_is_expected_to_take() -> None:
    expected_s = [10.0, 100.0, 40.0]
    assert remaining_s(expected_s, left=[0, 1, 2, 2], done=[], elapsed_s=0.0) == 190.0, "before any is done"
    assert remaining_s(expected_s, left=[1, 2], done=[0, 0], elapsed_s=30.0) == 210.0, "half as long again as expected"


def test_where_one_is_not_known_all_count_alike() -> None:
    expected_s = [10.0, None, 40.0]
    assert remaining_s(expected_s, left=[0, 1, 2], done=[], elapsed_s=0.0) is None
    assert remaining_s(expected_s, left=[1, 2], done=[0], elapsed_s=30.0) == 60.0
