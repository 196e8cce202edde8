"""Headers over gRPC, payloads over TCP: control and data apart, as TensorFlow's `grpc+X` protocols have them.

A sender offers each message by its header as soon as it is posted, and its payload follows over the side channel, with
the TCP channel's own machinery. A receiver reads the payload once it has been offered what it expected.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from transports.channels._rpc.endpoint import departure_of
from transports.channels._rpc.grpc_streams import GRACE_S, SILENT_TOKEN, GrpcStreams, Outgoing, Stream
from transports.channels._tcp.endpoint import TcpEndpoint
from transports.channels.base import Completion, Departure, Header, PeerStatistics, Token
from transports.channels.framing import (
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

_NOTHING: Final = memoryview(b"")


@dataclass(frozen=True, slots=True)
class _Message:
    token: Token
    header: Header
    view: memoryview


@dataclass(kw_only=True, slots=True)
class _Peer:
    stream: Stream
    receives: deque[_Message] = field(default_factory=deque)
    """Not yet offered."""
    offered: deque[Header] = field(default_factory=deque)
    farewell: Farewell | None = None
    moved_s: float = 0.0


class BulkEndpoint:
    """See :class:`transports.channels.base.Endpoint`."""

    def __init__(self, group: Group, data: TcpEndpoint) -> None:
        self._group = group
        self._data = data
        try:
            self._control = GrpcStreams(group, chunk_bytes=1 << 10, on_change=self._data.wake)
        except BaseException:
            self._data.close()
            raise
        self._peers = {rank: _Peer(stream=stream) for rank, stream in sorted(self._control.streams.items())}
        self._under_way: dict[Token, Token] = {}
        self._num_tokens = 0
        self._sequence = 0
        self._error: TransportError | None = None
        self._woken = False
        self._closed = False

    def post_send(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        token = self._token(header)
        self._control.post(peer, Outgoing(token=SILENT_TOKEN, packed=pack(header), view=_NOTHING))
        self._under_way[self._data.post_send(peer, header, view)] = token
        return token

    def post_receive(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        token = self._token(header)
        state = self._peers[peer]
        if not state.receives:
            state.moved_s = time.monotonic()
        state.receives.append(_Message(token, header, view))
        return token

    def _token(self, header: Header) -> Token:
        if header.operation != POINT_TO_POINT:
            self._sequence = header.sequence
        self._num_tokens += 1
        return self._num_tokens

    def skip(self, sequence: int) -> None:
        """See :class:`Endpoint`."""
        self._sequence = sequence
        self._data.skip(sequence)

    def progress(self, deadline_s: float, until_s: float = math.inf) -> Sequence[Completion]:
        """See :class:`Endpoint`."""
        try:
            return self._progress(deadline_s, until_s)
        except TransportError as error:
            self._error = error
            raise

    def _progress(self, deadline_s: float, until_s: float) -> Sequence[Completion]:
        while True:
            self._check_alive()
            with self._control.lock:
                for rank, peer in self._peers.items():
                    self._hear(rank, peer)
                    self._agree(rank, peer)
            try:
                done = self._data.progress(deadline_s, until_s)
            except (PeerLostError, PeerTimeoutError, FrameMismatchError):
                raise
            except TransportError:
                self._check_alive()
                raise self._timeout() from None
            if done or self._woken or time.monotonic() >= until_s:
                self._woken = False
                return [Completion(self._under_way.pop(token)) for (token,) in done]

    def _check_alive(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise TransportError(f"rank {self._group.rank} closed the group itself")

    def _hear(self, rank: int, peer: _Peer) -> None:
        """What a peer offers, or its close frame."""
        while peer.stream.arrived:
            data = self._control.take(peer.stream)
            if len(data) < HEADER_BYTES:
                raise FrameMismatchError(f"rank {rank} sends {len(data)} bytes where a frame header begins")
            header = unpack(data)
            peer.moved_s = time.monotonic()
            if header.operation == GOODBYE:
                peer.farewell = Farewell.of(header)
            else:
                peer.offered.append(header)

    def _agree(self, rank: int, peer: _Peer) -> None:
        """Receive what is both offered and expected."""
        while peer.receives and peer.offered:
            message, offered = peer.receives.popleft(), peer.offered.popleft()
            if pack(offered) != pack(message.header):  # in which numbers have the bits that travel
                raise mismatch(sender=rank, sent=offered, receiver=self._group.rank, expected=message.header)
            self._under_way[self._data.post_receive(rank, message.header, message.view)] = message.token
        if peer.farewell is not None:
            if peer.receives or self._sequence > peer.farewell.after:
                raise left(rank, peer.farewell, self._group.rank)
        elif peer.stream.ended is not None:
            raise PeerLostError(rank, peer.stream.ended)

    def peek(self, peer: int, deadline_s: float) -> Header | None:
        """See :class:`Endpoint`."""
        with self._control.lock:
            try:
                return self._peek(peer, self._peers[peer], deadline_s)
            except TransportError as error:
                self._error = error
                raise

    def _peek(self, rank: int, peer: _Peer, deadline_s: float) -> Header | None:
        while True:
            self._check_alive()
            self._hear(rank, peer)
            if peer.offered:
                return peer.offered[0]
            if peer.farewell is not None:
                require_finished(rank, peer.farewell, self._group.rank)
                return None
            if peer.stream.ended is not None:
                raise PeerLostError(rank, peer.stream.ended)
            wait_s = deadline_s - time.monotonic()
            if not self._control.changed.wait(max(min(wait_s, threading.TIMEOUT_MAX), 0.0)):
                raise PeerTimeoutError(rank, time.monotonic() - peer.moved_s, "its next message")

    def _timeout(self) -> TransportError:
        waiting = {rank: peer for rank, peer in self._peers.items() if peer.receives}
        if not waiting:
            return TransportError("timed out with nothing under way")
        rank = min(waiting, key=lambda each: waiting[each].moved_s)
        message = waiting[rank].receives[0]
        return PeerTimeoutError(rank, time.monotonic() - waiting[rank].moved_s, describe(message.header))

    def compile(self, steps: Sequence[Step], order: Dependencies, header: Header, reduction: int) -> None:
        """See :class:`Endpoint`."""

    def departure(self, peer: int) -> Departure | None:
        """See :class:`Endpoint`."""
        with self._control.lock:
            return departure_of(self._peers[peer].stream, has_left=self._peers[peer].farewell is not None)

    def wake(self) -> None:
        """See :class:`Endpoint`."""
        self._woken = True
        self._data.wake()

    def let_go(self) -> None:
        """See :class:`Endpoint`. Views are the side channel's."""
        self._data.let_go()

    def statistics(self) -> dict[int, PeerStatistics]:
        """See :class:`Endpoint`. The side channel's; control is not counted."""
        return self._data.statistics()

    def congestion(self) -> dict[int, str]:
        """See :class:`Endpoint`. The side channel's."""
        return self._data.congestion()

    def close(self) -> None:
        """See :class:`Endpoint`."""
        with self._control.lock:
            if self._closed:
                return
            self._closed = True
            self._control.changed.notify_all()
        in_order = self._error is None and not self._under_way
        in_order = in_order and not any(peer.receives for peer in self._peers.values())
        finished = self._sequence if in_order else max(self._sequence - 1, 0)
        self._control.close(Farewell.because(finished, self._error), self._group.timeout_s if in_order else GRACE_S)
        self._data.close(self._error)
