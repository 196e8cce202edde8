"""One member's UDP connections, driven by one thread, and looked after by another while that one is away.

The kernel does nothing for a UDP socket but to queue: somebody must acknowledge, and repeat what got lost, while the
member computes and nobody drives its endpoint. That is the keeper's work; it holds the lock only when the driver is
out. Short messages are copied when they are posted, as the kernel would do with TCP's.
"""

import errno
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
from transports.channels._udp.connection import Connection
from transports.channels._udp.native import Alarm, Receiver, Scratch, Waiter, send_run
from transports.channels.base import Completion, Departure, Header, PeerStatistics, Token
from transports.channels.framing import DTYPE_BYTES, POINT_TO_POINT, Farewell, describe, left, mismatch
from transports.channels.framing import pack as pack_header
from transports.channels.framing import unpack as unpack_header
from transports.collectives.base import Step
from transports.collectives.schedules.dependencies import Dependencies
from transports.errors import FrameMismatchError, PeerLostError, PeerTimeoutError, TransportError
from transports.group import Group

COPY_BYTES: Final = 64 * 1024
"""Messages up to this length are copied, and may be changed as soon as they are posted..."""
MAX_COPIED_BYTES: Final = 1024 * 1024
"""...as long as no more than this waits for one peer."""
LINGER_S: Final = 5.0
"""How long a member that closes gracefully waits for its CLOSE to be acknowledged, if its timeout is not shorter."""
HURRIED_LINGER_S: Final = 1.0
"""The same after an error."""
_RUNS_PER_STEP: Final = 8
_BATCHES_PER_STEP: Final = 4
QUIET_S: Final = 1e-3
"""A member in the middle of long messages looks after them this seldom, as an interrupt controller would..."""
LATE_BYTES: Final = 64 * 1024
"""...and begins to look at once when, at the rate of late, less than this is missing of one."""
_AWAY_S: Final = 2e-3
"""The keeper steps in when the driver has been away for so long."""
_FOREVER_S: Final = 3600.0

ResultT = TypeVar("ResultT")


@dataclass(kw_only=True, slots=True)
class Peer:
    """One connection and its socket, which is connected to the peer's."""

    rank: int
    socket: socket.socket
    connection: Connection
    receiver: Receiver
    refused: bool = False
    """Whether the peer's host has said that nobody listens there any more."""
    moved_s: float = 0.0
    moved_bytes: int = 0
    due_s: float = 0.0
    """When the connection wants to be looked after, whatever comes."""
    arrived_bytes: int = 0
    arrived_s: float = 0.0
    arrival_rate: float = 0.0
    """Bytes per second that arrived of late, smoothed."""

    def measure_arrival(self, now_s: float) -> None:
        """Called after something was received."""
        received_bytes = self.connection.incoming.payload_bytes
        if received_bytes != self.arrived_bytes:
            rate = (received_bytes - self.arrived_bytes) / max(now_s - self.arrived_s, 1e-6)
            self.arrival_rate += (rate - self.arrival_rate) / 4
            self.arrived_bytes, self.arrived_s = received_bytes, now_s

    def quiet_s(self) -> float | None:
        """How long nobody needs to know what arrives; None: this connection has no say in it."""
        connection = self.connection
        missing_bytes, spare_s = connection.incoming.missing_bytes, connection.spare_s / 2
        if missing_bytes == 0:
            return spare_s if connection.outgoing.first_pending is not None and spare_s < QUIET_S else None
        if not self.arrival_rate:
            return 0.0
        return min(QUIET_S, spare_s, max(0.0, (missing_bytes - LATE_BYTES) / self.arrival_rate))


