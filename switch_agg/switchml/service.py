"""Serves p4app-switchML's session service: what its clients call before they send anything (dpdk_backend.cc).

They broadcast a session's number from rank 0, which then opens it, meet at a barrier, join it from the others, and meet
again. Calls that wait are coroutines of one thread, so that any number may wait; they end with their client's
connection.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from ipaddress import IPv4Address
from typing import Any, Final, NoReturn, TypeVar

import grpc

from switch_agg.core import Address
from switch_agg.errors import JobError, SessionEndedError, UnsupportedError
from switch_agg.switchml import switchml_pb2 as pb
from switch_agg.switchml import switchml_pb2_grpc as rpc
from switch_agg.switchml.plane import SwitchMLDataPlane
from switch_agg.switchml.program import Membership
from switch_agg.switchml.synchronisation import Barrier, Broadcast
from switch_agg.switchml.wire import NUM_ELEMENTS

PORT: Final = 50099
"""The original's, and its clients' `controller_port`."""
MAX_CALLS: Final = 256
_GRACE_S: Final = 0.2
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # else a second server would share the port, and each get some of the calls
    ("grpc.max_receive_message_length", 1 << 16),
)

Reply = TypeVar("Reply")
Report = Callable[[str], None]


class Servicer(rpc.SessionServicer, rpc.SyncServicer):
    """Both services: a client has one channel for them."""

    def __init__(self, plane: SwitchMLDataPlane, mac: int, report: Report) -> None:
        """`mac` is where clients are to address their frames; `report` gets a line for each thing that happens."""
        self._plane = plane
        self._mac = mac
        self._report = report
        self.barrier = Barrier()
        self.broadcast = Broadcast()

    async def RdmaSession(  # noqa: N802
        self,
        request: pb.RdmaSessionRequest,  # noqa: ARG002
        context: Any,
    ) -> pb.RdmaSessionResponse:
        """See the .proto."""
        said = "backend rdma is not served here: say `backend = dpdk` in switchml.cfg"
        await self._abort(context, grpc.StatusCode.UNIMPLEMENTED, said)

    async def UdpSession(self, request: pb.UdpSessionRequest, context: Any) -> pb.UdpSessionResponse:  # noqa: N802
        """See the .proto."""
        try:
            member = _membership(request)
            self._plane.admit(member)
        except JobError as error:
            if request.session_id == self._plane.session:  # the others would wait for this one for ever
                self.barrier.send_away(f"session {request.session_id:#x} cannot begin: {error}")
            await self._abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        self._report(f"session {member.session:#x}: rank {member.rank} of {member.num_workers} is {member.host}")
        host = int(IPv4Address(self._plane.host))
        return pb.UdpSessionResponse(session_id=request.session_id, mac=self._mac, ipv4=host)

    async def Barrier(self, request: pb.BarrierRequest, context: Any) -> pb.BarrierResponse:  # noqa: N802
        """See the .proto."""
        await self._answered(context, self.barrier.wait(request.num_workers))
        return pb.BarrierResponse()

    async def Broadcast(self, request: pb.BroadcastRequest, context: Any) -> pb.BroadcastResponse:  # noqa: N802
        """See the .proto. The root's is where a session begins: whoever waits at a barrier by then is of the last."""
        value = await self._answered(
            context,
            self.broadcast.exchange(
                context.peer(),
                rank=request.rank,
                root=request.root,
                num_workers=request.num_workers,
                value=request.value,
            ),
        )
        if request.rank == request.root:
            self.barrier.send_away(f"rank {request.root} has begun another session; start this client again")
        return pb.BroadcastResponse(value=value)

    async def _answered(self, context: Any, answer: Awaitable[Reply]) -> Reply:
        """The answer, its errors as gRPC's: the client ends with their text, where the original's waits for ever."""
        try:
            return await answer
        except JobError as error:
            await self._abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except SessionEndedError as error:
            await self._abort(context, grpc.StatusCode.ABORTED, str(error))
        except asyncio.CancelledError:
            self.broadcast.forget(context.peer())
            self._report(f"{context.peer()} went away while it waited")
            raise

    async def _abort(self, context: Any, code: grpc.StatusCode, text: str) -> NoReturn:
        self._report(f"{context.peer()} refused: {text}")
        await context.abort(code, text)
        raise AssertionError("abort raises")


def _membership(request: pb.UdpSessionRequest) -> Membership:
    """Raises JobError."""
    num_elements = NUM_ELEMENTS.get(request.packet_size)
    if num_elements is None:
        allowed = " or ".join(f"{size} ({number} elements)" for size, number in NUM_ELEMENTS.items())
        raise JobError(f"packet_size: {allowed} (got {request.packet_size})")
    host = IPv4Address(request.ipv4)
    if host.is_unspecified or host.is_multicast or host.is_reserved:
        raise JobError(f"ipv4: {host} is no worker's address")
    return Membership(request.session_id, request.rank, request.num_workers, num_elements, str(host))


@contextmanager
def sessions_served(plane: SwitchMLDataPlane, address: Address, *, mac: int, report: Report) -> Iterator[Servicer]:
    """The session service at a TCP address. Raises UnsupportedError where there can be none."""
    servicer = Servicer(plane, mac, report)
    _require_free(address)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    def serve() -> None:
        try:
            asyncio.run(_serve(servicer, address, started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=serve, name="switchml sessions", daemon=True)
    thread.start()
    loop, stop = started.result()
    try:
        yield servicer
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def _require_free(address: Address) -> None:
    """Raises UnsupportedError with what the system says of an address; gRPC writes it to standard error instead."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            said = f"--sessions {address[0]}:{address[1]}: {error.strerror}; choose another address or port"
            raise UnsupportedError(said) from error


async def _serve(
    servicer: Servicer, address: Address, started: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]"
) -> None:
    server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
    rpc.add_SessionServicer_to_server(servicer, server)
    rpc.add_SyncServicer_to_server(servicer, server)
    try:
        server.add_insecure_port(f"{address[0]}:{address[1]}")
        await server.start()
    except RuntimeError as error:
        said = f"--sessions {address[0]}:{address[1]}: no server can listen there; choose another address or port"
        raise UnsupportedError(said) from error
    stop = asyncio.Event()
    started.set_result((asyncio.get_running_loop(), stop))
    await stop.wait()
    servicer.barrier.send_away("the aggregator ends")
    servicer.broadcast.send_away("the aggregator ends")
    await server.stop(_GRACE_S)
