"""One member's TCP connections, driven by one thread through one edge-triggered epoll.

Data is read only when a receive has been posted for it, straight into its view; until then it stays in the kernel,
whose window tells the peer to wait. The epoll is edge-triggered so that nothing has to be registered anew when a
socket turns from ready to busy: `readable` and `writable` remember what it last said.
"""

import array
import fcntl
import logging
import math
import os
import select
import socket
import termios
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from transports.channels._tcp import program as native
from transports.channels._tcp.congestion import congestion_of
from transports.channels._tcp.mesh import Mesh
from transports.channels._tcp.program import Connection, Engine, LaneName, TcpProgram
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
    require_finished,
)
from transports.channels.framing import pack as pack_header
from transports.channels.framing import unpack as unpack_header
from transports.channels.tcp_info import read_tcp_info
from transports.collectives.base import Step
from transports.collectives.schedules.dependencies import Dependencies
from transports.errors import FrameMismatchError, PeerLostError, PeerTimeoutError, TransportError
from transports.group import Group

_log: Final = logging.getLogger(__name__)

GATHER_BYTES: Final = 256 * 1024
"""Short messages to one peer leave in one system call until they are this much together..."""
GATHER_BUFFERS: Final = os.sysconf("SC_IOV_MAX")
"""...or in as many pieces as sendmsg(2) takes at once: it refuses more (EMSGSIZE)."""
LOW_WATER_BYTES: Final = 1024 * 1024
"""The kernel wakes us only when so much of the awaited message has come, instead of for every packet. With each waking
the interpreter comes back to a cache that the payload has filled, which costs more than the calls themselves."""

NOTICE_S: Final = 1.0
"""So long, at most, a connection that was cut in the middle of a message outlives a peer that was lost."""
_NOTICE_POLL_S: Final = 5e-3
_CLOSED: Final = "it closed the connection"
_EVENTS: Final = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET
_FOREVER_S: Final = 9e9
"""Longer than any clock has run, and short enough to be counted in nanoseconds."""
_ENDING: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


@dataclass(kw_only=True, slots=True)
class _Message:
    token: Token
    header: Header
    packed: bytes
    view: memoryview
    total_bytes: int
    """Header and payload."""
    moved_bytes: int = 0


@dataclass(kw_only=True, slots=True)
class Peer:
    rank: int
    socket: socket.socket
    native: Connection
    """What the native engine and this module both keep of the connection."""
    sends: deque[_Message] = field(default_factory=deque)
    receives: deque[_Message] = field(default_factory=deque)
    readable: bool = True
    writable: bool = True
    farewell: Farewell | None = None
    """What it said when it left."""
    moved_s: float = 0.0
    agreed: int = 0
    """The last operation whose length, and with it the schedule, it has been heard to agree about."""
    header: bytearray = field(default_factory=lambda: bytearray(HEADER_BYTES))


class _Slots(NamedTuple):
    """Memory for messages that are to be added: replaced whole, since an exception of a signal's handler may come
    between any two steps."""

    memory: npt.NDArray[np.uint8]
    address: int


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """See :class:`transports.channels.base.CompiledSchedule`."""

    endpoint: "TcpEndpoint"
    program: TcpProgram

    def run(self, sequence: int, deadline_s: float, input: int, output: int, scratch: int) -> float | None:  # noqa: A002
        """See :class:`transports.channels.base.CompiledSchedule`."""
        return self.endpoint.execute(self.program, sequence, deadline_s, (input, output, scratch))


