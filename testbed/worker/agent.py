"""The worker's side of the control plane: `main` is the entry that the fork server calls in each worker.

gRPC is imported here after the fork, never in the fork server; everything else this module needs may be
imported before the fork and is then shared by all workers.
"""

import importlib
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from switch_agg import clock
from testbed.control import control_pb2 as messages
from testbed.control.worker import WorkerConfiguration, WorkerControl
from testbed.experiment.workloads.base import WORKLOADS, AgentWorkload
from testbed.system.kernel import return_free_memory

if TYPE_CHECKING:
    from grpc import RpcError

Work = Callable[[AgentWorkload, WorkerConfiguration, WorkerControl], None]
_REGISTER_TIMEOUT_S: Final = 30.0
_DELIVERY_TIMEOUT_S: Final = 10.0


def main(socket_path: str, rank: str) -> None:
    """Register with the coordinator, do the workload's work, report how it ended.

    Whatever the work raises is reported with its traceback and raised again: the process ends with status 1.
    """
    control = AgentControl(socket_path, int(rank))
    try:
        configuration = control.configuration
        clock.dilate(configuration.dilation)  # channels and collectives run by that one, and so do their options
        workload = WORKLOADS.parse(configuration.workload)
        assert isinstance(workload, AgentWorkload), f"workload {workload.kind} has no work for an agent"
        work_of(workload)(workload, configuration, control)
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        control.report(messages.Event(failure=messages.Failure(error=text, traceback=traceback.format_exc())))
        control.close()
        raise
    control.close()


def work_of(workload: AgentWorkload) -> Work:
    """The function that the workload's `entry` names, imported."""
    module, _, function = workload.entry.partition(":")
    work: Work = getattr(importlib.import_module(module), function)
    return work


class AgentControl(WorkerControl):
    """Registered once made. Ends the process when the coordinator says stop or is lost."""

    def __init__(self, socket_path: str, rank: int) -> None:
        import grpc

        from testbed.control.control_pb2_grpc import ControlStub

        self._rank = rank
        self._rpc_error: type[RpcError] = grpc.RpcError
        self._concluded = False
        self._num_events = 0
        self._reporting = threading.Lock()  # who reads ahead reports on a thread of its own
        self._events: queue.SimpleQueue[messages.Event | None] = queue.SimpleQueue()
        unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        self._channel = grpc.insecure_channel(f"unix:{socket_path}", options=unlimited)
        self._stub = ControlStub(self._channel)
        reply = self._stub.Register(
            messages.RegisterRequest(rank=rank, pid=os.getpid()),
            timeout=_REGISTER_TIMEOUT_S,
            wait_for_ready=True,
        )
        self.configuration = WorkerConfiguration.model_validate_json(reply.configuration_json)
        self._report = self._stub.Report.future(self._queued())
        threading.Thread(target=self._watch, name="control watch", daemon=True).start()

    def barrier(self, name: str) -> None:
        """Return when every worker has come to the barrier of that name, and all events before it have arrived."""
        request = messages.BarrierRequest(rank=self._rank, name=name, num_events=self._num_events)
        try:
            self._stub.Barrier(request)
        except self._rpc_error as error:
            _leave(f"barrier {name} was cancelled: {_details(error)}")

    def report(self, event: object) -> None:
        """Queue one event (its rank is filled in); returns at once."""
        assert isinstance(event, messages.Event)
        event.rank = self._rank
        if event.HasField("finished"):
            event.finished.uss_bytes = uss_bytes()
        self._concluded = self._concluded or event.WhichOneof("kind") in {"finished", "failure"}
        with self._reporting:
            self._num_events += 1
            self._events.put(event)

    def close(self) -> None:
        """Say that the work is finished, unless its end has been said, and wait until all has arrived."""
        if not self._concluded:
            self.report(messages.Event(finished=messages.Finished()))
        self._events.put(None)
        try:
            self._report.result(timeout=_DELIVERY_TIMEOUT_S)
        except self._rpc_error as error:
            _leave(f"the coordinator is lost: {_details(error)}")

    def _queued(self) -> Iterator[messages.Event]:
        while (event := self._events.get()) is not None:
            yield event

    def _watch(self) -> None:
        try:
            for command in self._stub.Watch(messages.WatchRequest(rank=self._rank)):
                if command.kind == messages.Command.STOP:
                    _leave(f"stopped by the coordinator: {command.reason}")
        except self._rpc_error as error:
            _leave(f"the coordinator is lost: {_details(error)}")
        _leave("the coordinator has ended the control plane")


def _details(error: "RpcError") -> str:
    import grpc

    return (error.details() or "") if isinstance(error, grpc.Call) else str(error)


def _leave(reason: str) -> NoReturn:
    """End the process at once, whatever its other threads are doing."""
    sys.stderr.write(f"{reason}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def uss_bytes() -> int:
    """What this process holds and shares with no other: Private_* in /proc/self/smaps_rollup, see proc(5).

    Without malloc's reserve: between iterations it is as large as the last one's activations.
    """
    return_free_memory()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
