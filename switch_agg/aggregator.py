"""The aggregator's end of the protocol: adds each worker's contribution to each chunk exactly once. No I/O.

Every slot has two versions. A worker contributes chunk k + P (P the pool) only after it has the result of chunk k, and
k + P uses the other version of the slot: so while the result of k may not have reached everybody, k's version keeps it
and can send it again; and what begins chunk k + 2P in it proves that everybody has it. Within a version a bitmap keeps
repeated contributions out, and the chunk number keeps out those that were long under way: p4app-switchML has no such
guard and its sums are wrong when packets are reordered.

What a contribution meets, and what is done (`n` workers; docs/protocol.md shows the same table):
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from switch_agg.clock import machine_s
from switch_agg.core import Address, Datagram
from switch_agg.epochs import Epochs
from switch_agg.errors import JobError, WireError
from switch_agg.job import MAX_WORKERS, Job
from switch_agg.payload import Payload
from switch_agg.wire import (
    CARRYING,
    EXPONENT_ZERO,
    MAX_SLOTS,
    Kind,
    Packet,
    decode,
    is_newer,
)

TRANSITIONS: Final = (
    ("of another epoch, or from a port that has not joined", "stale", "answer RESET with the epoch"),
    ("older than the version's chunk", "stale", "drop"),
    ("newer, and some worker may not have the version's result yet", "held", "drop: the worker repeats it"),
    ("newer, or the version is unused", "fresh", "clear the version, add"),
    ("the same chunk, worker not in the bitmap", "fresh", "add; the n-th: send the result to everybody"),
    ("the same chunk, worker not in the bitmap, partial result sent", "late", "send the worker the result"),
    ("the same chunk, worker in the bitmap, no result yet", "duplicate_pending", "drop"),
    ("the same chunk, worker in the bitmap, result known", "duplicate_done", "send the worker the result"),
)
"""(what a contribution meets, the counter that counts it, what is done). docs/protocol.md is checked against it."""

NUM_GAPS: Final = 32
_INT32: Final = np.iinfo(np.int32)


@dataclass(slots=True)
class Counters:
    """What an aggregator has seen. `rx == fresh + duplicate_pending + duplicate_done + stale + late + held + bad +
    injected + from_parent` and `fresh == contributions_done + in_flight + discarded`, always."""

    rx: int = 0
    """Datagrams, apart from those of :attr:`control`."""
    control: int = 0
    """JOIN, LEAVE, RESET and PROBE."""
    fresh: int = 0
    """Contributions that were added."""
    duplicate_pending: int = 0
    duplicate_done: int = 0
    stale: int = 0
    late: int = 0
    held: int = 0
    bad_length: int = 0
    bad_kind: int = 0
    bad_format: int = 0
    bad_size: int = 0
    bad_slot: int = 0
    bad_job: int = 0
    bad_worker: int = 0
    injected: int = 0
    """Thrown away by a fault that was requested."""
    from_parent: int = 0
    """Results of the aggregator above, repeated ones included."""
    done: int = 0
    """Chunks whose result was sent for the first time."""
    partial: int = 0
    """Of those, with contributions missing."""
    contributions_done: int = 0
    """In those: workers x done without partial results."""
    discarded: int = 0
    """Contributions in unfinished chunks of an epoch that ended."""
    saturated: int = 0
    """Chunks of `done` in which an element left the range of 32 bits and was clipped."""
    wrapped: int = 0
    """Chunks of `done` in which an element left the range of 32 bits and wrapped around, as p4app-switchML's do."""
    mixed: int = 0
    """Sums sent that were not one contribution of each worker to one packet, which p4app-switchML cannot tell."""

    def copy(self) -> "Counters":
        """As they are now."""
        return replace(self)

    @property
    def bad(self) -> int:
        """Datagrams that could not be used, whatever the reason."""
        return sum(value for name, value in asdict(self).items() if name.startswith("bad_"))

    def violations(self, in_flight: int) -> list[str]:
        """Which of the two identities does not hold; `in_flight` counts contributions to unfinished chunks."""
        sorted_ = self.fresh + self.duplicate_pending + self.duplicate_done + self.stale + self.late + self.held
        sorted_ += self.bad + self.injected + self.from_parent
        added = self.contributions_done + in_flight + self.discarded
        found = [f"{self.rx} datagrams received and {sorted_} accounted for"] if self.rx != sorted_ else []
        return [*found, f"{self.fresh} contributions added and {added} accounted for"] if self.fresh != added else found