class TcpEndpoint:
    """See :class:`transports.channels.base.Endpoint`."""

    def __init__(
        self,
        group: Group,
        mesh: Mesh,
        *,
        low_water_bytes: int = LOW_WATER_BYTES,
        zero_copy_bytes: int = 0,
        num_streams: int = 1,
    ) -> None:
        """Messages of schedules as long as `zero_copy_bytes` are sent without a copy; 0: none. `num_streams` are the
        connections for each peer."""
        self._group = group
        self._low_water_bytes = low_water_bytes
        self.num_unknown_connections = mesh.num_unknown_connections
        self._peers = {
            number: Peer(
                rank=number % group.size,
                socket=connection,
                native=Connection(socket=connection.fileno(), low_water=1),
            )
            for number, connection in sorted(mesh.sockets.items())
        }
        self._by_descriptor = {peer.socket.fileno(): peer for peer in self._peers.values()}
        self._epoll = select.epoll()
        self._wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_descriptor, select.EPOLLIN)
        for peer in self._peers.values():
            peer.socket.setblocking(False)
            self._epoll.register(peer.socket.fileno(), _EVENTS)
        self._engine = Engine(
            epoll=self._epoll.fileno(),
            wake=self._wake_descriptor,
            num_streams=num_streams,
            low_water_bytes=low_water_bytes,
            zero_copy_bytes=zero_copy_bytes,
        )
        self._num_tokens = 0
        self._completions: list[Completion] = []
        self._sequence = 0
        self._error: TransportError | None = None
        self._woken = False
        self._polled = False
        self._closing = False
        self._closed = False
        self._driving = threading.Lock()  # held inside progress(): close() waits until the driver has left it
        self._driver = 0
        """The thread that is in the middle of a schedule."""
        self._descriptors = threading.Lock()  # nobody may use a descriptor while close() gives it back
        self._num_ending = 0
        self._is_stale = False
        self._slots = _Slots(np.empty(0, np.uint8), 0)
        self._last_statistics: dict[int, PeerStatistics] = {}
        self._last_congestion: dict[int, str] = {}
        _OPEN.add(self)

    def post_send(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        state = self._peers[peer]
        message = self._message(state, header, view)
        state.sends.append(message)
        return message.token

    def post_receive(self, peer: int, header: Header, view: memoryview) -> Token:
        """See :class:`Endpoint`."""
        state = self._peers[peer]
        message = self._message(state, header, view)
        state.receives.append(message)
        return message.token

    def _message(self, peer: Peer, header: Header, view: memoryview) -> _Message:
        assert len(view) == header.count * DTYPE_BYTES[header.dtype], f"{len(view)} bytes for {describe(header)}"
        if header.operation != POINT_TO_POINT:
            self._sequence = header.sequence
        if not peer.sends and not peer.receives:
            peer.moved_s = time.monotonic()
        self._num_tokens += 1
        return _Message(
            token=self._num_tokens,
            header=header,
            packed=pack_header(header),
            view=view,
            total_bytes=HEADER_BYTES + len(view),
        )

    def skip(self, sequence: int) -> None:
        """See :class:`Endpoint`."""
        self._sequence = sequence

    def progress(self, deadline_s: float, until_s: float = math.inf) -> Sequence[Completion]:
        """See :class:`Endpoint`."""
        with self._driving:
            try:
                return self._progress(deadline_s, until_s)
            except TransportError as error:
                self._error = error
                raise

    def _progress(self, deadline_s: float, until_s: float) -> Sequence[Completion]:
        # What the last call learned and did not use up is news enough, once: two calls never go without a look.
        wait_s: float = 0.0
        if self._is_stale:  # what epoll said during a schedule it will not say again
            self._is_stale = False
            for peer in self._peers.values():
                peer.readable = peer.writable = True
        look = not self._polled
        while True:
            self._check_alive()
            if look:
                self._poll(wait_s)
            self._polled, look = look, True
            for peer in self._peers.values():
                if peer.farewell is not None:
                    self._check_departure(peer, peer.farewell)
                if peer.writable and peer.sends:
                    self._write(peer)
                if peer.readable and peer.receives:
                    self._read(peer)
            if self._completions or self._woken:
                completions, self._completions = self._completions, []
                self._woken = False
                return completions
            wait_s = min(deadline_s, until_s) - time.monotonic()
            if wait_s <= 0:
                if until_s < deadline_s:
                    return []
                raise self._timeout()

    def compile(
        self, steps: Sequence[Step], order: Dependencies, header: Header, reduction: int
    ) -> CompiledProgram | None:
        """See :class:`Endpoint`. None where there is no C compiler, or nothing to do."""
        if not steps or native.library() is None:
            return None
        program = TcpProgram(steps, order, header, reduction, self._engine)
        program.place([self._carrier(lane).native for lane in program.lanes])
        return CompiledProgram(self, program)

    def execute(
        self, program: TcpProgram, sequence: int, deadline_s: float, addresses: tuple[int, int, int]
    ) -> float | None:
        """A whole schedule, natively: see :meth:`transports.channels.base.CompiledSchedule.run`."""
        self._driver = threading.get_ident()  # before it is locked out: a signal's handler may close at any point
        try:
            with self._driving:
                return self._execute(program, sequence, deadline_s, addresses)
        except TransportError as error:
            self._error = error
            raise
        finally:
            self._driver = 0

    def _execute(
        self, program: TcpProgram, sequence: int, deadline_s: float, addresses: tuple[int, int, int]
    ) -> float | None:
        self._check_alive()
        self._sequence = sequence
        self._is_stale = True
        if program.has_begun(sequence):  # of whom has left since then all may be here
            outcome = program.resume()
        else:
            if self._num_ending:
                self._check_departures(program)
            self._assign(program)
            slots = self._memory(program.slots_bytes)
            outcome = program.begin(sequence, int(min(deadline_s, _FOREVER_S) * 1e9), slots, addresses)
        while outcome != native.DONE:
            self._look_into(program, outcome)
            self._check_alive()
            outcome = program.resume()
        self._count(program)
        if self._num_ending:
            for peer in self._peers.values():
                if peer.native.ending:
                    self._examine(peer)
        first_ns: int = program.run.first_ns
        return first_ns / 1e9 if first_ns else None

    def _carrier(self, lane: LaneName) -> Peer:
        """The connection that a lane of a schedule takes now."""
        return self._peers[lane.peer]

    def _assign(self, program: TcpProgram) -> None:
        """Have the lanes of a schedule that is about to begin take their connections: always the same ones here."""

    def _count(self, program: TcpProgram) -> None:
        """A schedule is done, which may be heard more than once: where connections are taken in turn, whose turn it is
        next."""

    def _memory(self, num_bytes: int) -> int:
        """The address of so much memory for messages that are to be added, kept from schedule to schedule."""
        if len(self._slots.memory) < num_bytes:
            memory = np.empty(num_bytes, np.uint8)
            self._slots = _Slots(memory, memory.ctypes.data)
        return self._slots.address

    def _check_departures(self, program: TcpProgram) -> None:
        """Raises PeerLostError where somebody has left who is to take part in the schedule, or has missed one."""
        for peer in self._peers.values():
            if peer.farewell is not None:
                owes = any(lane.peer == peer.rank for lane in program.lanes)
                if owes or self._sequence > peer.farewell.after:
                    raise left(peer.rank, peer.farewell, self._group.rank)

    def _look_into(self, program: TcpProgram, outcome: int) -> None:
        """Whatever the native engine leaves to us. Raises what is an error."""
        run = program.run
        if outcome == native.WOKEN:
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake_descriptor)
        elif outcome == native.ENDING:
            for descriptor in run.ended[: run.num_ended]:
                self._note_end(program, self._by_descriptor[descriptor])
        elif outcome == native.LATE:
            raise self._lateness(program)
        else:
            peer, state = self._carrier(program.lanes[run.failed_peer]), program.states[run.failed_peer]
            if outcome == native.LOST:
                raise self._lost(peer, os.strerror(state.error) if state.error else _CLOSED)
            peer.header[:] = state.header
            raise self._mismatch(peer, self._header_of(program, run.failed_peer))

    def _note_end(self, program: TcpProgram, peer: Peer) -> None:
        """A peer has ended its side. Raises PeerLostError unless all that it owes us is here, to be read, and
        FrameMismatchError where it said something else before."""
        self._mark_ending(peer)
        numbers = [number for number, lane in enumerate(program.lanes) if self._carrier(lane) is peer]
        unfinished = [number for number in numbers if program.awaits(number)]
        owed_bytes = sum(program.owed_bytes(number) for number in unfinished if not program.lanes[number].sends)
        if owed_bytes > _num_unread(peer.socket) and _has_ended(peer.socket):
            raise self._disagreement(program, peer, unfinished) or self._lost(peer, _CLOSED)
        if all(program.lanes[number].sends for number in unfinished):
            self._examine(peer)
            if peer.farewell is not None and (unfinished or self._sequence > peer.farewell.after):
                raise left(peer.rank, peer.farewell, self._group.rank)

    def _disagreement(self, program: TcpProgram, peer: Peer, unfinished: Sequence[int]) -> TransportError | None:
        """How what a peer said before it ended differs from what was awaited of it, read or not: that explains its
        end, and must not depend on which of the two is noticed first. None where it said nothing else."""
        unread, header = _unread(peer.socket), program.header._replace(sequence=self._sequence)
        for number in unfinished:
            if program.lanes[number].sends:
                continue
            state = program.states[number]
            position = int(state.moved)
            stream = bytes(state.header[: min(position, HEADER_BYTES)]).ljust(position, b"\0") + unread
            start = 0
            for phase, count, num_bytes in program.awaited(number):
                said = stream[start : start + HEADER_BYTES]
                expected = header._replace(phase=phase, count=count)
                if len(said) == HEADER_BYTES and said != pack_header(expected):
                    peer.header[:] = said
                    return self._mismatch(peer, expected)
                start += HEADER_BYTES + num_bytes
        return None

    def _lateness(self, program: TcpProgram) -> TransportError:
        """As :meth:`_timeout`."""
        lanes, states = program.lanes, program.states
        ready = [number for number in range(len(lanes)) if program.is_ready(number)]
        if not ready:
            return TransportError("timed out with nothing under way")
        number = min(ready, key=lambda each: (lanes[each].sends, states[each].moved_ns))
        silent_s = time.monotonic() - states[number].moved_ns / 1e9
        return PeerTimeoutError(lanes[number].peer, silent_s, describe(self._header_of(program, number)))

    def _header_of(self, program: TcpProgram, number: int) -> Header:
        """Of the message that a lane is at."""
        position, count = program.under_way(number)
        return program.header._replace(sequence=self._sequence, phase=position, count=count)

    def _mark_ending(self, peer: Peer) -> None:
        """It will say nothing more than what the kernel holds of it."""
        self._num_ending += not peer.native.ending
        peer.native.ending = 1

    def peek(self, peer: int, deadline_s: float) -> Header | None:
        """See :class:`Endpoint`."""
        with self._driving:
            try:
                return self._peek(self._peers[peer], deadline_s)
            except TransportError as error:
                self._error = error
                raise

    def _peek(self, peer: Peer, deadline_s: float) -> Header | None:
        assert not peer.receives, "what is awaited is not peeked at"
        while True:
            self._check_alive()
            try:
                first = peer.socket.recv(HEADER_BYTES, socket.MSG_PEEK)
            except BlockingIOError:
                first = None
            except OSError as error:
                raise PeerLostError(peer.rank, error.strerror or str(error)) from error
            if first is not None and len(first) == HEADER_BYTES:
                header = unpack_header(first)
                if header.operation != GOODBYE:
                    return header
                require_finished(peer.rank, Farewell.of(header), self._group.rank)
                return None
            if first == b"" or (first and peer.native.ending):
                raise PeerLostError(peer.rank, "it closed the connection")
            self._await_bytes(peer, HEADER_BYTES)
            wait_s = deadline_s - time.monotonic()
            if wait_s <= 0:
                raise PeerTimeoutError(peer.rank, time.monotonic() - peer.moved_s, "its next message")
            self._poll(wait_s)

    def _check_alive(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closing:
            raise TransportError(f"rank {self._group.rank} closed the group itself")

    def _poll(self, wait_s: float) -> None:
        for descriptor, event in self._epoll.poll(None if wait_s == math.inf else wait_s):
            peer = self._by_descriptor.get(descriptor)
            if peer is None:
                os.eventfd_read(self._wake_descriptor)
                self._woken = True
                continue
            if event & select.EPOLLIN:
                peer.readable = True
            if event & select.EPOLLOUT:
                peer.writable = True
            if event & _ENDING:
                peer.readable = True
                self._mark_ending(peer)
                self._examine(peer)

    def _write(self, peer: Peer) -> None:
        buffers: list[bytes | memoryview] = []
        num_bytes = 0
        for message in peer.sends:
            moved = message.moved_bytes
            if moved < HEADER_BYTES:
                buffers += (message.packed[moved:], message.view)
            else:
                buffers.append(message.view[moved - HEADER_BYTES :])
            num_bytes += message.total_bytes - moved
            if num_bytes >= GATHER_BYTES or len(buffers) + 2 > GATHER_BUFFERS:
                break
        try:
            sent = peer.socket.sendmsg(buffers)
        except BlockingIOError:
            peer.writable = False
            return
        except OSError as error:
            raise self._lost(peer, error.strerror or str(error)) from error
        peer.writable = sent == num_bytes  # less: the socket's buffer is full, and epoll will say when it is not
        peer.native.sent_bytes += sent
        peer.moved_s = time.monotonic()
        while sent:
            message = peer.sends[0]
            moved = min(sent, message.total_bytes - message.moved_bytes)
            message.moved_bytes += moved
            sent -= moved
            if message.moved_bytes == message.total_bytes:
                peer.sends.popleft()
                self._completions.append(Completion(message.token))

    def _read(self, peer: Peer) -> None:
        """Read at most one message, so that it is used while it is in the cache."""
        message = peer.receives[0]
        moved = message.moved_bytes
        wanted = message.total_bytes - moved
        try:
            if moved >= HEADER_BYTES:
                got = peer.socket.recv_into(message.view[moved - HEADER_BYTES :])
            else:
                got = peer.socket.recvmsg_into([memoryview(peer.header)[moved:], message.view])[0]
        except BlockingIOError:
            self._await(peer, message)
            return
        except OSError as error:
            raise self._lost(peer, error.strerror or str(error)) from error
        if got == 0:
            raise self._lost(peer, _CLOSED)
        message.moved_bytes += got
        peer.native.received_bytes += got
        peer.moved_s = time.monotonic()
        if moved < HEADER_BYTES <= message.moved_bytes:
            if peer.header != message.packed:
                raise self._mismatch(peer, message.header)
            if message.header.total:
                peer.agreed = message.header.sequence
        if got == wanted:
            peer.receives.popleft()
            self._completions.append(Completion(message.token))
            if peer.native.ending and not peer.receives:
                self._examine(peer)
            return
        if peer.native.ending:
            self._read(peer)  # the rest is here already, and epoll will say nothing more: read up to the end
        else:
            self._await(peer, message)  # a short read: the kernel has no more for now

    def _await(self, peer: Peer, message: _Message) -> None:
        """Nothing to read until epoll says so: when the rest of the header is there, or of the message.

        Not the whole message at once, for what comes instead of it may be shorter, unless an earlier message of the
        operation has shown that this peer and we follow the same schedule.
        """
        header = message.header
        agreed = header.total > 0 and peer.agreed == header.sequence
        whole = agreed or message.moved_bytes >= HEADER_BYTES
        self._await_bytes(peer, (message.total_bytes if whole else HEADER_BYTES) - message.moved_bytes)

    def _await_bytes(self, peer: Peer, low_water_bytes: int) -> None:
        peer.readable = False
        low_water_bytes = min(low_water_bytes, self._low_water_bytes)
        if low_water_bytes != peer.native.low_water:
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water_bytes)
            peer.native.low_water = low_water_bytes

    def _mismatch(self, peer: Peer, expected: Header) -> TransportError:
        try:
            sent = unpack_header(peer.header)
        except FrameMismatchError as error:
            return FrameMismatchError(
                f"rank {peer.rank} sends what is {error}; rank {self._group.rank} expects {describe(expected)}"
            )
        if sent.operation == GOODBYE:
            return left(peer.rank, Farewell.of(sent), self._group.rank)
        return mismatch(sender=peer.rank, sent=sent, receiver=self._group.rank, expected=expected)

    def _examine(self, peer: Peer) -> None:
        """A peer has ended its side. Without a word, or with one? While receives are posted, reading them tells."""
        if peer.receives or peer.farewell is not None:
            return
        try:
            unread = peer.socket.recv(HEADER_BYTES + 1, socket.MSG_PEEK)
        except BlockingIOError:
            return  # no end: what epoll reported was the end of a send without a copy
        except OSError as error:
            raise self._lost(peer, error.strerror or str(error)) from error
        if len(unread) == HEADER_BYTES:
            peer.farewell = _close_frame(peer.socket)
        elif not unread:
            raise self._lost(peer, _CLOSED)

    def _lost(self, peer: Peer, reason: str) -> PeerLostError:
        """The error for a peer whose connection is of no use any more: its close frame, if it is there, tells more.

        One that ended without a word may have had to, in the middle of a message, because of another: then the close
        frame of that other tells who left first, whichever end was noticed here first.
        """
        farewell = peer.farewell or _close_frame(peer.socket)
        if farewell is not None:
            return left(peer.rank, farewell, self._group.rank)
        for other in self._peers.values():
            farewell = other.farewell or (_close_frame(other.socket) if _has_ended(other.socket) else None)
            if farewell is not None and self._sequence > farewell.after:
                return left(other.rank, farewell, self._group.rank)
        return PeerLostError(peer.rank, reason)

    def _check_departure(self, peer: Peer, farewell: Farewell) -> None:
        if self._sequence > farewell.after or peer.sends or peer.receives:
            raise left(peer.rank, farewell, self._group.rank)

    def _timeout(self) -> TransportError:
        """Blame the peer that has been silent longest among those something is expected of."""
        busy = [peer for peer in self._peers.values() if peer.receives or peer.sends]
        if not busy:
            return TransportError("timed out with nothing under way")
        peer = min(busy, key=lambda candidate: (not candidate.receives, candidate.moved_s))
        message = (peer.receives or peer.sends)[0]
        return PeerTimeoutError(peer.rank, time.monotonic() - peer.moved_s, describe(message.header))

    @property
    def zero_copy_counts(self) -> tuple[int, int]:
        """Sends without a copy, and those among them for which the kernel made one after all."""
        peers = self._peers.values()
        return sum(peer.native.num_zero_copy for peer in peers), sum(peer.native.num_copied for peer in peers)

    def departure(self, peer: int) -> Departure | None:
        """See :class:`Endpoint`."""
        with self._descriptors:
            if self._closed:
                return None
            connections = [state.socket for state in self._peers.values() if state.rank == peer]
            found = [departure for each in connections if (departure := _departure(each)) is not None]
        return min(found, key=lambda each: each.in_order, default=None)

    def wake(self) -> None:
        """See :class:`Endpoint`."""
        with self._descriptors:
            if not self._closed:
                os.eventfd_write(self._wake_descriptor, 1)

    def let_go(self) -> None:
        """See :class:`Endpoint`. Nobody but :meth:`progress` touches posted views."""

    def statistics(self) -> dict[int, PeerStatistics]:
        """See :class:`Endpoint`. After `close`, the final counts."""
        with self._descriptors:
            return self._last_statistics if self._closed else self._read_statistics()

    def _read_statistics(self) -> dict[int, PeerStatistics]:
        statistics: dict[int, PeerStatistics] = {}
        for peer in self._peers.values():
            info = read_tcp_info(peer.socket)
            total = statistics.setdefault(peer.rank, PeerStatistics())
            total.payload_bytes_sent += peer.native.sent_bytes
            total.payload_bytes_received += peer.native.received_bytes
            total.acknowledgement_bytes_sent += info.acknowledgement_bytes_out
            total.retransmitted_bytes += info.bytes_retransmitted
        return statistics

    def congestion(self) -> dict[int, str]:
        """See :class:`Endpoint`. After `close`, what it was."""
        with self._descriptors:
            return self._last_congestion if self._closed else self._read_congestion()

    def _read_congestion(self) -> dict[int, str]:
        return {peer.rank: congestion_of(peer.socket) for peer in self._peers.values()}

    def close(self, cause: TransportError | None = None) -> None:
        """See :class:`Endpoint`. `cause` is why, where whoever uses this endpoint knows it and this one does not."""
        self._closing = True
        self.wake()
        if self._driver == threading.get_ident():
            return  # called by a signal's handler: the schedule ends where it goes on, and then the group is closed
        with self._driving:
            if self._closed:
                return
            self._error = self._error or cause
            self._say_goodbye()
            with self._descriptors:
                self._last_statistics = self._read_statistics()
                self._last_congestion = self._read_congestion()
                self._closed = True
                if any(self.zero_copy_counts):
                    _log.info(
                        "zero_copy: %d sends without a copy; for %d of them the kernel made one", *self.zero_copy_counts
                    )
                _OPEN.discard(self)
                for peer in self._peers.values():
                    peer.socket.close()
                self._epoll.close()
                os.close(self._wake_descriptor)

    def abandon(self) -> None:
        """In a forked child: give back its copies of the descriptors, unnoticed by the peers. With a copy left open
        in, say, a data loader's worker, nobody would see the end of the parent's connections."""
        for peer in self._peers.values():
            peer.socket.close()
        self._epoll.close()

    def _say_goodbye(self) -> None:
        busy = any(peer.sends or peer.receives for peer in self._peers.values())
        in_order = self._error is None and not busy
        finished = self._sequence if in_order else max(self._sequence - 1, 0)
        goodbye = Farewell.because(finished, self._error).pack(self._group.name)
        speechless: list[Peer] = []
        for peer in self._peers.values():
            in_message = peer.native.cut_short or (bool(peer.sends) and peer.sends[0].moved_bytes > 0)
            if in_message and not peer.native.ending:
                speechless.append(peer)
            elif not peer.native.ending:
                peer.socket.settimeout(self._group.timeout_s if in_order else 0)
                try:
                    peer.socket.sendall(goodbye)
                except OSError:  # it may be gone, or its buffer full of what it never read
                    speechless.append(peer)
        if isinstance(self._error, PeerLostError):
            self._let_notice(speechless)

    @staticmethod
    def _let_notice(peers: Sequence[Peer]) -> None:
        """In the middle of a message nothing else can be said, and who only sees this connection end takes it for the
        cause. So it ends a little later: the others notice by themselves whom we have lost, and end theirs."""
        deadline_s = time.monotonic() + NOTICE_S
        for peer in peers:
            while not _has_ended(peer.socket) and time.monotonic() < deadline_s:
                time.sleep(_NOTICE_POLL_S)  # poll(2) would wake for what zero copy tells, too


