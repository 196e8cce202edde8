"""Messages over a library's streams (gRPC's, QUIC's) that threads of its own move: received on the thread that drives
the endpoint, into the posted views."""

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Condition, Lock
from typing import Protocol

from transports.channels._rpc.grpc_streams import GRACE_S, Outgoing, Stream
from transports.channels.base import Completion, Departure, Header, PeerStatistics, Token
from transports.channels.framing import (
    DTYPE_BYTES,
    GOODBYE,
    HEADER_BYTES,
    POINT_TO_POINT,
    Farewell,
    describe,
    left,
    mismatch,
    pack,
    require_finished,
    unpack,
)
from transports.collectives.base import Step
from transports.collectives.schedules.dependencies import Dependencies
from transports.errors import FrameMismatchError, PeerLostError, PeerTimeoutError, TransportError
from transports.group import Group


class Streams(Protocol):
    """One member's streams to all others, as :class:`transports.channels._rpc.grpc_streams.GrpcStreams` has them."""

    lock: Lock
    changed: Condition
    streams: dict[int, Stream]
    sent: list[Token]

    def post(self, peer: int, outgoing: Outgoing) -> None:
        """Queue a message to a peer; its token appears in `sent` when its view may be reused."""

    def take(self, stream: Stream) -> bytes:
        """The next piece that has arrived on it, never of two messages. With the lock held."""

    def let_go(self) -> None:
        """Forget what has not left: when this returns, no view of it is read any more. Waits for nobody. Idempotent."""

    def close(self, farewell: Farewell | None, grace_s: float) -> None:
        """End every stream; peers hear it if they listen within `grace_s`."""


@dataclass(kw_only=True, slots=True)
class _Receive:
    token: Token
    header: Header
    packed: bytes
    view: memoryview
    moved_bytes: int = 0


