"""One member's UDP connections, driven by one thread, and looked after by another while that one is away.

The kernel does nothing for a UDP socket but to queue: somebody must acknowledge, and repeat what got lost, while the
member computes and nobody drives its endpoint. That is the keeper's work; it holds the lock only when the driver is
out. Both leave it to the engine (udp.c), which returns for what completes and for whatever is out of the ordinary; what
that means is decided here.
"""

import ctypes
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from weakref import WeakSet

from switch_agg import clock
from transports.channels._udp import native
from transports.channels._udp.connection import Connection
from transports.channels._udp.native import Alarm, Waiter, address_of
from transports.channels.base import Completion, Departure, Header, PeerStatistics, Token
from transports.channels.framing import (
    DTYPE_BYTES,
    HEADER_BYTES,
    POINT_TO_POINT,
    Farewell,
    describe,
    left,
    mismatch,
    require_finished,
)
from transports.channels.framing import pack as pack_header
from transports.channels.framing import unpack as unpack_header
from transports.collectives.base import Step
from transports.collectives.schedules.dependencies import Dependencies
from transports.errors import FrameMismatchError, PeerLostError, PeerTimeoutError, TransportError
from transports.group import Group

LINGER_S: Final = 5.0
"""How long a member that closes gracefully waits for its CLOSE to be acknowledged, if its timeout is not shorter."""
HURRIED_LINGER_S: Final = 1.0
"""The same after an error."""
_AWAY_S: Final = 2e-3
"""The keeper steps in when the driver has been away for so long."""
_FOREVER_S: Final = 3600.0

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Peer:
    """One connection and its socket, which is connected to the peer's."""

    rank: int
    index: int
    """In the engine's array."""
    socket: socket.socket
    connection: Connection
    state: native.PeerState


