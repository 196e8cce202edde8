"""What a session tells its workers."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan
from testbed.runner.session import Session


@pytest.mark.parametrize(("num_usable", "num_threads"), [(1, 1), (4, 2), (1000, 500)])
def test_workers_share_the_cores_that_the_run_may_use(
    monkeypatch: pytest.MonkeyPatch, num_usable: int, num_threads: int
) -> None:
    """Not those that the machine has: below `taskset` threads would wait for each other."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: frozenset(range(num_usable)))
    nothing: Any = None
    state: Any = SimpleNamespace(run_id="r", scratch_directory=Path("/nowhere"))
    session = Session(
        plan=make_plan(validate({"name": "x", "workers": 2})),
        state=state,
        deployment=nothing,
        links=nothing,
        runtime=nothing,
        calibration=nothing,
    )
    assert session._configuration(0, 0.0).num_threads == num_threads