def _departure(connection: socket.socket) -> Departure | None:
    """How the other side of a connection has ended it, whatever is unread."""
    if not _has_ended(connection):
        return None
    return Departure(False, _CLOSED) if _close_frame(connection) is None else Departure(True, "it closed the group")


def _has_ended(connection: socket.socket) -> bool:
    """Whether the other side has: nothing more will come than what is here."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return any(event & (select.POLLRDHUP | select.POLLHUP) for _, event in poll.poll(0))


def _num_unread(connection: socket.socket) -> int:
    """Bytes that have come and have not been read (FIONREAD in tcp(7))."""
    found = array.array("i", [0])
    fcntl.ioctl(connection.fileno(), termios.FIONREAD, found)
    return found[0]


def _unread(connection: socket.socket) -> bytes:
    """What has come and has not been read, and stays so; empty where a reset has thrown it away."""
    try:
        return connection.recv(_num_unread(connection), socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return b""


def _close_frame(connection: socket.socket) -> Farewell | None:
    """What the other side said last, if that was goodbye and has not been read."""
    unread = _unread(connection)
    try:
        last = unpack_header(unread[-HEADER_BYTES:]) if len(unread) >= HEADER_BYTES else None
    except FrameMismatchError:
        return None
    return Farewell.of(last) if last is not None and last.operation == GOODBYE else None


_OPEN: Final[WeakSet[TcpEndpoint]] = WeakSet()


def _abandon_all() -> None:
    for endpoint in _OPEN:
        endpoint.abandon()


os.register_at_fork(after_in_child=_abandon_all)
