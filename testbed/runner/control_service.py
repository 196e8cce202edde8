"""The gRPC side of the control plane: it only queues what arrives, and answers when the coordinator calls.

Nothing here decides anything; testbed.runner.coordinator does, on one thread.
"""

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from testbed.control import control_pb2 as messages
from testbed.control.control_pb2_grpc import ControlServicer, add_ControlServicer_to_server

_MAX_SOCKET_PATH: Final = 107
"""sockaddr_un, see unix(7)."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A worker has registered."""

    rank: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """A worker waits in a barrier until `released` has a result (CLOCK_MONOTONIC) or is cancelled."""

    rank: int
    name: str
    released: Future[float]


Arrival = Registered | Arrived | messages.Event


class ControlService(ControlServicer):
    """Serves one run on a Unix socket. Everything that arrives is in `arrivals`, in each worker's order."""

    def __init__(self, socket_path: Path, configurations: Sequence[str]) -> None:
        """`configurations` are JSON, by rank."""
        assert len(str(socket_path)) <= _MAX_SOCKET_PATH, f"too long for a Unix socket: {socket_path}"
        self.arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._configurations = configurations
        self._num_events = [0] * len(configurations)
        """Queued, by rank; `_queued` guards it and tells of each."""
        self._queued = threading.Condition()
        self._stopping: Future[str] = Future()
        # Each worker holds a thread for Report, one for Watch and, in a barrier, a third.
        threads = ThreadPoolExecutor(3 * len(configurations) + 4, thread_name_prefix="control")
        self._server = grpc.server(threads, options=[("grpc.max_receive_message_length", -1)])
        add_ControlServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{socket_path}")
        self._server.start()
        socket_path.chmod(0o660)

    def stop(self, reason: str) -> None:
        """Tell every worker to stop, now and when it asks later, and cancel all barriers. Idempotent."""
        if not self._stopping.done():
            self._stopping.set_result(reason)

    def close(self) -> None:
        """End the service. Idempotent."""
        self.stop("the run is over")
        self._server.stop(grace=0.5).wait()

    def _check(self, rank: int, context: grpc.ServicerContext) -> None:
        if not 0 <= rank < len(self._configurations):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"there is no rank {rank} in this run")

    def Register(  # noqa: N802 - the name in control.proto
        self, request: messages.RegisterRequest, context: grpc.ServicerContext
    ) -> messages.RegisterReply:
        """Hand out the worker's configuration."""
        self._check(request.rank, context)
        self.arrivals.put(Registered(request.rank))
        return messages.RegisterReply(configuration_json=self._configurations[request.rank])

    def Barrier(  # noqa: N802
        self, request: messages.BarrierRequest, context: grpc.ServicerContext
    ) -> messages.BarrierReply:
        """Wait for the release. The worker's events come on another stream, and gRPC does not order the two."""
        self._check(request.rank, context)
        arrived = Arrived(request.rank, request.name, self._until_over(context))
        with self._queued:
            self._queued.wait_for(
                lambda: arrived.released.cancelled() or self._num_events[request.rank] >= request.num_events
            )
            self.arrivals.put(arrived)
        try:
            return messages.BarrierReply(released_s=arrived.released.result())
        except CancelledError:
            context.abort(grpc.StatusCode.CANCELLED, self._reason())

    def Report(  # noqa: N802
        self, request_iterator: Iterator[messages.Event], context: grpc.ServicerContext
    ) -> messages.ReportReply:
        """Queue the events of one worker."""
        # A worker that dies breaks its stream; its process' exit status says more than the stream's error.
        with contextlib.suppress(grpc.RpcError):
            for event in request_iterator:
                self._check(event.rank, context)
                with self._queued:
                    self.arrivals.put(event)
                    self._num_events[event.rank] += 1
                    self._queued.notify_all()
        return messages.ReportReply()

    def Watch(  # noqa: N802
        self, request: messages.WatchRequest, context: grpc.ServicerContext
    ) -> Iterator[messages.Command]:
        """Wait for the stop."""
        self._check(request.rank, context)
        with contextlib.suppress(CancelledError):
            self._until_over(context).result()
        if self._stopping.done():
            yield messages.Command(kind=messages.Command.STOP, reason=self._reason())

    def _reason(self) -> str:
        return self._stopping.result() if self._stopping.done() else "the worker went away"

    def _until_over(self, context: grpc.ServicerContext) -> Future[float]:
        """A future that is cancelled when the worker goes away or the run is stopped."""
        over: Future[float] = Future()

        def cancel() -> None:
            over.cancel()
            with self._queued:
                self._queued.notify_all()

        if not context.add_callback(cancel):
            cancel()
        self._stopping.add_done_callback(lambda _: cancel())
        return over
