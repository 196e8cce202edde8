"""p4app-switchML's switch: the registers of its P4 program and the worker table of its controller. No I/O.

What a datagram of a worker meets, `w` the worker's bit, `before` the bitmap of its set of the slot (bitmap_checker.p4,
workers_counter.p4, processor.p4, exponents.p4, next_step_selector.py):

- the worker's bit is set in the datagram's set and cleared in the slot's other set;
- `before` is 0: its elements and exponents are written; else `before & w` is 0: elements are added, modulo 2^32, and
  exponents replaced by the higher ones; else it is a retransmission and changes nothing;
- a first transmission counts `count` from 0 to n - 1 or else down by one, and who finds 1 there was the last of the n:
  everybody gets the sum. A retransmission that finds 0 is answered with it. All else is dropped.

Nothing clears a set but its workers' transmissions to the other one, and a new session. So a worker that begins anew,
and datagrams that overtake each other, may complete a sum that is nobody's: the original cannot tell, and sends it.
Here it is sent, too, and counted as `mixed`. An element that left the range of 32 bits is counted as `wrapped`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from switch_agg.aggregator import NUM_GAPS, Counters, Stragglers
from switch_agg.clock import machine_s
from switch_agg.core import Datagram
from switch_agg.errors import JobError, WireError
from switch_agg.job import Job
from switch_agg.switchml.wire import NUM_ELEMENTS, Packet, decode

MAX_WORKERS: Final = 32
"""configuration.p4, max_num_workers."""
NUM_SLOTS: Final = 8192
"""configuration.p4, num_slots: register_size 16384, for two sets."""
NUMBER: Final = 0
"""Of the one job that there can be (the controller: "Single session supported for now")."""


class Membership(NamedTuple):
    """What a client says of itself and its session (UdpSessionRequest)."""

    session: int
    rank: int
    num_workers: int
    num_elements: int
    host: str


@dataclass(slots=True)
class _Session:
    """The worker table."""

    identifier: int
    num_workers: int
    num_elements: int
    hosts: dict[int, str] = field(default_factory=dict)
    """By rank."""
    ranks: dict[str, int] = field(default_factory=dict)
    """By host."""
    gaps: list[int] = field(default_factory=lambda: [0] * NUM_GAPS)
    last: list[int] = field(default_factory=lambda: [0] * MAX_WORKERS)

    @property
    def everybody(self) -> int:
        return (1 << self.num_workers) - 1


@dataclass(slots=True)
class _Set:
    """One set of a slot's registers, and what tells whether its sum is one."""

    sums: npt.NDArray[np.int64]
    """Modulo 2^32 they are the program's register; their high half tells what left it."""
    count: int = 0
    exponents: tuple[int, int] = (0, 0)
    added: int = 0
    """Contributions in the sum that have not been given out."""
    members: int = 0
    """Bitmap of the workers whose contributions are in the sum."""
    tag: tuple[int, int] = (0, 0)
    """tsi and job_number of the contribution that was written."""
    sound: bool = True
    """Whether all others had that tag, and none came twice."""
    first_s: float = 0.0
    paths: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By rank: the worker's port, that of the thread whose slot it is, and the port of ours that it sent to."""