class StreamEndpoint:
    """See :class:`transports.channels.base.Endpoint`."""

    def __init__(self, group: Group, streams: Streams, framing_bytes: int) -> None:
        """`framing_bytes` are what the library puts before each piece that it hands on."""
        self._group = group
        self._streams = streams
        self._framing_bytes = framing_bytes
        self._receives: dict[int, deque[_Receive]] = {peer: deque() for peer in sorted(self._streams.streams)}
        self._received_bytes = dict.fromkeys(self._receives, 0)
        self._farewells: dict[int, Farewell] = {}
        self._num_tokens = 0
        self._sequence = 0
        self._sends: dict[Token, tuple[int, Header]] = {}
        self._completions: list[Completion] = []
        self._error: TransportError | None = None
        self._woken = False
        self._closed = False

    def post_send(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        token = self._token(peer, header, view)
        self._sends[token] = peer, header
        self._streams.post(peer, Outgoing(token=token, packed=pack(header), view=view))
        return token

    def post_receive(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        token = self._token(peer, header, view)
        self._receives[peer].append(_Receive(token=token, header=header, packed=pack(header), view=view))
        return token

    def _token(self, peer: int, header: Header, view: memoryview) -> Token:
        assert len(view) == header.count * DTYPE_BYTES[header.dtype], f"{len(view)} bytes for {describe(header)}"
        if header.operation != POINT_TO_POINT:
            self._sequence = header.sequence
        if not self._receives[peer]:
            self._streams.streams[peer].moved_s = time.monotonic()
        self._num_tokens += 1
        return self._num_tokens

    def skip(self, sequence: int) -> None:
        """See :class:`Endpoint`."""
        self._sequence = sequence

    def progress(self, deadline_s: float, until_s: float = math.inf) -> Sequence[Completion]:
        """See :class:`Endpoint`."""
        with self._streams.lock:
            try:
                return self._progress(deadline_s, until_s)
            except TransportError as error:
                self._error = error
                raise

    def _progress(self, deadline_s: float, until_s: float) -> Sequence[Completion]:
        while True:
            self._check_alive()
            for token in self._streams.sent:
                del self._sends[token]
                self._completions.append(Completion(token))
            self._streams.sent.clear()
            for stream in self._streams.streams.values():
                self._receive(stream)
                self._check_departure(stream)
            if self._completions or self._woken:
                completions, self._completions = self._completions, []
                self._woken = False
                return completions
            wait_s = min(deadline_s, until_s) - time.monotonic()
            if not self._streams.changed.wait(max(wait_s, 0.0) if math.isfinite(wait_s) else None):
                if until_s < deadline_s:
                    return []
                raise self._timeout()

    def _check_alive(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise TransportError(f"rank {self._group.rank} closed the group itself")

    def _receive(self, stream: Stream) -> None:
        """Take what has arrived for the receives that are posted."""
        receives = self._receives[stream.rank]
        while receives and stream.arrived:
            message = receives[0]
            data = memoryview(self._streams.take(stream))
            if not message.moved_bytes:
                if data[:HEADER_BYTES] != message.packed:
                    raise self._mismatch(stream.rank, data, message.header)
                data = data[HEADER_BYTES:]
                message.moved_bytes = HEADER_BYTES
                self._received_bytes[stream.rank] += HEADER_BYTES
            start = message.moved_bytes - HEADER_BYTES
            if len(data) > len(message.view) - start:
                raise FrameMismatchError(f"rank {stream.rank} sends more than {describe(message.header)}")
            message.view[start : start + len(data)] = data
            message.moved_bytes += len(data)
            self._received_bytes[stream.rank] += len(data) + self._framing_bytes
            if message.moved_bytes == HEADER_BYTES + len(message.view):
                receives.popleft()
                self._completions.append(Completion(message.token))

    def _mismatch(self, peer: int, data: memoryview, expected: Header) -> TransportError:
        sent = _header(peer, data)
        if sent.operation == GOODBYE:
            return left(peer, Farewell.of(sent), self._group.rank)
        return mismatch(sender=peer, sent=sent, receiver=self._group.rank, expected=expected)

    def _check_departure(self, stream: Stream) -> None:
        """A peer that took its leave, or died, is lost to whoever still needs it."""
        rank, awaited = stream.rank, bool(self._receives[stream.rank])
        if rank not in self._farewells and not awaited and len(stream.arrived) == 1:
            last = _header(rank, stream.arrived[0])
            if last.operation == GOODBYE:
                self._farewells[rank] = Farewell.of(last)
        if rank in self._farewells:
            if self._sequence > self._farewells[rank].after or awaited or stream.outgoing:
                raise left(rank, self._farewells[rank], self._group.rank)
        elif stream.ended is not None and not stream.arrived:
            raise PeerLostError(rank, stream.ended)

    def peek(self, peer: int, deadline_s: float) -> Header | None:
        """See :class:`Endpoint`."""
        with self._streams.lock:
            try:
                return self._peek(self._streams.streams[peer], deadline_s)
            except TransportError as error:
                self._error = error
                raise

    def _peek(self, stream: Stream, deadline_s: float) -> Header | None:
        while True:
            self._check_alive()
            if stream.arrived:
                header = _header(stream.rank, stream.arrived[0])
                if header.operation != GOODBYE:
                    return header
                require_finished(stream.rank, Farewell.of(header), self._group.rank)
                return None
            if stream.ended is not None:
                raise PeerLostError(stream.rank, stream.ended)
            wait_s = deadline_s - time.monotonic()
            if not self._streams.changed.wait(max(wait_s, 0.0) if math.isfinite(wait_s) else None):
                raise PeerTimeoutError(stream.rank, time.monotonic() - stream.moved_s, "its next message")

    def _timeout(self) -> TransportError:
        """Blame the peer that has been silent longest among those something is expected of."""
        awaited = {peer: receives[0].header for peer, receives in self._receives.items() if receives}
        waiting = awaited or dict(self._sends.values())
        if not waiting:
            return TransportError("timed out with nothing under way")
        moved_s = {peer: self._streams.streams[peer].moved_s for peer in waiting}
        peer = min(moved_s, key=moved_s.__getitem__)
        return PeerTimeoutError(peer, time.monotonic() - moved_s[peer], describe(waiting[peer]))

    def compile(self, steps: Sequence[Step], order: Dependencies, header: Header, reduction: int) -> None:
        """See :class:`Endpoint`."""

    def departure(self, peer: int) -> Departure | None:
        """See :class:`Endpoint`."""
        stream = self._streams.streams[peer]
        with self._streams.lock:
            return departure_of(stream, has_left=peer in self._farewells)

    def wake(self) -> None:
        """See :class:`Endpoint`."""
        with self._streams.lock:
            self._woken = True
            self._streams.changed.notify_all()

    def let_go(self) -> None:
        """See :class:`Endpoint`. Nobody but :meth:`progress` writes into posted views; the streams read them."""
        self._error = self._error or TransportError(f"rank {self._group.rank} has given up what was under way")
        self._streams.let_go()

    def statistics(self) -> dict[int, PeerStatistics]:
        """See :class:`Endpoint`. The payload with the library's framing; it keeps its sockets, and what the kernel
        knows of them, to itself."""
        with self._streams.lock:
            return {
                rank: PeerStatistics(
                    payload_bytes_sent=stream.num_sent_bytes + stream.num_sent_chunks * self._framing_bytes,
                    payload_bytes_received=self._received_bytes[rank],
                )
                for rank, stream in self._streams.streams.items()
            }

    def congestion(self) -> dict[int, str]:
        """See :class:`Endpoint`. No library here gives access to its sockets."""
        return {}

    def close(self) -> None:
        """See :class:`Endpoint`."""
        with self._streams.lock:
            if self._closed:
                return
            self._closed = True
            self._streams.changed.notify_all()
            in_order = self._error is None and not any(self._receives.values()) and not self._pending()
        finished = self._sequence if in_order else max(self._sequence - 1, 0)
        self._streams.close(Farewell.because(finished, self._error), self._group.timeout_s if in_order else GRACE_S)

    def _pending(self) -> bool:
        return any(stream.outgoing for stream in self._streams.streams.values())


def departure_of(stream: Stream, *, has_left: bool = False) -> Departure | None:
    """How the peer of a stream went away, if it did: its goodbye may be the last that has arrived, unread."""
    last = stream.arrived[-1] if stream.arrived else b""
    if has_left or (len(last) == HEADER_BYTES and _is_goodbye(last)):
        return Departure(True, "it closed the group")
    return None if stream.ended is None else Departure(False, stream.ended)


def _is_goodbye(data: bytes) -> bool:
    try:
        return unpack(data).operation == GOODBYE
    except FrameMismatchError:
        return False


def _header(peer: int, data: bytes | memoryview) -> Header:
    """Of a message whose first chunk is `data`. Raises FrameMismatchError."""
    if len(data) < HEADER_BYTES:
        raise FrameMismatchError(f"rank {peer} sends {len(data)} bytes where a frame header begins")
    return unpack(data[:HEADER_BYTES])
