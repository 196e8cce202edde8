"""What a session tells its workers."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan
from testbed.runner.session import Session
from transports.native import REQUIRED_VARIABLE


def session_of_two() -> Session:
    nothing: Any = None
    state: Any = SimpleNamespace(run_id="r", scratch_directory=Path("/nowhere"))
    return Session(
        plan=make_plan(validate({"name": "x", "workers": 2})),
        state=state,
        deployment=nothing,
        links=nothing,
        runtime=nothing,
        calibration=nothing,
    )


@pytest.mark.parametrize(("num_usable", "num_threads"), [(1, 1), (4, 2), (1000, 500)])
def test_workers_share_the_cores_that_the_run_may_use(
    monkeypatch: pytest.MonkeyPatch, num_usable: int, num_threads: int
) -> None:
    """Not those that the machine has: below `taskset` threads would wait for each other."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: frozenset(range(num_usable)))
    assert session_of_two()._configuration(0, 0.0).num_threads == num_threads


def test_workers_do_nothing_in_python_that_others_do_in_c() -> None:
    """In a container of an image without the libraries, say."""
    session = session_of_two()
    assert session._environment(session._configuration(0, 0.0))[REQUIRED_VARIABLE] == "1"
