"""gRPC streams between the members of a group: one bidirectional stream per pair, as raw bytes.

Every member serves on its own address, publishes where in the store and calls all lower ranks. The first message in
each direction is a hello, as on the TCP channel's connections. Messages longer than a chunk travel as several gRPC
messages, since gRPC has a limit for one.

gRPC runs threads of its own, and its Python interface moves one message per stream and direction at a time: here a
thread feeds each stream and another reads it. All of them share the interpreter's lock with whoever computes, which is
part of what this transport costs. HTTP/2's flow control holds a sender back once `NUM_AHEAD` chunks wait to be taken.

What is copied: a chunk with its header into a Python object, that into gRPC's slice, that into the kernel; and the
same three times back. TensorFlow's own gRPC path hands large tensors to gRPC as slices without the first two.
"""

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from transports.channels._tcp.congestion import congestion_of
from transports.channels._tcp.mesh import hello, rank_of
from transports.channels.base import Token
from transports.channels.framing import HEADER_BYTES, Farewell
from transports.channels.ports import port_range, ports
from transports.errors import PeerLostError, PeerTimeoutError, TransportError, UnsupportedError
from transports.group import Group, published

if TYPE_CHECKING:
    import grpc

METHOD: Final = "/testbed.Transport/Exchange"
SHARED_THREADS: Final = frozenset({"event_engine", "lifeguard", "grpc_global_tim"})
"""What the threads of gRPC's core are called, of which a process has one set for all its channels and servers."""
NUM_AHEAD: Final = 4
"""Chunks per peer that wait here for a receive; what comes after them waits in HTTP/2's windows."""
SILENT_TOKEN: Final = 0
"""Of messages whose leaving nobody waits for."""
GRACE_S: Final = 0.5
"""How long a member that gives up tries to tell its peers where it stopped."""
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # members in one process must not share connections
    ("grpc.so_reuseport", 0),  # else two groups could listen on one port
)


@dataclass(kw_only=True, slots=True, eq=False)
class Outgoing:
    """A message that waits to be sent, or is being sent."""

    token: Token
    packed: bytes
    view: memoryview
    moved_bytes: int = 0

    def chunk(self, chunk_bytes: int) -> bytes:
        """The next gRPC message of it: the header and up to that much of the payload, or only of the payload."""
        start = max(self.moved_bytes - HEADER_BYTES, 0)
        parts = [self.packed] if not self.moved_bytes else []
        data = b"".join([*parts, self.view[start : start + chunk_bytes]])
        self.moved_bytes += len(data)
        return data

    @property
    def left_bytes(self) -> int:
        """What has not been sent of it."""
        return HEADER_BYTES + len(self.view) - self.moved_bytes


@dataclass(kw_only=True, slots=True, eq=False)
class Stream:
    """The stream to one peer. Guarded by the lock of its :class:`GrpcStreams`."""

    rank: int
    cancel: Callable[[], Any]
    fed: threading.Condition
    taken: threading.Condition
    outgoing: deque[Outgoing] = field(default_factory=deque)
    arrived: deque[bytes] = field(default_factory=deque)
    ended: str | None = None
    """Why no more will come of it."""
    over: bool = False
    """gRPC is done with it."""
    num_sent_bytes: int = 0
    num_sent_chunks: int = 0
    moved_s: float = 0.0