class UdpEndpoint:
    """See :class:`transports.channels.base.Endpoint`."""

    def __init__(
        self,
        group: Group,
        sockets: dict[int, socket.socket],
        connections: dict[int, Connection],
        completions: native.Completions,
    ) -> None:
        """The connections all have those completions."""
        self._group = group
        self._library = native.library()
        self._completions = completions
        self._states = (native.PeerState * len(sockets))()
        self._peers: dict[int, Peer] = {}
        for index, (rank, opened) in enumerate(sorted(sockets.items())):
            state = self._states[index]
            state.connection, state.socket = connections[rank].address, opened.fileno()
            self._peers[rank] = Peer(rank, index, opened, connections[rank], state)
        self._in_order = list(self._peers.values())
        self._wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._keeper_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._alarm = Alarm()
        self._buffers = (ctypes.c_uint8 * native.BUFFERS_BYTES)()
        self._state = native.EndpointState(
            peers=ctypes.addressof(self._states),
            buffers=ctypes.addressof(self._buffers),
            completions=completions.address,
            dilation=clock.dilation(),
            num_peers=len(self._in_order),
            wake=self._wake_descriptor,
            alarm=self._alarm.descriptor,
            away=1,
        )
        self._address = ctypes.addressof(self._state)
        self._keepers_waiter = Waiter([*(peer.socket.fileno() for peer in self._in_order), self._keeper_descriptor])
        self._alarm_waiter = Waiter([self._alarm.descriptor, self._keeper_descriptor])
        self._num_tokens = 0
        self._error: TransportError | None = None
        self._closing = False
        self._closed = False
        self._driving = threading.Lock()  # guards the connections; held inside progress() and by a working keeper
        self._descriptors = threading.Lock()  # nobody may use a descriptor while close() gives it back
        self._alarm.set(_AWAY_S)
        self._keeper = threading.Thread(target=self._keep, name="udp keeper", daemon=True)
        self._keeper.start()
        _OPEN.add(self)

    def post_send(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        return self._post(self._library.endpoint_send, self._peers[peer], header, view)

    def post_receive(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        return self._post(self._library.endpoint_expect, self._peers[peer], header, view)

    def _post(self, post: Callable[..., None], peer: Peer, header: Header, view: memoryview) -> Token:
        num_bytes = len(view)
        assert num_bytes == header.count * DTYPE_BYTES[header.dtype], f"{num_bytes} bytes for {describe(header)}"
        with self._driving:
            if header.operation != POINT_TO_POINT:
                self._state.sequence = header.sequence
            self._num_tokens += 1
            self._completions.hold(self._num_tokens, view)
            post(self._address, peer.index, pack_header(header), address_of(view), num_bytes, self._num_tokens)
            return self._num_tokens

    def skip(self, sequence: int) -> None:
        """See :class:`Endpoint`."""
        with self._driving:
            self._state.sequence = sequence

    def progress(self, deadline_s: float, until_s: float = math.inf) -> Sequence[Completion]:
        """See :class:`Endpoint`."""
        protocol_s = clock.protocol_s
        return self._drive(lambda: self._progress(protocol_s(deadline_s), protocol_s(until_s)))

    def peek(self, peer: int, deadline_s: float) -> Header | None:
        """See :class:`Endpoint`."""
        return self._drive(lambda: self._peek(self._peers[peer], clock.protocol_s(deadline_s)))

    def _drive(self, work: Callable[[], ResultT]) -> ResultT:
        try:
            with self._driving:
                return work()
        except TransportError as error:
            self._error = error
            raise

    def _progress(self, deadline_s: float, until_s: float) -> Sequence[Completion]:
        while True:
            self._require_open()
            outcome = self._library.endpoint_drive(self._address, deadline_s, until_s)
            if outcome == native.MOVED:
                self._state.woken = 0
                return list(map(Completion, self._completions.take()))
            if outcome == native.LATE:
                raise self._timeout()
            self._require_well(outcome)
            if clock.now_s() >= until_s:
                return []

    def _peek(self, peer: Peer, deadline_s: float) -> Header | None:
        assert not peer.connection.expecting, "what is awaited is not peeked at"
        frame = (ctypes.c_uint8 * HEADER_BYTES)()
        while True:
            self._require_open()
            outcome = self._library.endpoint_peek(self._address, peer.index, deadline_s, frame)
            if outcome == native.MOVED:
                return unpack_header(bytes(frame))
            if outcome == native.GONE:
                if (farewell := peer.connection.farewell) is not None:
                    require_finished(peer.rank, farewell, self._group.rank)
                return None
            if outcome == native.LATE:
                raise PeerTimeoutError(peer.rank, clock.now_s() - peer.state.moved_s, "its next message")
            self._require_well(outcome)

    def _require_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closing:
            raise TransportError(f"rank {self._group.rank} closed the group itself")

    def _require_well(self, outcome: int) -> None:
        """Raise what stands in the way of going on, if anything does."""
        if outcome == native.ONGOING:
            return
        peer = self._in_order[self._state.failed_peer]
        if outcome == native.FAILED:
            raise PeerLostError(peer.rank, os.strerror(self._state.error))
        if outcome == native.TOO_LONG:
            raise TransportError(
                f"channel.payload: {peer.connection.state.outgoing.packet_bytes} B and headers do not fit the MTU "
                f"towards rank {peer.rank}; the default, 1448 B, fits 1500"
            )
        connection = peer.connection
        if connection.disagreement is not None:
            raise self._mismatch(peer, *connection.disagreement)
        if connection.restarted:
            raise PeerLostError(peer.rank, "it has begun anew and knows nothing of this group")
        if connection.farewell is not None:
            raise left(peer.rank, connection.farewell, self._group.rank)
        raise PeerLostError(peer.rank, "nobody listens at its address any more")

    def _mismatch(self, peer: Peer, came: bytes, expected: bytes) -> TransportError:
        ours = unpack_header(expected)
        try:
            sent = unpack_header(came)
        except FrameMismatchError as error:
            return FrameMismatchError(
                f"rank {peer.rank} sends what is {error}; rank {self._group.rank} expects {describe(ours)}"
            )
        return mismatch(sender=peer.rank, sent=sent, receiver=self._group.rank, expected=ours)

    def _timeout(self) -> TransportError:
        """Blame the peer that has been silent longest among those something is expected of."""
        busy = [peer for peer in self._in_order if peer.connection.first_pending is not None]
        if not busy:
            return TransportError("timed out with nothing under way")
        peer = min(busy, key=lambda candidate: (not candidate.connection.expecting, candidate.state.moved_s))
        pending = peer.connection.first_pending
        assert pending is not None
        return PeerTimeoutError(peer.rank, clock.now_s() - peer.state.moved_s, describe(unpack_header(pending)))

    def _keep(self) -> None:
        """The keeper's life."""
        while not self._closing:
            self._alarm_waiter.wait(_FOREVER_S)
            wait_s = 0.0
            while self._state.away and not self._closing:
                self._keepers_waiter.wait(wait_s)
                if not self._driving.acquire(blocking=False):
                    time.sleep(clock.machine_s(_AWAY_S))  # the driver is back, or somebody posts
                    break
                try:
                    if self._closing or self._error is not None:
                        return
                    wait_s = self._look()
                except TransportError as error:
                    self._error = error
                    return
                finally:
                    self._driving.release()

    def _look(self) -> float:
        """Receive what has come, send what is due. Returns how long there is nothing more to do."""
        wait_s = ctypes.c_double()
        self._require_well(self._library.endpoint_look(self._address, ctypes.byref(wait_s)))
        return wait_s.value

    def compile(self, steps: Sequence[Step], order: Dependencies, header: Header, reduction: int) -> None:
        """See :class:`Endpoint`."""

    def departure(self, peer: int) -> Departure | None:
        """See :class:`Endpoint`. While nobody drives, the keeper asks silent peers whether they are there."""
        state = self._peers[peer]
        if state.connection.peer_leaves:
            return Departure(True, "it closed the group")
        if state.connection.restarted:
            return Departure(False, "it has begun anew and knows nothing of this group")
        return Departure(False, "nobody listens at its address any more") if state.state.refused else None

    def wake(self) -> None:
        """See :class:`Endpoint`."""
        with self._descriptors:
            if not self._closed:
                os.eventfd_write(self._wake_descriptor, 1)

    def let_go(self) -> None:
        """See :class:`Endpoint`. The keeper, too, has let go then."""
        with self._driving:
            self._error = self._error or TransportError(f"rank {self._group.rank} has given up what was under way")
            for peer in self._in_order:
                peer.connection.let_go()

    def statistics(self) -> dict[int, PeerStatistics]:
        """See :class:`Endpoint`."""
        return {
            peer.rank: PeerStatistics(
                payload_bytes_sent=state.outgoing.payload_bytes,
                payload_bytes_received=state.incoming.payload_bytes,
                acknowledgement_bytes_sent=state.acknowledgement_bytes,
                retransmitted_bytes=max(0, state.outgoing.retransmitted_bytes),
            )
            for peer in self._in_order
            for state in (peer.connection.state,)
        }

    @property
    def num_rejected(self) -> int:
        """Datagrams that were cut short, corrupted or not of this group."""
        return sum(peer.connection.num_rejected for peer in self._in_order)

    def congestion(self) -> dict[int, str]:
        """See :class:`Endpoint`: the kernel controls nothing here."""
        return {}

    def close(self) -> None:
        """See :class:`Endpoint`."""
        self._closing = True
        self.wake()
        with self._driving:
            if self._closed:
                return
            self._close_gracefully()
            with self._descriptors:
                self._closed = True
                os.eventfd_write(self._keeper_descriptor, 1)
        self._keeper.join()
        with self._descriptors:
            _OPEN.discard(self)
            self.abandon()

    def abandon(self) -> None:
        """Give the descriptors back, unnoticed by the peers: in a forked child, those are copies."""
        for peer in self._in_order:
            peer.socket.close()
        for descriptor in (self._wake_descriptor, self._keeper_descriptor, self._alarm.descriptor):
            os.close(descriptor)

    def _close_gracefully(self) -> None:
        busy = any(peer.connection.first_pending is not None for peer in self._in_order)
        in_order = self._error is None and not busy
        sequence = self._state.sequence
        finished = sequence if in_order else max(sequence - 1, 0)
        linger_s = min(clock.protocol_s(self._group.timeout_s), LINGER_S) if in_order else HURRIED_LINGER_S
        deadline_s = clock.now_s() + linger_s
        for peer in self._in_order:
            peer.connection.leave(Farewell.because(finished, self._error), clock.now_s())
            peer.state.due_s = 0.0
        while not self._library.endpoint_linger(self._address, deadline_s):
            pass  # signals are handled here


_OPEN: Final[WeakSet[UdpEndpoint]] = WeakSet()


def _abandon_all() -> None:
    for endpoint in _OPEN:
        endpoint.abandon()
    _OPEN.clear()  # a child of this child has other files under these numbers


os.register_at_fork(after_in_child=_abandon_all)