class SwitchMLProgram:
    """One session at a time; implements switch_agg.core.Core."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.num_sessions = 0
        """That have begun."""
        self._session: _Session | None = None
        self._bitmaps: dict[int, list[int]] = {}
        """By slot: of its two sets."""
        self._sets: dict[tuple[int, int], _Set] = {}
        """By slot and set; made when first used."""
        self._outbox: list[Datagram] = []

    # -- the controller -----------------------------------------------------------------------------------------------

    def admit(self, member: Membership) -> None:
        """Take a worker into the table; that of rank 0 clears everything first (controller/grpc_server.py,
        switchml.py). Raises JobError, and has changed nothing, for a worker that cannot be: the original has it wait
        for ever, or lets it spoil the sums of others."""
        _check(member)
        if member.rank == 0:
            self.clear()
            self._session = _Session(member.session, member.num_workers, member.num_elements)
            self.num_sessions += 1
        session = self._joinable(member)
        session.hosts[member.rank] = member.host
        session.ranks[member.host] = member.rank

    def clear(self) -> None:
        """Forget the session and clear every register."""
        self.counters.discarded += self.in_flight
        self._session = None
        self._bitmaps.clear()
        self._sets.clear()
        self._outbox.clear()

    def _joinable(self, member: Membership) -> _Session:
        """The session. Raises JobError when it is not this member's."""
        session = self._session
        if session is None:
            raise JobError(f"session_id: rank 0 has begun no session, not {member.session:#x} either")
        if session.identifier != member.session:
            begun = f"rank 0 has begun {session.identifier:#x}"
            raise JobError(f"session_id: {member.session:#x} is over, {begun}; start all clients anew")
        for name, own, other in (
            ("num_workers", member.num_workers, session.num_workers),
            ("packet_size", f"{member.num_elements} elements", f"{session.num_elements} elements"),
        ):
            if own != other:
                raise JobError(f"{name}: rank {member.rank} says {own}, rank 0 said {other}")
        taken = session.hosts.get(member.rank, member.host)
        if taken != member.host:
            raise JobError(f"rank: {member.rank} is {taken}'s, and {member.host} says that it is its own")
        rank = session.ranks.get(member.host, member.rank)
        if rank != member.rank:
            raise JobError(
                f"ipv4: {member.host} is rank {rank} and cannot be rank {member.rank}: datagrams tell workers by it"
            )
        return session

    # -- what it is doing ---------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The session, once all of its workers are known."""
        session = self._session
        if session is None or len(session.hosts) < session.num_workers:
            return ()
        hosts = tuple(session.hosts[rank] for rank in range(session.num_workers))
        return (Job(number=NUMBER, workers=hosts, num_elements=session.num_elements, num_slots=NUM_SLOTS),)

    @property
    def session(self) -> int | None:
        """Its number, which rank 0 has drawn; None when there is none."""
        return None if self._session is None else self._session.identifier

    @property
    def in_flight(self) -> int:
        """Contributions to sums that have not been given out."""
        return sum(each.added for each in self._sets.values())

    def busy_slots(self, number: int) -> int:
        """Slots that hold such contributions. Raises JobError."""
        self._served(number)
        return len({slot for (slot, _), each in self._sets.items() if each.added})

    def stragglers(self, number: int) -> Stragglers:
        """Who lets the others wait. Raises JobError."""
        session = self._served(number)
        return Stragglers(gaps=tuple(session.gaps), last=tuple(session.last[: session.num_workers]))

    def rank_of(self, host: str) -> int | None:
        """A worker's rank, by its address; None for whoever is none."""
        return None if self._session is None else self._session.ranks.get(host)

    def _served(self, number: int) -> _Session:
        if self._session is None or number != NUMBER:
            raise JobError(f"job {number} is not being served; there is: {'none' if self._session is None else NUMBER}")
        return self._session

    # -- the core's five calls ----------------------------------------------------------------------------------------

    def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
        """Datagrams have come."""
        for datagram in datagrams:
            self.counters.rx += 1
            try:
                self._handle(datagram, now_s)
            except WireError as error:
                setattr(self.counters, error.reason, getattr(self.counters, error.reason) + 1)

    def transmit(self, now_s: float) -> Sequence[Datagram]:  # noqa: ARG002 - whatever there is goes at once
        """What to send now."""
        outbox, self._outbox = self._outbox, []
        return outbox

    def deadline_s(self) -> float | None:
        """The program has no timer."""
        return None

    def expire(self, now_s: float) -> None:
        """Never called."""

    # -- datagrams ----------------------------------------------------------------------------------------------------

    def _handle(self, datagram: Datagram, now_s: float) -> None:
        """One datagram. Raises WireError for one that the session cannot use."""
        packet = decode(datagram.data)
        session = self._session
        if session is None:
            raise WireError("bad_job", "there is no session")
        host, port = datagram.peer
        rank = session.ranks.get(host)
        if rank is None:
            raise WireError("bad_worker", f"{host} is no worker of the session")
        if NUM_ELEMENTS[packet.size] != session.num_elements:
            raise WireError("bad_size", f"the session has {session.num_elements} elements")
        if packet.slot >= NUM_SLOTS:
            raise WireError("bad_slot", f"the switch has {NUM_SLOTS} slots")
        bit, tag = 1 << rank, (packet.tsi, packet.job_number)
        registers = self._registers(packet, session)
        registers.paths[rank] = port, datagram.local_port
        before = self._update_bitmap(packet, bit)
        if before & bit:
            self._repeat(session, registers, packet, rank, tag)
            return
        self.counters.fresh += 1
        if before == 0:
            self._write(registers, packet, tag, now_s)
        else:
            registers.sums += packet.elements
            registers.exponents = _highest(registers.exponents, packet.exponents)
            registers.sound &= registers.tag == tag and not registers.members & bit
        registers.added += 1
        registers.members |= bit
        if self._count(session, registers):
            self._complete(session, registers, packet, rank, now_s)

    def _registers(self, packet: Packet, session: _Session) -> _Set:
        key = packet.slot, packet.pool_set
        found = self._sets.get(key)
        if found is None:
            found = self._sets[key] = _Set(np.zeros(session.num_elements, np.int64))
        return found

    def _update_bitmap(self, packet: Packet, bit: int) -> int:
        """The bitmap of the packet's set as it was."""
        bitmaps = self._bitmaps.setdefault(packet.slot, [0, 0])
        before = bitmaps[packet.pool_set]
        bitmaps[packet.pool_set] |= bit
        bitmaps[1 - packet.pool_set] &= ~bit
        return before

    def _write(self, registers: _Set, packet: Packet, tag: tuple[int, int], now_s: float) -> None:
        """The first contribution since everybody's bit was cleared."""
        self.counters.discarded += registers.added
        registers.sums[:] = packet.elements
        registers.exponents = packet.exponents
        registers.added = registers.members = 0
        registers.tag, registers.sound, registers.first_s = tag, True, now_s

    @staticmethod
    def _count(session: _Session, registers: _Set) -> bool:
        """Whether that was the last first transmission of the n (workers_counter.p4)."""
        if session.num_workers == 1:
            return True
        found = registers.count
        registers.count = (found or session.num_workers) - 1
        return found == 1

    def _complete(self, session: _Session, registers: _Set, packet: Packet, rank: int, now_s: float) -> None:
        """Everybody gets the sum, with the tsi and job number of the packet that completed it."""
        session.gaps[min(NUM_GAPS - 1, int(machine_s(now_s - registers.first_s) * 1e6).bit_length())] += 1
        session.last[rank] += 1
        result, wrapped = _result(registers, packet)
        self.counters.done += 1
        self.counters.contributions_done += registers.added
        self.counters.wrapped += wrapped
        self.counters.mixed += not registers.sound or registers.members != session.everybody
        registers.added = 0
        for each in range(session.num_workers):
            self._send(session, each, registers.paths.get(each, registers.paths[rank]), result)

    def _repeat(self, session: _Session, registers: _Set, packet: Packet, rank: int, tag: tuple[int, int]) -> None:
        """A retransmission: answered once the sum is there, with the tsi and job number that it has itself."""
        if registers.count and session.num_workers > 1:
            self.counters.duplicate_pending += 1
            return
        self.counters.duplicate_done += 1
        sound = registers.sound and registers.tag == tag and registers.members == session.everybody
        self.counters.mixed += not sound
        self._send(session, rank, registers.paths[rank], _result(registers, packet)[0])

    def _send(self, session: _Session, rank: int, path: tuple[int, int], data: bytes) -> None:
        """To the port that the worker's contribution came from, from the port that it came to."""
        host = session.hosts.get(rank)
        if host is not None:  # else it completes what workers that joined before it have begun
            self._outbox.append(Datagram((host, path[0]), data, local_port=path[1]))


def _check(member: Membership) -> None:
    """Raises JobError for what no session has."""
    if not 1 <= member.num_workers <= MAX_WORKERS:
        raise JobError(f"num_workers: 1 to {MAX_WORKERS} (got {member.num_workers})")
    if not 0 <= member.rank < member.num_workers:
        raise JobError(f"rank: 0 to {member.num_workers - 1}, of {member.num_workers} workers (got {member.rank})")
    if member.num_elements not in NUM_ELEMENTS.values():
        raise JobError(
            f"packet_size: {' or '.join(map(str, NUM_ELEMENTS.values()))} elements (got {member.num_elements})"
        )


def _highest(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), max(one[1], other[1])


def _result(registers: _Set, packet: Packet) -> tuple[bytes, bool]:
    """The answer to that packet, and whether an element has wrapped around."""
    elements = registers.sums.astype(np.int32)
    wrapped = bool((elements != registers.sums).any())
    return packet._replace(exponents=registers.exponents, elements=elements).encode(), wrapped
