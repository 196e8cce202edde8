"""Parameter servers on nodes of their own."""

import signal
from pathlib import Path

import pytest

from testbed.benchmarks.allreduce import allreduce_rows
from testbed.errors import RunFailedError
from testbed.experiment.experiment import validate
from testbed.hosts.base import Process
from testbed.machine.doctor import plan_here
from testbed.runner.coordinator import Listener
from testbed.runner.session import Session, session
from testbed.system.run_state import new_run_id
from testbed.worker.run_queue import run_queue_delays_s

pytestmark = pytest.mark.privileged


def test_several_groups_are_served_at_once_and_the_sums_are_right() -> None:
    stacks = ["parameter_server/tcp", "parameter_server:servers=2:pipelined=true/tcp"]
    rows = allreduce_rows(
        num_workers=2, link={"rate": "1gbit"}, sizes=["64KiB"], stacks=stacks, repeat=2, congestion="cubic"
    )
    assert {row["stack"] for row in rows} == set(stacks)


def test_a_server_that_is_killed_ends_the_run_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Process] = []
    start = Session._start_server

    def remember(bench: Session, name: str) -> Process:
        started.append(start(bench, name))
        return started[-1]

    class Kill(Listener):
        def on_barrier(self, name: str) -> None:
            assert all(run_queue_delays_s(bench.deployment.serving[f"ps{number}"]) for number in range(2))
            started[1].send_signal(signal.SIGKILL)

    monkeypatch.setattr(Session, "_start_server", remember)
    stack = "parameter_server:servers=2/tcp"
    workload = {"kind": "allreduce", "sizes": ["1MB"], "stacks": [stack], "repeat": 10_000}
    plan = plan_here(validate({"name": "x", "workers": 2, "workload": workload, "metrics": {"port": None}}))
    with (
        session(plan, run_id=new_run_id(), log_directory=tmp_path) as bench,
        pytest.raises(RunFailedError, match=r"parameter server ps1 has failed|rank 3 is lost"),
    ):
        bench.work(Kill(), timeout_s=60.0)
    assert all(process.wait(5.0) is not None for process in started)
