"""A worker that reduces over a real socket: float32 in, sums of all workers out.

The control messages and, without a C compiler, the data go through the core (:mod:`switch_agg.worker`); with one, the
data goes through its twin in C (native/worker.c), which also turns floats into the wire image in one pass.
"""

import ctypes
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from socket import gethostbyname
from typing import Final, Self

import numpy as np

from switch_agg import clock
from switch_agg.core import Address
from switch_agg.driver import Driver, open_socket
from switch_agg.errors import AggregationError, AggregatorLostError, EpochEndedError, OverflowedError
from switch_agg.job import Job
from switch_agg.native import worker as native
from switch_agg.offloads import max_segments_from
from switch_agg.quantize import Codec, Exponents, Floats, NumpyCodec, Quantizer, Round, Rows
from switch_agg.round_trip import INITIAL_TIMEOUT_S, MIN_PATIENCE, MIN_TIMEOUT_S
from switch_agg.window import WindowPolicy
from switch_agg.wire import HEADER, Elements
from switch_agg.worker import MAX_SILENCE_S, Reduction, Worker, WorkerCounters, images, write_headers

SOURCE_PORT: Final = 4000
"""p4app-switchML's default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged:
    """A reduction whose datagrams lie ready."""

    first_chunk: int
    rows: Rows


class Client:
    """One worker of a job. Not for two threads at once, apart from :meth:`cancel`."""

    def __init__(
        self,
        job: Job,
        index: int,
        aggregator: Address,
        *,
        local: Address = ("", SOURCE_PORT),
        policy: WindowPolicy | None = None,
        max_silence_s: float = MAX_SILENCE_S,
        min_timeout_s: float = MIN_TIMEOUT_S,
        use_native: bool = True,
        max_segments: int | None = None,
    ) -> None:
        """Opens the socket; :meth:`join` comes first. Raises OSError, also for an aggregator's name that
        nobody knows, and UnsupportedError where C cannot be built.

        Up to `max_segments` chunks go to the kernel as one message (UDP_SEGMENT), at a fraction of the processor time.
        None: as many as the interface lets pass as one (:mod:`switch_agg.offloads`).
        """
        policy = policy or WindowPolicy()
        self.job = job
        self.num_partial = 0
        """Chunks whose sum came with contributions missing, so far."""
        self._native = native.library() if use_native else None
        self._codec: Codec = native.NativeCodec() if use_native else NumpyCodec()
        aggregator = (gethostbyname(aggregator[0]), aggregator[1])  # as packets from it will say
        self._socket = open_socket(local, remote=aggregator)
        self._core = Worker(
            job,
            index,
            aggregator,
            incarnation=secrets.randbits(32),
            window=policy.window(job.num_slots),
            max_silence_s=max_silence_s,
            min_timeout_s=min_timeout_s,
        )
        self._driver = Driver(self._core, self._socket)
        if max_segments is None:
            max_segments = max_segments_from(self._socket.getsockname()[0])
        self._quantizer = Quantizer(job.num_workers, job.num_elements, self._codec, job.form)
        self._rows_memory = np.empty(0, np.uint8)
        """Kept from one reduction of floats to the next: the kernel clears every page that it gives out anew."""
        self._cancelled = ctypes.c_int32(0)
        self._carried = native.NativeReduction(
            cancel=ctypes.addressof(self._cancelled),
            num_elements=job.num_elements,
            lanes=job.form.lanes,
            num_slots=job.num_slots,
            num_workers=job.num_workers,
            job=job.number,
            socket=self._socket.fileno(),
            policy=native.POLICIES[policy.kind],
            max_segments=max_segments,
            max_silence_s=max_silence_s,
            min_timeout_s=min_timeout_s,
            target_s=policy.target_s,
            dilation=clock.dilation(),
            timeout_s=INITIAL_TIMEOUT_S,
            smoothed_s=-1.0,
            patience=MIN_PATIENCE,
            window=job.num_slots if policy.kind == "fixed" else policy.initial,
            base_s=-1.0,
            decreased_s=-1.0,
            slow_start=1,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def counters(self) -> WorkerCounters:
        """Of the data, whichever way it went."""
        if self._native is None:
            return self._core.counters
        return WorkerCounters(**{name: getattr(self._carried, name) for name in WorkerCounters.__slots__})

    @property
    def slot_latencies(self) -> list[int]:
        """Results by how long they took from their chunk's first sending (switch_agg.slot_latency)."""
        return list(self._core.slot_latencies if self._native is None else self._carried.slot_latencies)

    @property
    def epoch(self) -> int:
        """The epoch joined last."""
        return self._core.epoch

    @property
    def num_repeated(self) -> int:
        """Chunks that were reduced again because their exponent was guessed too low, since the last :meth:`join`."""
        return self._quantizer.num_repeated

    def join(self, timeout_s: float = 10.0) -> None:
        """Take part, at the start and after :class:`EpochEndedError`. Raises AggregatorLostError."""
        self._quantizer = Quantizer(self.job.num_workers, self.job.num_elements, self._codec, self.job.form)
        self._core.join()
        self._settle(lambda: self._core.joined, timeout_s)

    def leave(self, timeout_s: float = 1.0) -> None:
        """All results are here. An aggregator that is gone already is no error."""
        if self._core.joined and self._core.finished and self._core.failure is None:
            self._core.leave()
            self._driver.run(self._over, deadline_s=clock.now_s() + timeout_s)

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    def cancel(self) -> None:
        """From another thread: what is under way raises AggregationError soon."""
        self._cancelled.value = 1

    def all_reduce(self, name: str, values: Floats) -> Floats:
        """Sum (count,) float32 over all workers, within :func:`switch_agg.quantize.error_bound`.

        `name` says which gradient this is: its exponents are predicted from its last reduction. Every worker reduces
        the same names with the same counts in the same order. The sums lie in memory that the reduction after the next
        one uses again: copy what is to stay. Where contributions are missing (the job has a
        `straggler_timeout_s`) the sum is scaled up to all workers. Raises EpochEndedError, AggregatorLostError, and
        OverflowedError for a sum that the aggregator had to clip.
        """
        quantizer = self._quantizer
        contiguous = np.ascontiguousarray(values, np.float32)
        attempt: Round | None = quantizer.begin(name, contiguous)
        counts = np.empty(0, np.uint8)
        while attempt is not None:
            if not counts.size:
                counts = np.full(len(attempt.which), self.job.num_workers, np.uint8)
            first = self._core.reserve(len(attempt.which))
            rows = self._rows(len(attempt.which))
            write_headers(rows, self.job, self._core.epoch, first, attempt.actual)
            if self._native is None:
                quantizer.stage(attempt, rows)
                found = self._contribute(rows, first)
            else:
                found = self._contribute_floats(self._native, rows, first, attempt, contiguous)
            if found.saturated.any():
                raise OverflowedError(int(found.saturated.sum()))
            counts[attempt.which] = found.counts
            # In C the sums have gone to the result as they came.
            sums = found.elements if self._native is None else None
            attempt = quantizer.proceed(attempt, sums, found.exponents)
        if (counts != self.job.num_workers).any():
            self.num_partial += int((counts != self.job.num_workers).sum())
            scale = (self.job.num_workers / counts).astype(np.float32)
            quantizer.result *= np.repeat(scale, self.job.num_values)[: len(values)]
        return quantizer.result

    def reduce(self, elements: Elements, exponents: Exponents) -> Reduction:
        """Sum (chunks, elements) int32 over all workers, exactly, or what narrower integers are in them as the job's
        payload says. Raises as :meth:`all_reduce`."""
        return self.reduce_staged(self.staged(elements, exponents))

    def staged(self, elements: Elements, exponents: Exponents) -> Staged:
        """The datagrams of the next reduction, for :meth:`reduce_staged`."""
        first = self._core.reserve(len(elements))
        return Staged(first_chunk=first, rows=images(self.job, self._core.epoch, first, elements, exponents))

    def reduce_staged(self, staged: Staged) -> Reduction:
        """Sum what was staged last over all workers. Raises as :meth:`all_reduce`."""
        return self._contribute(staged.rows, staged.first_chunk)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _rows(self, num_chunks: int) -> Rows:
        """Room for a wire image, until the next."""
        width = HEADER.size + 4 * self.job.num_elements
        if self._rows_memory.size < num_chunks * width:
            self._rows_memory = np.empty(num_chunks * width, np.uint8)
        return self._rows_memory[: num_chunks * width].reshape(num_chunks, width)

    def _contribute(self, rows: Rows, first_chunk: int) -> Reduction:
        """The rows there, the sums back."""
        assert self._core.joined, "join first"
        if self._native is None:
            self._core.contribute(rows, first_chunk)
            self._settle(lambda: self._core.finished, None)
            return self._core.result
        self._carried.with_floats = 0
        elements = np.empty((len(rows), self.job.num_elements), np.int32)
        return self._contribute_native(self._native, rows, first_chunk, elements)

    def _contribute_floats(
        self, library: ctypes.CDLL, rows: Rows, first_chunk: int, attempt: Round, values: Floats
    ) -> Reduction:
        """Blocks become integers when they are first sent, and sums floats as they come, beside the network's time."""
        carried, staged = self._carried, attempt.staged
        carried.values, carried.result = native.address(values), native.address(self._quantizer.result)
        carried.blocks, carried.count = native.address(attempt.which), len(values)
        carried.staged, carried.used = native.address(staged), native.address(attempt.used)
        carried.shift_base, carried.with_floats = self.job.form.shift_base(self.job.num_workers), 1
        return self._contribute_native(library, rows, first_chunk, np.empty((0, self.job.num_elements), np.int32))

    def _contribute_native(self, library: ctypes.CDLL, rows: Rows, first_chunk: int, elements: Elements) -> Reduction:
        num_chunks = len(rows)
        found = Reduction(
            elements=elements,
            exponents=np.empty(num_chunks, np.int8),
            counts=np.empty(num_chunks, np.uint8),
            saturated=np.empty(num_chunks, np.bool_),
        )
        carried = self._carried
        carried.images, carried.elements = native.address(rows), native.address(found.elements)
        carried.exponents, carried.contributions = native.address(found.exponents), native.address(found.counts)
        carried.saturated = native.address(found.saturated)
        carried.num_chunks, carried.first_chunk = num_chunks, first_chunk
        carried.epoch, carried.generation = self._core.epoch, self._core.generation
        outcome = library.reduce(ctypes.byref(carried))
        if outcome == native.DONE:
            return found
        self._core.joined = False
        if outcome == native.EPOCH_ENDED:
            raise EpochEndedError(carried.new_epoch)
        if outcome == native.LOST:
            raise AggregatorLostError(carried.lost_after_s, carried.lost_chunk, carried.lost_attempts)
        if outcome == native.CANCELLED:
            raise AggregationError("cancelled")
        raise OSError(carried.error, "the aggregation socket failed")

    def _settle(self, done: Callable[[], bool], timeout_s: float | None) -> None:
        """Drive the core until it is done. Raises its failure, and AggregatorLostError when the time is over."""
        begun_s = clock.now_s()
        deadline_s = None if timeout_s is None else begun_s + timeout_s
        finished = self._driver.run(lambda: done() or self._over(), deadline_s=deadline_s)
        if self._core.failure is not None:
            raise self._core.failure
        if self._cancelled.value:
            raise AggregationError("cancelled")
        if not finished:
            raise AggregatorLostError(clock.now_s() - begun_s, 0, 0)

    def _over(self) -> bool:
        return self._core.left or self._core.failure is not None or bool(self._cancelled.value)