@dataclass(frozen=True, kw_only=True, slots=True)
class Stragglers:
    """Of one job's chunks: how long their last contribution came after the first, and whose it was."""

    gaps: tuple[int, ...]
    """Chunks by the number of bits of the gap in microseconds: 0, 1, 2 to 3, 4 to 7, ..."""
    last: tuple[int, ...]
    """By worker: chunks to which it contributed last."""
    partial: int = 0
    """Chunks given out without somebody's contribution; the others above are without them."""

    @property
    def chunks(self) -> int:
        """That the job has added."""
        return sum(self.gaps) + self.partial

    def wait_s(self, quantile: float) -> float | None:
        """The upper edge of that quantile's bucket; None before there is a chunk."""
        wanted, seen = quantile * sum(self.gaps), 0
        for bits, count in enumerate(self.gaps):
            seen += count
            if seen and seen >= wanted:
                return float(2**bits) * 1e-6
        return None


@dataclass(slots=True)
class _Version:
    """One half of a slot."""

    sums: npt.NDArray[np.int64]
    chunk: int = 0
    used: bool = False
    seen: int = 0
    """Bitmap of the workers that have contributed, in time or late."""
    added: int = 0
    """How many contributions are in the sum."""
    exponent: int = EXPONENT_ZERO
    saturated: bool = False
    """A contribution was: an aggregator below had to clip."""
    first_s: float = 0.0
    upward: bytes | None = None
    """The sum, sent to the aggregator above, whose result is awaited."""
    result: bytes | None = None


@dataclass(slots=True)
class _JobState:
    job: Job
    epoch: int
    index: dict[str, int]
    versions: tuple[list[_Version], list[_Version]]
    joins: dict[int, Packet] = field(default_factory=dict)
    """Of each worker that has joined this epoch, the last."""
    newest: dict[tuple[int, int], int] = field(default_factory=dict)
    """By worker and slot: the newest chunk that it has sent in this epoch."""
    ports: dict[int, int] = field(default_factory=dict)
    """Where each worker joined from last, in this epoch or an earlier one."""
    left: int = 0
    """Bitmap."""
    parent_generation: int | None = None
    joined_above: bool = False
    """Whether the aggregator above has said that it knows this one in this epoch."""
    gaps: list[int] = field(default_factory=lambda: [0] * NUM_GAPS)
    last: list[int] = field(default_factory=lambda: [0] * MAX_WORKERS)
    partial: int = 0
    """Chunks given out with contributions missing."""

    def __iter__(self) -> Iterator[_Version]:
        return (version for half in self.versions for version in half)


