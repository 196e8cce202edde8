"""A workload that does what a test asks of one of its workers: finish, raise, exit, hang, fall silent.

A worker's entry is `probe_workload:main`; importing this module adds the workload. Where somebody has to complain
first, each waits for the other: a machine that is busy lets one process go on long after the other.
"""

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from testbed.control import control_pb2 as messages
from testbed.control.worker import WorkerConfiguration, WorkerControl
from testbed.experiment.workloads.base import WORKLOADS, AgentWorkload
from testbed.worker import agent
from transports.errors import PeerLostError, PeerTimeoutError

COMPLAINTS = "PROBE_COMPLAINTS"
"""The variable that names the folder in which those who complain leave a file each, just before they do."""
SILENT = "silent"
"""The file there by which a test says that the coordinator has heard the last of the worker that hangs."""
GLOO_ERROR = """Got the following error when running the callback: RuntimeError: \
[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:37295.

At:
  somewhere(1): else
"""


@WORKLOADS.register
class Probe(AgentWorkload):
    entry: ClassVar[str] = "probe_workload:work"

    action: str = "finish"
    actor: int = 0
    """The rank that does it; the others wait in a barrier that never completes, or finish if it does."""

    def parameter_counts(self) -> list[int]:
        return [1]

    def num_iterations(self) -> int:
        return 2

    def phase_lengths(self) -> dict[str, int]:
        return {"measured": self.num_iterations()}


def work(probe: Probe, configuration: WorkerConfiguration, control: WorkerControl) -> None:
    control.barrier("ready")
    sys.stdout.write(f"rank {configuration.rank} works\n")
    for index in range(probe.num_iterations()):
        control.report(messages.Event(iteration=messages.Iteration(index=index, loss=0.5)))
    if configuration.rank == probe.actor:
        _act(probe, configuration, control)
    elif probe.action == "hang_and_be_missed":
        _until((_complaints() / SILENT).exists)
        time.sleep(1.1 * configuration.timeout_s)
        (_complaints() / str(configuration.rank)).touch()
        _until(lambda: len(list(_complaints().glob("[0-9]"))) == configuration.num_workers - 1)
        raise PeerTimeoutError(probe.actor, configuration.timeout_s, "all_reduce")
    elif probe.action == "be_missed_by_gloo":
        _note_complaint(configuration)
        raise RuntimeError(GLOO_ERROR)
    elif probe.action == "die_and_be_missed":
        _note_complaint(configuration)
        raise PeerLostError(probe.actor, "connection reset")
    control.barrier("end")


def _complaints() -> Path:
    return Path(os.environ[COMPLAINTS])


def _note_complaint(configuration: WorkerConfiguration) -> None:
    """Once it is awaited."""
    _until((_complaints() / "awaited").exists)
    (_complaints() / str(configuration.rank)).touch()


def _await_complaint() -> None:
    """Until the first is on its way."""
    (_complaints() / "awaited").touch()
    _until(lambda: len(list(_complaints().iterdir())) > 1)
    time.sleep(0.05)


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline_s, "nobody comes"
        time.sleep(0.005)


def _act(probe: Probe, configuration: WorkerConfiguration, control: WorkerControl) -> None:
    if probe.action == "raise":
        raise ValueError("the probe raises as configured")
    if probe.action == "lose_all":
        _lose_a_peer_in_a_callback()
    if probe.action == "be_missed_by_gloo":
        _await_complaint()
        raise ValueError("the probe raises as configured\nand to say a lot about it")
    if probe.action == "exit":
        sys.exit(7)
    if probe.action == "vanish":
        os._exit(0)
    if probe.action in {"die", "die_and_be_missed"}:
        if probe.action == "die_and_be_missed":
            _await_complaint()
        os.kill(os.getpid(), signal.SIGKILL)
    if probe.action in {"hang", "hang_and_be_missed"}:
        time.sleep(60)
    if probe.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if probe.action == "report":
        control.report(messages.Event(result=messages.Result(json='{"x": 1}')))
        control.report(messages.Event(finished=messages.Finished(parameters_sha256="abc")))


def _lose_a_peer_in_a_callback() -> None:
    """As a hook of DistributedDataParallel finds it: torch wraps the error in one of its own, of many lines."""
    from transports.execution.callbacks import CallbackThreads
    from transports.execution.communicator import Work
    from transports.torch_backend.works import Operation

    work = Work(CallbackThreads(2, "callback"))
    future = Operation([work], None).get_future()
    work.finish(PeerLostError(0, "connection reset"))
    future.then(lambda done: done.value()).wait()


def configurations(
    num_workers: int, run_id: str, *, timeout_s: float = 5.0, **probe: object
) -> list[WorkerConfiguration]:
    return [
        WorkerConfiguration(
            run_id=run_id,
            rank=rank,
            num_workers=num_workers,
            host=f"w{rank}",
            interface=f"w{rank}-eth0",
            address="127.0.0.1",
            seed=1,
            workload={"kind": "probe_workload", **probe},
            collective={"kind": "ring"},
            channel={"kind": "tcp"},
            compression={"kind": "none"},
            stack=None,
            dilation=1.0,
            timeout_s=timeout_s,
            store_path="/nowhere",
            num_threads=1,
        )
        for rank in range(num_workers)
    ]


def main(socket_path: str, rank: str) -> None:
    WORKLOADS.parse("probe_workload")  # imports, for which a worker that has registered would be silent
    agent.main(socket_path, rank)


if __name__ == "__main__":
    # Run by path, this module would be a second one: the workload must be of the module that the registry knows.
    probe_workload = importlib.import_module("probe_workload")
    probe_workload.main(*sys.argv[1:])