class UdpEndpoint:
    """See :class:`transports.channels.base.Endpoint`."""

    def __init__(self, group: Group, sockets: dict[int, socket.socket], connections: dict[int, Connection]) -> None:
        self._group = group
        scratch = Scratch()
        self._peers = {
            rank: Peer(
                rank=rank,
                socket=opened,
                connection=connections[rank],
                receiver=Receiver(connections[rank], opened.fileno(), scratch),
            )
            for rank, opened in sorted(sockets.items())
        }
        self._in_order = list(self._peers.values())
        self._wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._keeper_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        descriptors = [peer.socket.fileno() for peer in self._in_order]
        self._waiter = Waiter([*descriptors, self._wake_descriptor])
        self._keepers_waiter = Waiter([*descriptors, self._keeper_descriptor])
        self._leaving_waiter = Waiter(descriptors)
        self._alarm = Alarm()
        self._alarm_waiter = Waiter([self._alarm.descriptor, self._keeper_descriptor])
        self._num_tokens = 0
        self._completions: list[Completion] = []
        self._sequence = 0
        self._error: TransportError | None = None
        self._woken = False
        self._closing = False
        self._closed = False
        self._driving = threading.Lock()  # guards the connections; held inside progress() and by a working keeper
        self._descriptors = threading.Lock()  # nobody may use a descriptor while close() gives it back
        self._away = True  # the driver is not inside progress()
        self._alarm.set(_AWAY_S)
        self._keeper = threading.Thread(target=self._keep, name="udp keeper", daemon=True)
        self._keeper.start()
        _OPEN.add(self)

    def post_send(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        with self._driving:
            token = self._token(self._peers[peer], header, view)
            self._peers[peer].due_s = 0.0
            connection = self._peers[peer].connection
            if len(view) <= COPY_BYTES and connection.outgoing.unacknowledged_bytes <= MAX_COPIED_BYTES:
                connection.outgoing.post(pack_header(header), memoryview(bytes(view)), None)
                self._completions.append(Completion(token))
            else:
                connection.outgoing.post(pack_header(header), view, token)
        return token

    def post_receive(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        with self._driving:
            token = self._token(self._peers[peer], header, view)
            self._peers[peer].due_s = 0.0
            self._peers[peer].connection.incoming.expect(pack_header(header), view, token)
        return token

    def _token(self, peer: Peer, header: Header, view: memoryview) -> Token:
        assert len(view) == header.count * DTYPE_BYTES[header.dtype], f"{len(view)} bytes for {describe(header)}"
        if header.operation != POINT_TO_POINT:
            self._sequence = header.sequence
        if peer.connection.first_pending is None:
            peer.moved_s = clock.now_s()
        self._num_tokens += 1
        return self._num_tokens

    def progress(self, deadline_s: float, until_s: float = math.inf) -> Sequence[Completion]:
        """See :class:`Endpoint`."""
        protocol_s = clock.protocol_s
        return self._drive(lambda: self._progress(protocol_s(deadline_s), protocol_s(until_s)))

    def peek(self, peer: int, deadline_s: float) -> Header | None:
        """See :class:`Endpoint`."""
        return self._drive(lambda: self._peek(self._peers[peer], clock.protocol_s(deadline_s)))

    def _drive(self, work: Callable[[], ResultT]) -> ResultT:
        self._set_away(away=False)
        try:
            with self._driving:
                return work()
        except TransportError as error:
            self._error = error
            raise
        finally:
            self._set_away(away=True)

    def _set_away(self, *, away: bool) -> None:
        """The driver has left progress(), or is there, which the keeper need not wake up to learn."""
        self._away = away
        with self._descriptors:
            if self._closed:
                return
            if away:
                self._alarm.set(_AWAY_S)
            else:
                self._alarm.clear()

    def _progress(self, deadline_s: float, until_s: float) -> Sequence[Completion]:
        wait_s = quiet_s = 0.0
        while True:
            due_s = self._advance(wait_s, quiet_s)
            for peer in self._in_order:
                if peer.refused or peer.connection.needs_attention:
                    self._check(peer)
            if self._completions or self._woken:
                completions, self._completions = self._completions, []
                self._woken = False
                return completions
            now_s = clock.now_s()
            if now_s >= until_s:
                return []
            if now_s >= deadline_s:
                raise self._timeout()
            wait_s, quiet_s = min(deadline_s, until_s, due_s) - now_s, self._quiet_s()

    def _quiet_s(self) -> float:
        """How long arrivals can wait: 0 unless something long is awaited and nothing that may be short."""
        said = [quiet_s for peer in self._in_order if (quiet_s := peer.quiet_s()) is not None]
        return min(said, default=0.0)

    def _peek(self, peer: Peer, deadline_s: float) -> Header | None:
        connection, wait_s = peer.connection, 0.0
        assert not connection.incoming.expecting, "what is awaited is not peeked at"
        while True:
            due_s = self._advance(wait_s)
            first = connection.incoming.peek()
            if first is not None:
                return unpack_header(first)
            if connection.farewell is not None:
                return None
            self._check(peer)
            now_s = clock.now_s()
            if now_s >= deadline_s:
                raise PeerTimeoutError(peer.rank, now_s - peer.moved_s, "its next message")
            wait_s = min(deadline_s, due_s) - now_s

    def _advance(self, wait_s: float, quiet_s: float = 0.0) -> float:
        """Wait for something to happen, and do what there is to do. Returns when to come back at the latest."""
        if self._error is not None:
            raise self._error
        if self._closing:
            raise TransportError(f"rank {self._group.rank} closed the group itself")
        ready = self._waiter.wait(wait_s, quiet_s)
        if ready and ready[-1] == len(self._in_order):
            ready.pop()
            os.eventfd_read(self._wake_descriptor)
            self._woken = True
        return self._step(ready)

    def _step(self, ready: Sequence[int]) -> float:
        """Receive from those, send what is due. Returns when to come back at the latest."""
        for index in ready:
            self._receive(self._in_order[index])
        now_s = clock.now_s()
        for peer in self._in_order:
            if peer.due_s > now_s:
                continue
            connection = peer.connection
            connection.expire(now_s)
            if peer.refused:
                peer.due_s = math.inf
            else:
                self._transmit(peer, now_s)
                peer.due_s = connection.deadline_s()
            if connection.completions:
                self._completions += map(Completion, connection.completions)
                connection.completions.clear()
        return min((peer.due_s for peer in self._in_order), default=math.inf)

    def _receive(self, peer: Peer) -> None:
        peer.due_s = 0.0
        for _ in range(_BATCHES_PER_STEP):
            found = peer.receiver.receive()
            if found.error == errno.ECONNREFUSED:
                peer.refused = True  # what it said before lies behind the error
                continue
            if found.error:
                raise PeerLostError(peer.rank, os.strerror(found.error))
            if not found.more:
                break
        now_s = clock.now_s()
        peer.measure_arrival(now_s)
        connection = peer.connection
        if connection.moved_bytes != peer.moved_bytes:
            peer.moved_bytes, peer.moved_s = connection.moved_bytes, now_s

    def _transmit(self, peer: Peer, now_s: float) -> None:
        connection, descriptor = peer.connection, peer.socket.fileno()
        for datagram in connection.controls(now_s):
            try:
                peer.socket.send(datagram)
            except BlockingIOError:
                break  # as if the network had lost it
            except ConnectionRefusedError:
                peer.refused = True
            except OSError as error:
                raise PeerLostError(peer.rank, error.strerror or str(error)) from error
        for _ in range(_RUNS_PER_STEP):
            run = connection.next_run(now_s)
            if run is None:
                break
            sent = send_run(descriptor, connection, run)
            if sent == run.num_packets:
                continue
            connection.take_back(run, max(sent, 0), now_s)
            failure = -min(sent, 0)
            if failure == errno.ECONNREFUSED:
                peer.refused = True
            elif failure == errno.EMSGSIZE:
                raise TransportError(
                    f"channel.payload: {connection.outgoing.packet_bytes} B and headers do not fit the MTU towards "
                    f"rank {peer.rank}; the default, 1448 B, fits 1500"
                )
            elif failure not in (0, errno.EAGAIN, errno.ENOBUFS, errno.EINTR):
                raise PeerLostError(peer.rank, os.strerror(failure))
            break

    def _check(self, peer: Peer) -> None:
        """Raise what stands in the way of going on."""
        connection = peer.connection
        if connection.incoming.disagreement is not None:
            raise self._mismatch(peer, *connection.incoming.disagreement)
        if connection.restarted:
            raise PeerLostError(peer.rank, "it has begun anew and knows nothing of this group")
        farewell = connection.farewell
        if farewell is not None:
            if self._sequence > farewell.after or connection.first_pending is not None:
                raise left(peer.rank, farewell, self._group.rank)
        elif peer.refused:
            self._receive(peer)  # its CLOSE may lie behind the ICMP error
            if connection.farewell is None:
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
        peer = min(busy, key=lambda candidate: (not candidate.connection.incoming.expecting, candidate.moved_s))
        pending = peer.connection.first_pending
        assert pending is not None
        return PeerTimeoutError(peer.rank, clock.now_s() - peer.moved_s, describe(unpack_header(pending)))

    def _keep(self) -> None:
        """The keeper's life."""
        while not self._closing:
            self._alarm_waiter.wait(_FOREVER_S)
            wait_s = 0.0
            while self._away and not self._closing:
                ready = self._keepers_waiter.wait(wait_s)
                if not self._driving.acquire(blocking=False):
                    time.sleep(clock.machine_s(_AWAY_S))  # the driver is back, or somebody posts
                    break
                try:
                    if self._closing or self._error is not None:
                        return
                    ready = [index for index in ready if index < len(self._in_order)]
                    wait_s = max(self._step(ready) - clock.now_s(), 0.0)
                except TransportError as error:
                    self._error = error
                    return
                finally:
                    self._driving.release()

    def compile(self, steps: Sequence[Step], order: Dependencies, header: Header, reduction: int) -> None:
        """See :class:`Endpoint`."""

    def departure(self, peer: int) -> Departure | None:
        """See :class:`Endpoint`. While nobody drives, the keeper asks silent peers whether they are there."""
        state = self._peers[peer]
        if state.connection.peer_leaves:
            return Departure(True, "it closed the group")
        if state.connection.restarted:
            return Departure(False, "it has begun anew and knows nothing of this group")
        return Departure(False, "nobody listens at its address any more") if state.refused else None

    def wake(self) -> None:
        """See :class:`Endpoint`."""
        with self._descriptors:
            if not self._closed:
                os.eventfd_write(self._wake_descriptor, 1)

    def statistics(self) -> dict[int, PeerStatistics]:
        """See :class:`Endpoint`."""
        return {
            peer.rank: PeerStatistics(
                payload_bytes_sent=peer.connection.outgoing.payload_bytes,
                payload_bytes_received=peer.connection.incoming.payload_bytes,
                acknowledgement_bytes_sent=peer.connection.acknowledgement_bytes,
                retransmitted_bytes=peer.connection.outgoing.retransmitted_bytes,
            )
            for peer in self._in_order
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
        finished = self._sequence if in_order else max(self._sequence - 1, 0)
        linger_s = min(clock.protocol_s(self._group.timeout_s), LINGER_S) if in_order else HURRIED_LINGER_S
        deadline_s = clock.now_s() + linger_s
        for peer in self._in_order:
            peer.connection.leave(Farewell.because(finished, self._error), clock.now_s())
            peer.due_s = 0.0
        while clock.now_s() < deadline_s:
            try:
                due_s = self._step(range(len(self._in_order)))
            except PeerLostError as error:
                self._peers[error.peer].refused = True
                continue
            if not any(self._lingers(peer) for peer in self._in_order):
                return
            self._leaving_waiter.wait(min(due_s, deadline_s) - clock.now_s())

    @staticmethod
    def _lingers(peer: Peer) -> bool:
        connection = peer.connection
        return not (peer.refused or (connection.outgoing.delivered and connection.leave_answered))


_OPEN: Final[WeakSet[UdpEndpoint]] = WeakSet()


def _abandon_all() -> None:
    for endpoint in _OPEN:
        endpoint.abandon()


os.register_at_fork(after_in_child=_abandon_all)