class Aggregator:
    """Any number of jobs; implements switch_agg.core.Core."""

    def __init__(self, *, generation: int, epochs: Epochs | None = None) -> None:
        """`generation` has 32 bits and differs after every start: by the lower 14 workers notice a restart, by all the
        aggregator above. The epochs' numbers come from `epochs`; None: from a random one on."""
        self.counters = Counters()
        self._generation = generation & 0xFFFFFFFF
        self._epochs = epochs or Epochs()
        self._jobs: dict[int, _JobState] = {}
        self._outbox: list[Datagram] = []

    # -- control ------------------------------------------------------------------------------------------------------

    def configure(self, job: Job) -> None:
        """Serve a job. Raises JobError when its number is taken or its slots are another's."""
        slots = range(job.first_slot, job.first_slot + job.num_slots)
        for other in (state.job for state in self._jobs.values()):
            if other.number == job.number:
                raise JobError(f"job {job.number} is being served")
            theirs = range(other.first_slot, other.first_slot + other.num_slots)
            if slots.start < theirs.stop and theirs.start < slots.stop:
                raise JobError(f"slots {slots.start} to {slots.stop - 1} of job {job.number} are job {other.number}'s")
        halves = tuple(
            [_Version(sums=np.zeros(job.num_values, np.int64)) for _ in range(job.num_slots)] for _ in range(2)
        )
        self._jobs[job.number] = _JobState(
            job=job,
            epoch=self._next_epoch(None),
            index={host: number for number, host in enumerate(job.workers)},
            versions=(halves[0], halves[1]),
        )

    def remove(self, number: int) -> None:
        """Serve a job no longer. Raises JobError for one that is not served."""
        state = self._state(number)
        self._discard(state)
        del self._jobs[number]

    def reset(self, number: int) -> int:
        """Begin another epoch of a job and tell its workers; returns the epoch, below the root of a tree the one that
        the root is requested to end. Raises JobError for an unknown job."""
        state = self._state(number)
        self._end_epoch(state)
        return state.epoch

    def stragglers(self, number: int) -> Stragglers:
        """Who lets the others wait. Raises JobError for an unknown job."""
        state = self._state(number)
        last = tuple(state.last[: state.job.num_workers])
        return Stragglers(gaps=tuple(state.gaps), last=last, partial=state.partial)

    def busy_slots(self, number: int) -> int:
        """How many of a job's slots hold contributions to a chunk whose sum is not known. Raises JobError."""
        pairs = zip(*self._state(number).versions, strict=True)
        return sum(any(half.added and half.result is None for half in slot) for slot in pairs)

    def membership(self, number: int) -> tuple[int, int, dict[int, int]]:
        """A job's epoch, the bitmap of the workers that have joined it, and the port that each joined from."""
        state = self._state(number)
        return state.epoch, sum(1 << worker for worker in state.joins), dict(state.ports)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Those served."""
        return tuple(state.job for state in self._jobs.values())

    @property
    def in_flight(self) -> int:
        """Contributions to chunks whose result is not known."""
        return sum(version.added for state in self._jobs.values() for version in state if version.result is None)

    # -- the core's five calls ----------------------------------------------------------------------------------------

    def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
        """Datagrams have come, from workers or from the aggregator above."""
        for datagram in datagrams:
            try:
                packet = decode(datagram.data)
                self._handle(packet, datagram, now_s)
            except WireError as error:
                self.counters.rx += 1
                setattr(self.counters, error.reason, getattr(self.counters, error.reason) + 1)

    def transmit(self, now_s: float) -> Sequence[Datagram]:  # noqa: ARG002 - whatever there is goes at once
        """What to send now."""
        outbox, self._outbox = self._outbox, []
        return outbox

    def deadline_s(self) -> float | None:
        """When the first unfinished chunk will have waited long enough for a straggler."""
        due = [
            version.first_s + state.job.straggler_timeout_s
            for state in self._jobs.values()
            if state.job.straggler_timeout_s is not None
            for version in state
            if version.added and version.upward is None and version.result is None
        ]
        return min(due, default=None)

    def expire(self, now_s: float) -> None:
        """Give out partial sums of the chunks that have waited long enough."""
        for state in self._jobs.values():
            timeout_s = state.job.straggler_timeout_s
            if timeout_s is None:
                continue
            for slot in range(state.job.num_slots):
                for half, versions in enumerate(state.versions):
                    version = versions[slot]
                    waits = version.added and version.upward is None and version.result is None
                    if waits and version.first_s + timeout_s <= now_s:
                        self._complete(state, version, state.job.first_slot + slot, half)

    # -- datagrams ----------------------------------------------------------------------------------------------------

    def _handle(self, packet: Packet, datagram: Datagram, now_s: float) -> None:
        """One datagram. Raises WireError for one that no job can use."""
        host, port = datagram.peer
        state = self._jobs.get(packet.job)
        if state is None:
            raise WireError("bad_job", f"nobody configured job {packet.job}")
        if datagram.peer == (state.job.parent, state.job.parent_port):
            self._handle_parent(state, packet)
            return
        worker = state.index.get(host)
        if worker is None:
            raise WireError("bad_worker", f"{host} is no worker of job {packet.job}")
        if packet.kind not in CARRYING:
            self.counters.control += 1
            self._control(state, worker, port, packet)
            return
        sized = packet.elements is not None and len(packet.elements) == state.job.num_elements
        if not sized or not state.job.carries(packet.kind):
            requested = f"{state.job.num_elements} elements of {state.job.payload}"
            raise WireError("bad_size", f"job {packet.job} has chunks of {requested}")
        if not 0 <= packet.slot - state.job.first_slot < state.job.num_slots:
            raise WireError("bad_slot", f"slot {packet.slot} is not one of job {packet.job}'s")
        if self._place(state.job, packet.chunk) != (packet.slot, packet.version):
            raise WireError("bad_slot", f"chunk {packet.chunk} has no place in slot {packet.slot}")
        self.counters.rx += 1
        if packet.epoch != state.epoch or not self._has_joined(state, worker, port):
            self.counters.stale += 1
            self._answer(state, (host, port), Kind.RESET, chunk=packet.chunk)
            return
        self._contribute(state, worker, packet, now_s)

    def _contribute(self, state: _JobState, worker: int, packet: Packet, now_s: float) -> None:
        if is_newer(packet.chunk, state.newest.get((worker, packet.slot), packet.chunk - 1)):
            state.newest[worker, packet.slot] = packet.chunk
        version = state.versions[packet.version][packet.slot - state.job.first_slot]
        if not version.used or self._is_newer(packet.chunk, version.chunk):
            if version.used and (version.result is None or not self._everybody_has(state, packet.slot, version.chunk)):
                self.counters.held += 1
                return
            self._clear(version, packet.chunk, now_s)
        elif packet.chunk != version.chunk:
            self.counters.stale += 1
            return
        if self._has_contributed(version, worker):
            if version.result is not None:
                self.counters.duplicate_done += 1
                self._send(state, worker, version.result)
            else:
                self.counters.duplicate_pending += 1
                if version.upward is not None:
                    self._send_upward(state, version.upward)
            return
        version.seen |= 1 << worker
        if version.result is not None:
            self.counters.late += 1
            self._send(state, worker, version.result)
            return
        self._add(state.job.form, version, packet)
        if version.added == state.job.num_workers:
            self._note_last(state, version, worker, now_s)
            self._complete(state, version, packet.slot, packet.version)

    @staticmethod
    def _note_last(state: _JobState, version: _Version, worker: int, now_s: float) -> None:
        """Who was last, and how long after the first."""
        state.gaps[min(NUM_GAPS - 1, int(machine_s(now_s - version.first_s) * 1e6).bit_length())] += 1
        state.last[worker] += 1

    def _handle_parent(self, state: _JobState, packet: Packet) -> None:
        """From the aggregator above, which decides the epoch of its tree: a result, or an epoch."""
        if packet.kind in {Kind.RESET, Kind.JOIN}:
            self.counters.control += 1
            answered = packet.kind == Kind.JOIN and packet.chunk == self._generation
            restarted = state.parent_generation not in {None, packet.slot}
            known, state.parent_generation = state.parent_generation == packet.slot, packet.slot
            if packet.epoch != state.epoch and (not known or is_newer(packet.epoch, state.epoch)):
                self._generation = (self._generation + restarted) & 0xFFFFFFFF
                self._begin_epoch(state, packet.epoch)
            if packet.kind == Kind.RESET:
                self._join_parent(state)
            elif answered and packet.epoch == state.epoch and not state.joined_above:
                state.joined_above = True
                for worker, join in state.joins.items():
                    self._answer(state, self._peer(state, worker), Kind.JOIN, chunk=join.chunk, join=join.contributions)
            return
        if packet.kind not in CARRYING:
            self.counters.control += 1
            return
        if not 0 <= packet.slot - state.job.first_slot < state.job.num_slots:
            raise WireError("bad_slot", f"slot {packet.slot} is not one of job {packet.job}'s")
        self.counters.rx += 1
        self.counters.from_parent += 1
        version = state.versions[packet.version][packet.slot - state.job.first_slot]
        awaited = version.used and version.upward is not None and version.result is None
        if awaited and packet.epoch == state.epoch and packet.chunk == version.chunk:
            self._finish(state, version, packet)

    @staticmethod
    def _has_joined(state: _JobState, worker: int, port: int) -> bool:
        return worker in state.joins and state.ports[worker] == port

    def _control(self, state: _JobState, worker: int, port: int, packet: Packet) -> None:
        """JOIN, LEAVE, RESET or PROBE from a worker's host; the port is a worker's only once a JOIN from it counts."""
        peer = (state.job.workers[worker], port)
        if packet.kind == Kind.JOIN:
            if packet.slot != worker:
                return  # it takes itself for another: no answer is the clearest one
            if worker in state.joins and state.joins[worker].chunk != packet.chunk:
                self._end_epoch(state)
                if state.job.parent is not None:
                    return  # until the root has said which epoch is next
            state.joins[worker], state.ports[worker] = packet, port
            state.left &= ~(1 << worker)
            if state.job.parent is not None and not state.joined_above:
                self._join_parent(state)  # before data goes up; what it is answered answers the workers
                return
        elif packet.epoch == state.epoch and self._has_joined(state, worker, port):
            if packet.kind == Kind.RESET:
                self._end_epoch(state)
            elif packet.kind == Kind.LEAVE:
                state.left |= 1 << worker
                if state.left == state.job.everybody and state.job.parent is None:
                    self._answer(state, peer, Kind.LEAVE, chunk=packet.chunk)
                    self._discard(state)
                    state.epoch = self._next_epoch(state.epoch)
                    return
        self._answer(state, peer, packet.kind, chunk=packet.chunk, join=packet.contributions)

    def _join_parent(self, state: _JobState) -> None:
        """Take part in the job above as a worker does."""
        job = state.job
        join = Packet(Kind.JOIN, job.number, state.epoch, self._generation, slot=job.parent_index)
        self._send_upward(state, join.encode())

    # -- slots --------------------------------------------------------------------------------------------------------

    @staticmethod
    def _place(job: Job, chunk: int) -> tuple[int, int]:
        return job.place(chunk)

    @staticmethod
    def _is_newer(chunk: int, than: int) -> bool:
        return is_newer(chunk, than)

    @staticmethod
    def _has_contributed(version: _Version, worker: int) -> bool:
        return bool(version.seen >> worker & 1)

    @staticmethod
    def _everybody_has(state: _JobState, slot: int, chunk: int) -> bool:
        """Whether every worker is known to have the result of the slot's chunk: it has sent the slot's next one, or a
        later one."""
        follows = (chunk + state.job.num_slots) & 0xFFFFFFFF
        sent = (state.newest.get((worker, slot)) for worker in range(state.job.num_workers))
        return all(newest is not None and not is_newer(follows, newest) for newest in sent)

    @staticmethod
    def _clear(version: _Version, chunk: int, now_s: float) -> None:
        version.used, version.chunk, version.first_s = True, chunk, now_s
        version.seen = version.added = 0
        version.exponent = EXPONENT_ZERO
        version.saturated = False
        version.upward = version.result = None

    def _add(self, form: Payload, version: _Version, packet: Packet) -> None:
        assert packet.elements is not None
        if version.added == 0:
            version.sums[:] = form.integers(packet.elements)
        else:
            version.sums += form.integers(packet.elements)
        version.added += 1
        version.exponent = max(version.exponent, packet.exponent)
        version.saturated |= packet.kind == Kind.SATURATED
        self.counters.fresh += 1

    def _complete(self, state: _JobState, version: _Version, slot: int, half: int) -> None:
        """Everybody has contributed, or the straggler has been waited for: send the sum up, or to everybody."""
        form = state.job.form
        sums = np.clip(version.sums, _INT32.min, _INT32.max)
        saturated = version.saturated or bool((sums != version.sums).any())
        partial = version.added < state.job.num_workers
        state.partial += partial
        packet = Packet(
            kind=Kind.SATURATED if saturated else state.job.kind,
            job=state.job.number,
            epoch=state.epoch,
            chunk=version.chunk,
            slot=slot,
            version=half,
            exponent=version.exponent,
            contributions=version.added if partial else 0,
            partial=partial,
            elements=form.words(form.rounded(sums, state.job.num_workers)),
        )
        if state.job.parent is None:
            self._finish(state, version, packet)
        else:
            version.upward = packet.encode()
            self._send_upward(state, version.upward)

    def _finish(self, state: _JobState, version: _Version, packet: Packet) -> None:
        """The result is known: keep it for those whom it does not reach, and send it to everybody."""
        version.result = packet.encode()
        self.counters.done += 1
        self.counters.contributions_done += version.added
        self.counters.partial += packet.partial
        self.counters.saturated += packet.kind == Kind.SATURATED
        for worker in range(state.job.num_workers):
            self._send(state, worker, version.result)

    # -- epochs -------------------------------------------------------------------------------------------------------

    def _end_epoch(self, state: _JobState) -> None:
        """Begin the next epoch, or ask the aggregator above to: the root decides for its tree."""
        if state.job.parent is None:
            self._begin_epoch(state, self._next_epoch(state.epoch))
        else:
            reset = Packet(kind=Kind.RESET, job=state.job.number, epoch=state.epoch, chunk=0)
            self._send_upward(state, reset.encode())

    def _next_epoch(self, previous: int | None) -> int:  # noqa: ARG002 - a number that no job has had
        """Of a job: after another, or its first."""
        return self._epochs.next()

    def _begin_epoch(self, state: _JobState, epoch: int) -> None:
        self._discard(state)
        state.epoch = epoch
        for worker in state.ports:
            self._answer(state, self._peer(state, worker), Kind.RESET, chunk=0)

    def _discard(self, state: _JobState) -> None:
        """Forget every chunk and who had joined."""
        for version in state:
            if version.result is None:
                self.counters.discarded += version.added
            version.used, version.added, version.seen = False, 0, 0
            version.upward = version.result = None
        state.joins.clear()
        state.newest.clear()
        state.joined_above = False
        state.left = 0

    # -- answers ------------------------------------------------------------------------------------------------------

    def _state(self, number: int) -> _JobState:
        if number not in self._jobs:
            raise JobError(f"job {number} is not being served; there are: {', '.join(map(str, self._jobs)) or 'none'}")
        return self._jobs[number]

    def _answer(self, state: _JobState, peer: Address, kind: Kind, *, chunk: int, join: int = 0) -> None:
        slot = self._generation % MAX_SLOTS
        packet = Packet(kind, state.job.number, state.epoch, chunk, slot=slot, contributions=join)
        self._outbox.append(Datagram(peer, packet.encode()))

    @staticmethod
    def _peer(state: _JobState, worker: int) -> Address:
        return state.job.workers[worker], state.ports[worker]

    def _send(self, state: _JobState, worker: int, data: bytes) -> None:
        """To where the worker joined from."""
        if worker in state.ports:  # else it has not joined yet, and asks for the sum when it has
            peer: Address = (state.job.workers[worker], state.ports[worker])
            self._outbox.append(Datagram(peer, data))

    def _send_upward(self, state: _JobState, data: bytes) -> None:
        assert state.job.parent is not None
        self._outbox.append(Datagram((state.job.parent, state.job.parent_port), data))