class GrpcStreams:
    """One member's streams to all others.

    `lock` guards everything here; `changed` tells the thread that drives them that something arrived, left or ended.
    `on_change` is called after each such change, with the lock held.
    """

    def __init__(
        self,
        group: Group,
        chunk_bytes: int,
        on_change: Callable[[], None] = lambda: None,
        congestion: str | None = None,
    ) -> None:
        """Connect to every other member.

        Raises UnsupportedError where gRPC is not installed or the kernel gives connections another congestion control
        than the one named, PeerTimeoutError naming a member that did not appear
        within the group's timeout, PeerLostError for one that appeared and went away again.
        """
        os.environ.setdefault(
            "GRPC_VERBOSITY", "NONE"
        )  # what matters is raised; it logs leaving members and busy ports
        try:
            import grpc
        except ImportError as error:
            raise UnsupportedError("the gRPC channels need grpcio: pip install 'ina-testbed[control]'") from error
        self._grpc = grpc
        self._group = group
        self._chunk_bytes = chunk_bytes
        self._on_change = on_change
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.streams: dict[int, Stream] = {}
        self.sent: list[Token] = []
        """Messages that left their buffers since somebody last looked."""
        self._closing = False
        self._channels: list[grpc.Channel] = []
        self._readers: list[threading.Thread] = []
        self._pool = ThreadPoolExecutor(group.size + 8, thread_name_prefix=f"gRPC server of {group.name}")
        self._server = grpc.server(self._pool, options=_OPTIONS)
        try:
            self._connect(time.monotonic() + group.timeout_s)
            if congestion is not None:
                self._require_congestion(congestion, time.monotonic() + group.timeout_s)
        except BaseException:
            self.close(None, 0.0)
            raise

    def post(self, peer: int, outgoing: Outgoing) -> None:
        """Queue a message to a peer; its token appears in `sent` when its view may be reused."""
        with self.lock:
            stream = self.streams[peer]
            stream.outgoing.append(outgoing)
            stream.fed.notify()

    def take(self, stream: Stream) -> bytes:
        """The next gRPC message that has arrived on it. With the lock held."""
        stream.taken.notify()
        stream.moved_s = time.monotonic()
        return stream.arrived.popleft()

    def _connect(self, deadline_s: float) -> None:
        group = self._group
        handlers = {"Exchange": self._grpc.stream_stream_rpc_method_handler(self._serve)}
        service = METHOD.split("/")[1]
        self._server.add_generic_rpc_handlers((self._grpc.method_handlers_generic_handler(service, handlers),))
        port = self._listen()
        self._server.start()
        host = f"[{group.address}]" if ":" in group.address else group.address
        group.store.set(f"{group.name}/{group.rank}/grpc", f"{host}:{port}")
        for peer in range(group.rank):
            where = published(group, f"{group.name}/{peer}/grpc", peer, "its address in the store", deadline_s)
            self._call(peer, where)
        with self.lock:
            while missing := set(range(group.size)) - {group.rank} - self.streams.keys():
                if not self.changed.wait(max(deadline_s - time.monotonic(), 0.0)):
                    raise PeerTimeoutError(min(missing), group.timeout_s, "its gRPC stream")
                for stream in self.streams.values():
                    if stream.rank < group.rank and stream.ended is not None and not stream.arrived:
                        raise PeerLostError(stream.rank, stream.ended)

    def _require_congestion(self, congestion: str, deadline_s: float) -> None:
        """gRPC keeps its sockets to itself; what the kernel gives one to the same place it has given them."""
        group = self._group
        for peer in self.streams:
            where = published(group, f"{group.name}/{peer}/grpc", peer, "its address in the store", deadline_s)
            host, _, port = where.rpartition(":")
            try:
                with socket.create_connection((host.strip("[]"), int(port)), group.timeout_s) as probe:
                    had = congestion_of(probe)
            except OSError as error:
                raise PeerLostError(peer, f"{where}: {error.strerror or error}") from error
            if had != congestion:
                raise UnsupportedError(
                    f"channel.congestion: gRPC's connections to rank {peer} have {had}, not {congestion}: ip route "
                    f"change ... congctl {congestion}, or sysctl -w net.ipv4.tcp_congestion_control={congestion}"
                )

    def _listen(self) -> int:
        host = f"[{self._group.address}]" if ":" in self._group.address else self._group.address
        for port in ports(f"{self._group.name}/grpc", self._group.rank, None, port_range()):
            with suppress(RuntimeError):  # what gRPC raises where it cannot listen
                return self._server.add_insecure_port(f"{host}:{port}")
        raise TransportError(f"rank {self._group.rank} cannot listen on {self._group.address}")

    def _call(self, peer: int, where: str) -> None:
        channel = self._grpc.insecure_channel(where, options=_OPTIONS)
        self._channels.append(channel)
        stream = self._stream(peer)
        call = channel.stream_stream(METHOD, None, None)(self._feed(stream))
        messages: Iterator[bytes] = iter(call)
        stream.cancel = call.cancel
        if not call.add_callback(lambda: self._over(stream)):
            stream.over = True

        def read() -> None:
            try:
                first = next(messages, b"")
            except self._grpc.RpcError as error:
                self._end(stream, _reason(error), dialled=True)
                return
            if rank_of(bytes(first), self._group) != peer:
                self._end(stream, "somebody else listens at its address", dialled=True)
                return
            self._admit(stream)
            self._read(stream, messages)

        thread = threading.Thread(target=read, name=f"gRPC from {peer} of {self._group.name}", daemon=True)
        self._readers.append(thread)
        thread.start()

    def _serve(self, requests: Iterator[bytes], context: "grpc.ServicerContext") -> Iterator[bytes]:
        """What the server does with a stream that somebody has opened."""
        try:
            rank = rank_of(next(requests, b""), self._group)
        except self._grpc.RpcError:
            return
        with self.lock:
            wanted = rank is not None and self._group.rank < rank < self._group.size
            if rank is None or not wanted or rank in self.streams or self._closing:
                context.set_code(self._grpc.StatusCode.PERMISSION_DENIED)
                return
            stream = self._stream(rank)
            stream.cancel = context.cancel
            if not context.add_callback(lambda: self._over(stream)):
                return
            reader = threading.Thread(
                target=self._read, args=(stream, requests), name=f"gRPC from {rank} of {self._group.name}", daemon=True
            )
            reader.start()  # before anybody can know of it: close() joins them all
            self._readers.append(reader)
            self.streams[rank] = stream
            self.changed.notify()
        yield from self._feed(stream)

    def _stream(self, peer: int) -> Stream:
        return Stream(
            rank=peer, cancel=lambda: None, fed=threading.Condition(self.lock), taken=threading.Condition(self.lock)
        )

    def _admit(self, stream: Stream) -> None:
        with self.lock:
            self.streams[stream.rank] = stream
            self.changed.notify()

    def _feed(self, stream: Stream) -> Iterator[bytes]:
        """What gRPC sends on a stream: it asks for the next when it has sent the one before."""
        yield hello(self._group)
        while (chunk := self._next_chunk(stream)) is not None:
            yield chunk

    def _next_chunk(self, stream: Stream) -> bytes | None:
        with self.lock:
            while not stream.outgoing and not self._closing and stream.ended is None:
                stream.fed.wait()
            if not stream.outgoing or stream.ended is not None:
                return None
            message = stream.outgoing[0]
            chunk = message.chunk(self._chunk_bytes)
            if message.token != SILENT_TOKEN:
                stream.num_sent_bytes += len(chunk)
                stream.num_sent_chunks += 1
            stream.moved_s = time.monotonic()
            if not message.left_bytes:
                stream.outgoing.popleft()
                if message.token != SILENT_TOKEN:
                    self.sent.append(message.token)
                    self._tell()
            return chunk

    def _read(self, stream: Stream, messages: Iterator[bytes]) -> None:
        reason = "it closed the connection"
        try:
            for data in messages:
                with self.lock:
                    stream.arrived.append(data)
                    self._tell()
                    while len(stream.arrived) >= NUM_AHEAD and not self._closing:
                        stream.taken.wait()
        except self._grpc.RpcError as error:
            reason = _reason(error)
        self._end(stream, reason)

    def _end(self, stream: Stream, reason: str, *, dialled: bool = False) -> None:
        with self.lock:
            stream.ended = reason
            stream.fed.notify()
            if dialled:
                self.streams[stream.rank] = stream  # for whoever waits for it to hear why it will not come
            self._tell()

    def _over(self, stream: Stream) -> None:
        with self.lock:
            stream.over = True
            self._tell()

    def _tell(self) -> None:
        self.changed.notify_all()
        self._on_change()

    def let_go(self) -> None:
        """See :class:`transports.channels._rpc.endpoint.Streams`. A stream in the middle of a message ends so."""
        with self.lock:
            self._let_go()

    def _let_go(self) -> None:
        """With the lock held."""
        for stream in self.streams.values():
            in_message = bool(stream.outgoing) and stream.outgoing[0].moved_bytes > 0
            stream.outgoing = deque(message for message in stream.outgoing if message.token == SILENT_TOKEN)
            if in_message:
                stream.ended = stream.ended or "we closed it"
                stream.over = True
                stream.fed.notify()

    def close(self, farewell: Farewell | None, grace_s: float) -> None:
        """End every stream; peers hear that (None: nothing) if they listen within `grace_s`. Callable once, from any
        thread."""
        deadline_s = time.monotonic() + grace_s
        with self.lock:
            self._closing = True
            self._let_go()
            for stream in self.streams.values():
                if farewell is None:
                    stream.ended = stream.ended or "we closed it"
                elif stream.ended is None:
                    goodbye = farewell.pack(self._group.name)
                    stream.outgoing.append(Outgoing(token=SILENT_TOKEN, packed=goodbye, view=memoryview(b"")))
                stream.fed.notify()
                stream.taken.notify()
            broken = [stream.cancel for stream in self.streams.values() if stream.over]
        for cancel in broken:
            cancel()
        with self.lock:
            while not all(stream.over for stream in self.streams.values()):
                if not self.changed.wait(max(deadline_s - time.monotonic(), 0.0)):
                    break
            streams = list(self.streams.values())
        for stream in streams:
            stream.cancel()
        for channel in self._channels:
            channel.close()
        self._server.stop(None).wait()
        for reader in self._readers:
            reader.join()
        self._pool.shutdown()


def _reason(error: Exception) -> str:
    """gRPC's own words for why a stream ended."""
    details = getattr(error, "details", None)
    said = details() if callable(details) else None
    return f"its gRPC stream ended: {said}" if said else "its gRPC stream was cancelled"
