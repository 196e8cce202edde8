"""A worker's end of the protocol: gets each chunk of a reduction into the switch and its sum back. No I/O.

It is self-clocked, slot by slot: the result of a chunk lets the next one of its slot go out, whatever the other slots
wait for. The oldest chunk is repeated when the timer runs out, and any as soon as three chunks sent after it have come
back and a round trip and a quarter is over, or more where packets are often late rather than lost (RFC 5681's duplicate
acknowledgements, counted in transmissions and with RACK's reordering window, RFC 8985, so that a repetition can be
repeated).
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

import numpy as np
import numpy.typing as npt

from switch_agg.core import Address, Datagram
from switch_agg.errors import AggregationError, AggregatorLostError, EpochEndedError, WireError
from switch_agg.job import Job
from switch_agg.round_trip import MIN_TIMEOUT_S, RoundTripEstimator
from switch_agg.slot_latency import NUM_BUCKETS, bucket
from switch_agg.window import FixedWindow, Window
from switch_agg.wire import (
    CARRYING,
    FORMAT,
    HEADER,
    NUM_JOINS,
    WIRE_ELEMENT,
    Elements,
    Kind,
    Packet,
    decode,
    is_newer,
    size_code,
)

REORDERING: Final = 3
"""Chunks sent later that must have come back before one is taken for lost."""
MAX_ROUND_TRIPS: Final = 2.0
"""Of the timer (RFC 8985's probe, section 7.2): at the end of each reduction the queue drains, so that round trips vary
as much as they last, and nothing is left to overtake what is lost."""
MAX_BACKOFF: Final = 16.0
"""Of the timer, which doubles while nothing comes back. Whoever waits for a worker that has not begun then sends one
chunk in 16 timeouts, each of them a round trip or more: a sixteenth of what a window of one would."""
CONTROL_TIMEOUT_S: Final = 0.05
"""Between two JOINs or LEAVEs, doubled up to a second."""
MAX_LATE_ATTEMPTS: Final = 2
"""Transmissions of a chunk whose result, sooner after the last than any round trip, may be the answer to the first."""
MAX_SILENCE_S: Final = 10.0


@dataclass(slots=True)
class WorkerCounters:
    """What a worker has sent and received."""

    sent: int = 0
    """Data datagrams, repetitions included."""
    timeouts: int = 0
    """Repetitions because of the timer."""
    fast_retransmissions: int = 0
    """Repetitions because later chunks came back."""
    results: int = 0
    """Taken."""
    duplicates: int = 0
    """Results of chunks that were not awaited."""
    bad: int = 0
    """Datagrams that were none of this job's."""


@dataclass(slots=True)
class _Flight:
    """One chunk under way."""

    first_s: float
    """When it was sent first, and last."""
    sent_s: float
    order: int
    """Of its last transmission, among all transmissions."""
    attempts: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction:
    """The sums of one reduction's chunks."""

    elements: npt.NDArray[np.int32]
    """(chunks, elements)."""
    exponents: npt.NDArray[np.int8]
    """(chunks,): the highest of any worker."""
    counts: npt.NDArray[np.uint8]
    """(chunks,): contributions in the sum; fewer than the workers only in a partial one."""
    saturated: npt.NDArray[np.bool_]
    """(chunks,): whether an element was clipped."""


class Worker:
    """One worker of a job; implements switch_agg.core.Core."""

    def __init__(
        self,
        job: Job,
        index: int,
        aggregator: Address,
        *,
        incarnation: int,
        window: Window | None = None,
        max_silence_s: float = MAX_SILENCE_S,
        min_timeout_s: float = MIN_TIMEOUT_S,
    ) -> None:
        """`incarnation` differs after every start. The window never exceeds the pool."""
        self.counters = WorkerCounters()
        self.round_trip = RoundTripEstimator(
            min_timeout_s=min_timeout_s, max_round_trips=MAX_ROUND_TRIPS, max_backoff=MAX_BACKOFF
        )
        self.slot_latencies = [0] * NUM_BUCKETS
        """Results by how long they took from their chunk's first sending (switch_agg.slot_latency)."""
        self.joined = False
        self.left = False
        self.failure: AggregationError | None = None
        """EpochEndedError or AggregatorLostError: what is under way will not finish."""
        self.epoch = 0
        self._job = job
        self._index = index
        self._aggregator = aggregator
        self._incarnation = incarnation & 0xFFFFFFFF
        self._joins = 0
        self._ends_epoch = False
        """Whether the epoch joined last has to end first: its chunk numbers are used up."""
        self._generation: int | None = None
        self._window = window or FixedWindow(job.num_slots)
        self._max_silence_s = max_silence_s
        self._control: Kind | None = None
        self._control_attempts = 0
        self._control_due_s = 0.0
        self._control_since_s: float | None = None
        self._next_chunk = 0
        self._base = 0
        self._images = np.empty((0, 0), np.uint8)
        self._num_chunks = self._num_received = 0
        self._sendable: list[int] = []
        """Chunks whose slot is free; a heap."""
        self._flights: OrderedDict[int, _Flight] = OrderedDict()
        """In the order of their last transmission."""
        self._flown: list[int] = []
        """All that have been in `_flights`, but for some that have come back; a heap."""
        self._transmissions = 0
        self._newest_returned = -1
        self._progress_s = 0.0
        """When the last result came, or the reduction began."""
        self._expired_s = 0.0
        self._expirations = 0
        """Since the last result."""
        self._lost: dict[int, None] = {}
        self._result = _empty(0, job.num_elements)

    # -- what a user asks ---------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Take part, also after :class:`EpochEndedError`; :attr:`joined` says when it is done."""
        self.joined, self.left, self.failure = False, False, None
        self._joins, self._ends_epoch = (self._joins + 1) % NUM_JOINS, False
        self._abandon()
        self._begin_control(Kind.JOIN)

    def leave(self) -> None:
        """All results are here; :attr:`left` says when the aggregator knows."""
        assert self.finished, "a worker leaves between reductions"
        self._begin_control(Kind.LEAVE)

    def reduce(self, elements: Elements, exponents: npt.NDArray[np.int8]) -> None:
        """Contribute (chunks, elements) int32 and their block exponents; :attr:`finished` says when the sums are here.

        Every worker of the job makes the same reductions in the same order.
        """
        first = self.reserve(len(elements))
        self.contribute(images(self._job, self.epoch, first, elements, exponents), first)

    def contribute(self, rows: npt.NDArray[np.uint8], first_chunk: int) -> None:
        """The same with the datagrams as rows, for chunks that were reserved."""
        assert self.joined, "join first"
        assert self.finished, "one reduction at a time"
        self._base, self._images = first_chunk, rows
        self._num_chunks, self._num_received = len(rows), 0
        self._sendable = list(range(min(self._job.num_slots, len(rows))))
        self._flown.clear()
        self._result = _empty(len(rows), self._job.num_elements)

    def reserve(self, num_chunks: int) -> int:
        """The first number of so many chunks; whoever asks contributes them, with this epoch's :attr:`generation`."""
        first, self._next_chunk = self._next_chunk, (self._next_chunk + num_chunks) & 0xFFFFFFFF
        return first

    @property
    def generation(self) -> int:
        """The aggregator's number of its start."""
        assert self._generation is not None, "join first"
        return self._generation

    @property
    def finished(self) -> bool:
        """Whether nothing is under way."""
        return self._num_received == self._num_chunks

    @property
    def result(self) -> Reduction:
        """Of the last reduction."""
        assert self.finished
        return self._result

    # -- the core's five calls ----------------------------------------------------------------------------------------

    def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
        """Datagrams have come."""
        for datagram in datagrams:
            if datagram.peer != self._aggregator:
                self.counters.bad += 1
                continue
            try:
                packet = decode(datagram.data)
            except WireError:
                self.counters.bad += 1
                continue
            if packet.job != self._job.number:
                self.counters.bad += 1
            elif packet.kind in CARRYING:
                self._on_result(packet, now_s, marked=datagram.marked)
            else:
                self._on_control(packet)

    def transmit(self, now_s: float) -> Sequence[Datagram]:
        """What to send now: control, what is lost, and new chunks as far as the window goes."""
        out: list[Datagram] = []
        if self._control is not None and now_s >= self._control_due_s:
            out += self._control_datagrams(now_s)
        out.extend(self._transmit_chunk(offset, now_s) for offset in self._lost)
        self._lost.clear()
        while self.failure is None and self._may_send():
            out.append(self._transmit_chunk(heappop(self._sendable), now_s))
        return out

    def deadline_s(self) -> float | None:
        """When a chunk or a control message has to be repeated."""
        due: list[float] = []
        if self._control is not None:
            due.append(self._control_due_s)
        if self._flights and self.failure is None:
            due += [self._flights_due_s(), *self._overtaken_due_s()]
        return min(due, default=None)

    def expire(self, now_s: float) -> None:
        """Repeat the chunk that has waited longest; what its result lets go tells which others are lost.

        One, not all that are due: workers begin a reduction at different times, and whoever waits for the last of them
        would repeat its whole window again and again for nothing.
        """
        if self.failure is not None:
            return
        self._find_lost(now_s)
        if self._flights and not self._lost and now_s >= self._flights_due_s():
            silence_s = now_s - self._progress_s
            if silence_s >= self._max_silence_s:
                first = self._first_flight()
                chunk = (self._base + first) & 0xFFFFFFFF
                self.failure = AggregatorLostError(silence_s, chunk, self._flights[first].attempts)
                return
            offset = next(iter(self._flights))
            self.counters.timeouts += 1
            self._lost[offset] = None
            self._expired_s = now_s
            self._expirations += 1
            self._window.on_loss(now_s)
        since_s = self._control_since_s
        if self._control is not None and since_s is not None and now_s - since_s >= self._max_silence_s:
            self.failure = AggregatorLostError(now_s - since_s, self._next_chunk, self._control_attempts)
            self._control = None

    # -- inside -------------------------------------------------------------------------------------------------------

    def _may_send(self) -> bool:
        """Whether the window has room for the first sendable chunk.

        One that is older than all under way needs none: what is under way may wait for workers that wait for this one.
        """
        if not self._sendable or len(self._flights) < self._window.size:
            return bool(self._sendable)
        return self._sendable[0] < self._first_flight()

    def _first_flight(self) -> int:
        """The lowest chunk under way; there is one."""
        while self._flown[0] not in self._flights:
            heappop(self._flown)
        return self._flown[0]

    def _flights_due_s(self) -> float:
        """When the oldest flight has waited its time, which doubles while nothing comes back."""
        oldest = next(iter(self._flights.values()))
        return max(oldest.sent_s, self._expired_s) + self.round_trip.after_attempts_s(1 + self._expirations)

    def _overtaken_due_s(self) -> Iterator[float]:
        """When patience with the oldest flight ends, if others have overtaken it (RFC 8985's reordering timer)."""
        oldest = next(iter(self._flights.values()))
        if oldest.order + REORDERING <= self._newest_returned:
            yield oldest.sent_s + self.round_trip.patience_s

    def _transmit_chunk(self, offset: int, now_s: float) -> Datagram:
        order, self._transmissions = self._transmissions, self._transmissions + 1
        flight = self._flights.get(offset)
        if flight is None:
            if self._num_received == 0 and not self._flights:
                self._progress_s = now_s
            self._flights[offset] = _Flight(first_s=now_s, sent_s=now_s, order=order)
            heappush(self._flown, offset)
        else:
            flight.sent_s, flight.order = now_s, order
            flight.attempts += 1
            self._flights.move_to_end(offset)
        self.counters.sent += 1
        return Datagram(self._aggregator, self._images[offset].tobytes())

    def _on_result(self, packet: Packet, now_s: float, *, marked: bool) -> None:
        offset = (packet.chunk - self._base) & 0xFFFFFFFF
        flight = self._flights.get(offset) if packet.epoch == self.epoch else None
        if flight is None or packet.elements is None or not self._carries(packet):
            self.counters.duplicates += 1
            return
        del self._flights[offset]
        taken_for_lost = offset in self._lost
        self._lost.pop(offset, None)
        self._progress_s, self._expirations = now_s, 0
        self._num_received += 1
        # Only now: the result is proof that everybody contributed to the chunk that had this slot.
        if offset + self._job.num_slots < self._num_chunks:
            heappush(self._sendable, offset + self._job.num_slots)
        self.counters.results += 1
        self.slot_latencies[bucket(now_s - flight.first_s)] += 1
        self._result.elements[offset] = packet.elements
        self._result.exponents[offset] = packet.exponent
        self._result.counts[offset] = packet.contributions if packet.partial else self._job.num_workers
        self._result.saturated[offset] = packet.kind == Kind.SATURATED
        # A chunk that others overtook waited for a repetition, perhaps another worker's: that is no round trip. So does
        # one that was repeated more than once.
        once = flight.attempts == 1
        known = once and flight.order + REORDERING > self._newest_returned
        if taken_for_lost or not once:
            late = self.round_trip.was_late(0.0 if taken_for_lost else now_s - flight.sent_s, now_s)
            known |= late and flight.attempts <= MAX_LATE_ATTEMPTS
        round_trip_s = now_s - flight.first_s if known else None
        if round_trip_s is not None:
            self.round_trip.sample(round_trip_s)
        self._window.on_result(round_trip_s, marked=marked, now_s=now_s)
        # Of a chunk that was repeated nobody knows which transmission this answers: it proves nothing of later ones.
        if once:
            self._newest_returned = max(self._newest_returned, flight.order)
        self._find_lost(now_s)

    def _carries(self, packet: Packet) -> bool:
        """Whether it has what a chunk of this job has."""
        sized = packet.elements is not None and len(packet.elements) == self._job.num_elements
        return sized and self._job.form.carries(packet.kind)

    def _find_lost(self, now_s: float) -> None:
        """Chunks are kept in the order of their last transmission, so the oldest ones tell."""
        patience_s = self.round_trip.patience_s
        for offset, flight in self._flights.items():
            if flight.order + REORDERING > self._newest_returned or now_s < flight.sent_s + patience_s:
                return
            if offset not in self._lost:
                self.counters.fast_retransmissions += 1
                self._lost[offset] = None
                self._window.on_loss(now_s)

    def _on_control(self, packet: Packet) -> None:
        restarted = self._generation not in {None, packet.slot}
        if packet.kind == Kind.JOIN and self._control == Kind.JOIN:
            if (packet.chunk, packet.contributions) == (self._incarnation, self._joins):
                self._on_joined(packet)
        elif packet.kind == Kind.LEAVE and self._control == Kind.LEAVE:
            self.left, self._control = True, None
        elif packet.kind == Kind.RESET and self.joined and (restarted or is_newer(packet.epoch, self.epoch)):
            self.joined = False
            self.failure = EpochEndedError(packet.epoch)

    def _on_joined(self, packet: Packet) -> None:
        """The answer to this join. In the epoch that it had joined before, chunk numbers from 0 on would name two
        contributions: then that epoch has to end."""
        if self._generation is not None and packet.epoch == self.epoch:
            self._control_due_s = self._control_due_s if self._ends_epoch else 0.0
            self._ends_epoch = True
            return
        self.epoch, self._generation, self._next_chunk = packet.epoch, packet.slot, 0
        self.joined, self._control = True, None

    def _begin_control(self, kind: Kind) -> None:
        self._control, self._control_attempts, self._control_due_s = kind, 0, 0.0
        self._control_since_s = None

    def _control_datagrams(self, now_s: float) -> list[Datagram]:
        assert self._control is not None
        if self._control_since_s is None:
            self._control_since_s = now_s
        self._control_due_s = now_s + min(1.0, CONTROL_TIMEOUT_S * 2.0 ** min(self._control_attempts, 16))
        self._control_attempts += 1
        kinds = [Kind.RESET, self._control] if self._ends_epoch else [self._control]
        packet = Packet(
            self._control, self._job.number, self.epoch, self._incarnation, slot=self._index, contributions=self._joins
        )
        return [Datagram(self._aggregator, packet._replace(kind=kind).encode()) for kind in kinds]

    def _abandon(self) -> None:
        self._flights.clear()
        self._flown.clear()
        self._lost.clear()
        self._sendable.clear()
        self._num_chunks = self._num_received = self._expirations = 0
        self._newest_returned = -1


def images(
    job: Job, epoch: int, first_chunk: int, elements: Elements, exponents: npt.NDArray[np.int8]
) -> npt.NDArray[np.uint8]:
    """A reduction's datagrams as rows: header and big-endian elements, made once for all (re)transmissions."""
    num_chunks, num_elements = elements.shape
    rows = np.empty((num_chunks, HEADER.size + 4 * num_elements), np.uint8)
    write_headers(rows, job, epoch, first_chunk, exponents)
    rows[:, HEADER.size :] = elements.astype(WIRE_ELEMENT).view(np.uint8).reshape(num_chunks, 4 * num_elements)
    return rows


def write_headers(
    rows: npt.NDArray[np.uint8], job: Job, epoch: int, first_chunk: int, exponents: npt.NDArray[np.int8]
) -> None:
    """All of the rows but their elements."""
    num_chunks, num_elements = len(exponents), job.num_elements
    rows[:, 0] = job.form.kind << 4 | size_code(num_elements)
    rows[:, 1] = job.number << 4 | FORMAT
    chunks = (first_chunk + np.arange(num_chunks, dtype=np.uint64)) & 0xFFFFFFFF
    rows[:, 2:6] = chunks.astype(">u4").view(np.uint8).reshape(num_chunks, 4)
    pools = (chunks // job.num_slots & 1) << 15 | (job.first_slot + chunks % job.num_slots)
    rows[:, 6:8] = pools.astype(">u2").view(np.uint8).reshape(num_chunks, 2)
    rows[:, 8] = exponents.view(np.uint8)
    rows[:, 9] = 0
    rows[:, 10:14] = np.frombuffer(epoch.to_bytes(4, "big"), np.uint8)


def _empty(num_chunks: int, num_elements: int) -> Reduction:
    return Reduction(
        elements=np.empty((num_chunks, num_elements), np.int32),
        exponents=np.empty(num_chunks, np.int8),
        counts=np.empty(num_chunks, np.uint8),
        saturated=np.empty(num_chunks, np.bool_),
    )
