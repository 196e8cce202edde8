"""Virtual durations become those of the wall clock, in one place."""

from typing import Any

import pytest

from testbed.control.worker import WorkerConfiguration
from testbed.experiment.experiment import validate
from testbed.experiment.fusion.time import ByTime
from testbed.experiment.iterative import Iterative
from testbed.worker.wall_time import Durations, durations_of

PACE = {"forward": "40ms", "backward": "80ms", "update": "10ms"}


def durations(dilation: float, *, pace: object = PACE, fusion: object = "horovod_5ms") -> Durations:
    experiment = validate({"name": "x", "fusion": fusion, "workload": {"kind": "training", "pace": pace}})
    dump: dict[str, Any] = experiment.dump()
    configuration = WorkerConfiguration(
        run_id="test",
        rank=0,
        num_workers=2,
        host="w0",
        interface="lo",
        address="127.0.0.1",
        seed=1,
        workload=dump["workload"],
        collective=dump["collective"],
        channel=dump["channel"],
        compression=dump["compression"],
        stack=None,
        fusion=experiment.fusion,
        dilation=dilation,
        timeout_s=30.0,
        store_path="/nonexistent",
        num_threads=1,
    )
    assert isinstance(experiment.workload, Iterative)
    return durations_of(experiment.workload, configuration)


@pytest.mark.parametrize("dilation", [1.0, 46.0])
def test_everything_that_is_waited_for_is_waited_for_so_many_times_as_long(dilation: float) -> None:
    found = durations(dilation)
    assert found.schedule is not None
    assert found.schedule.compute_s == pytest.approx(dilation * 0.13)
    assert max(found.schedule.ready_s) == pytest.approx(dilation * 0.08)
    assert isinstance(found.fusion, ByTime)
    assert found.fusion.cycle_s == pytest.approx(dilation * 5e-3)
    assert found.timeout_s == pytest.approx(dilation * 30)


def test_computing_without_a_pace_has_no_schedule_and_other_fusions_no_cycle() -> None:
    found = durations(2.0, pace=None, fusion="layers")
    assert found.schedule is None
    assert found.fusion.kind == "layers"


def test_where_layers_are_stepped_in_the_forward_pass_the_step_lies_there() -> None:
    found = durations(1.0, fusion="priority")
    assert found.schedule is not None
    assert found.schedule.update_s == 0
    assert found.schedule.forward_s == pytest.approx(0.05)
