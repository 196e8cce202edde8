"""Gradients to integers that a switch can add, and back: with block exponents, in 32, 16 or 8 bits
(:mod:`switch_agg.payload`).

A block is one chunk. Its exponent e says that every magnitude is below 2^e; the integer of x is x * 2^s rounded to the
nearest (ties to even) with s = 30 - ceil(log2 n) - e, so that the sum of n workers' integers never leaves 32 bits. In
16 and 8 bits s is 15 - e and 7 - e, and the switch divides the sum by 2^ceil(log2 n).

All workers must use one exponent for a block before any knows the others'. Nobody asks: each predicts it from the
block's highest exponent in past reductions of the same name, which all workers know alike from their results and which
counts one less with each reduction since, plus a few doublings of headroom. The result carries the highest exponent of
any worker; where that exceeds the prediction the block is done again with it, by all workers alike. So there is no
extra round trip in the steady state. A name that is new is predicted from the last reduction of as many blocks: the
same bucket under the name it had before, or its neighbour.

Error, per element, of the sum of n workers: at most n * 2^(e-s') with s' = 31 - ceil(log2 n), where e is the exponent
used; in b = 16 or 8 bits at most (n + 2^ceil(log2 n) / 2) * 2^(e+1-b): :func:`error_bound`.

Defined at the edges: a block of zeros has exponent -128 and is exact. Exponents below -127 count as -127: magnitudes
below 2^-127 (denormals) lose relative, not absolute, precision. A block with a NaN, an infinity or a magnitude of 2^126
or more is *not finite*: its sum is NaN everywhere, on every worker.
"""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from switch_agg.payload import INT32, Payload
from switch_agg.wire import EXPONENT_NOT_FINITE, EXPONENT_ZERO, HEADER, Elements

MIN_EXPONENT: Final = -127
MAX_EXPONENT: Final = 126

Floats = npt.NDArray[np.float32]
Exponents = npt.NDArray[np.int8]
Blocks = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint8]


def blocks(values: Floats, num_elements: int) -> Floats:
    """(count,) as (chunks, elements), the last chunk filled up with zeros; a view when it fits."""
    missing = -len(values) % num_elements
    if missing:
        values = np.concatenate([values, np.zeros(missing, np.float32)])
    return values.reshape(-1, num_elements)


def exponents_of(values: Floats) -> Exponents:
    """(chunks, elements) float32 -> (chunks,): the least e in range with every magnitude below 2^e."""
    highest = np.abs(values).max(axis=1) if values.size else np.zeros(len(values), np.float32)
    _, exponents = np.frexp(highest)
    found: Exponents = np.clip(exponents, MIN_EXPONENT, MAX_EXPONENT).astype(np.int8)
    found[highest == 0] = EXPONENT_ZERO
    found[~(highest < 2.0**MAX_EXPONENT)] = EXPONENT_NOT_FINITE  # NaN compares false
    return found


def shifts(exponents: Exponents, num_workers: int, form: Payload = INT32) -> npt.NDArray[np.int32]:
    """The power of two that each block is multiplied by."""
    return form.shift_base(num_workers) - exponents.astype(np.int32)


def quantize(values: Floats, exponents: Exponents, num_workers: int, form: Payload = INT32) -> Elements:
    """(chunks, values) float32 -> int32. Blocks that are zero or not finite by these exponents become zeros, and
    magnitudes that exceed an exponent that was too low are clipped: such a block is done again."""
    scaled = np.ldexp(values.astype(np.float64), shifts(exponents, num_workers, form)[:, None])
    limit = float(form.limit(num_workers))
    usable = (exponents != EXPONENT_ZERO) & (exponents != EXPONENT_NOT_FINITE)
    scaled[~usable] = 0.0
    np.nan_to_num(scaled, copy=False, nan=0.0, posinf=limit, neginf=-limit)
    return np.rint(np.clip(scaled, -limit, limit, out=scaled), out=scaled).astype(np.int32)


def dequantize(sums: Elements, exponents: Exponents, num_workers: int, form: Payload = INT32) -> Floats:
    """(chunks, values) int32, as the switch hands them down -> float32, rounded once; what exceeds float32 is infinite,
    as in a float sum."""
    usable = exponents != EXPONENT_ZERO
    back = form.rounding(num_workers) - shifts(exponents, num_workers, form)
    found = np.ldexp(sums.astype(np.float64), np.where(usable, back, 0)[:, None])
    with np.errstate(over="ignore"):
        values = found.astype(np.float32)
    values[exponents == EXPONENT_NOT_FINITE] = np.nan
    return values


def error_bound(exponents: Exponents, num_workers: int, form: Payload = INT32) -> npt.NDArray[np.float64]:
    """(chunks,): how far any element of the sum, as a real number, may be from the sum of the float32 inputs.

    Each worker rounds by at most half a unit of 2^-s; in 16 and 8 bits by at most a whole one, where the largest
    magnitudes are clipped, and the switch by half of what it divides by. (float32 holds the result to another relative
    2^-24.)
    """
    units = np.ldexp(1.0, -shifts(exponents, num_workers, form))
    doublings = form.rounding(num_workers)
    num_units = num_workers / 2 if form is INT32 else num_workers + (1 << doublings) / 2
    return np.where(exponents == EXPONENT_ZERO, 0.0, num_units * units)


class Codec(Protocol):
    """Between floats and the rows of a wire image. Here in numpy; in C in switch_agg.native.worker."""

    def exponents_of(self, values: Floats, num_values: int) -> Exponents:
        """(count,) float32 -> the exponent of each block."""

    def stage(
        self,
        values: Floats,
        which: Blocks,
        exponents: Exponents,
        num_workers: int,
        rows: Rows,
        num_values: int,
        form: Payload = INT32,
    ) -> None:
        """Write the integers of the chosen blocks of (count,) float32 into the rows, behind their headers."""

    def unstage(
        self,
        sums: Elements,
        which: Blocks,
        exponents: Exponents,
        num_workers: int,
        values: Floats,
        form: Payload = INT32,
    ) -> None:
        """Write the chosen blocks' sums, each block with the exponent it was quantised with, into (count,) float32."""


class NumpyCodec:
    """The codec that needs no compiler."""

    def exponents_of(self, values: Floats, num_values: int) -> Exponents:
        """See Codec."""
        return exponents_of(blocks(values, num_values))

    def stage(
        self,
        values: Floats,
        which: Blocks,
        exponents: Exponents,
        num_workers: int,
        rows: Rows,
        num_values: int,
        form: Payload = INT32,
    ) -> None:
        """See Codec."""
        integers = quantize(blocks(values, num_values)[which], exponents, num_workers, form)
        rows[:, HEADER.size :] = integers.astype(form.dtype).view(np.uint8).reshape(rows[:, HEADER.size :].shape)

    def unstage(
        self,
        sums: Elements,
        which: Blocks,
        exponents: Exponents,
        num_workers: int,
        values: Floats,
        form: Payload = INT32,
    ) -> None:
        """See Codec."""
        found = dequantize(sums, exponents, num_workers, form)
        padded = blocks(values, sums.shape[1])
        padded[which] = found
        if not np.shares_memory(padded, values):
            values[:] = padded.reshape(-1)[: len(values)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One attempt at some blocks of a reduction."""

    which: Blocks
    """Of the reduction's blocks, in order."""
    used: Exponents
    """With which exponent each is quantised."""
    actual: Exponents
    """The exponent that travels with it: its own."""

    @property
    def staged(self) -> Exponents:
        """What to quantise by: a block that is not finite has no integers."""
        return np.where(self.actual == EXPONENT_NOT_FINITE, self.actual, self.used).astype(np.int8)


class Quantizer:
    """The exponents of past reductions, and the rounds of the present one.

    :meth:`begin` gives the first round; :meth:`proceed` takes its result and gives the next, of the blocks that have to
    be done again, or None when :attr:`result` is there. Every worker makes the same calls in the same order.
    """

    def __init__(self, num_workers: int, num_elements: int, codec: Codec | None = None, form: Payload = INT32) -> None:
        """`num_elements` are a chunk's words of 32 bits."""
        self._num_workers = num_workers
        self._num_values = num_elements * form.lanes
        self._form = form
        self._codec = codec or NumpyCodec()
        self._history: dict[str, Exponents] = {}
        self._latest: dict[int, Exponents] = {}
        """By the number of blocks, of the last reduction that had so many: what a new name is predicted from."""
        self._name = ""
        self._values: Floats = np.empty(0, np.float32)
        self._actual: Exponents = np.empty(0, np.int8)
        self._highest: Exponents = np.empty(0, np.int8)
        self.used: Exponents = np.empty(0, np.int8)
        """The exponent that each block of the last reduction was quantised with, for :func:`error_bound`."""
        self._memories: tuple[Floats, Floats] = (np.empty(0, np.float32), np.empty(0, np.float32))
        """For results in turn, kept: the kernel clears every page that it gives out anew."""
        self.result: Floats = self._memories[0]
        """(count,) sums of the last reduction; the one after the next has its memory."""
        self.num_repeated = 0
        """Blocks that had to be done again, over all reductions."""

    def begin(self, name: str, values: Floats) -> Round:
        """Start the reduction of that name, of (count,) contiguous float32."""
        self._name, self._values = name, values
        self._actual = self._codec.exponents_of(values, self._num_values)
        history = self._history.get(name)
        if history is None or len(history) != len(self._actual):
            history = self._latest.get(len(self._actual), np.full(len(self._actual), EXPONENT_ZERO, np.int8))
        self.used = predicted(history, self._form.headroom)
        self._highest = np.full(len(self._actual), EXPONENT_ZERO, np.int8)
        self.result = self._memory(values)
        return self._round(np.arange(len(self._actual), dtype=np.int64))

    def stage(self, attempt: Round, rows: Rows) -> None:
        """Write the attempt's integers into rows whose headers are there."""
        self._codec.stage(
            self._values, attempt.which, attempt.staged, self._num_workers, rows, self._num_values, self._form
        )

    def proceed(self, attempt: Round, sums: Elements | None, highest: Exponents) -> Round | None:
        """The attempt's sums (chunks, words) and the highest exponent of any worker, by block; None: whoever got the
        sums has written those that count into :attr:`result`."""
        settled = (highest <= attempt.used) | (highest == EXPONENT_NOT_FINITE)
        final = np.where(highest == EXPONENT_NOT_FINITE, highest, attempt.used).astype(np.int8)
        self._highest[attempt.which] = highest
        if settled.all():
            self.used[attempt.which] = final
            if sums is not None:
                self._unstage(sums, attempt.which, final)
            self._history[self._name] = remembered(self._history.get(self._name), self._highest)
            self._latest[len(self._highest)] = self._history[self._name]
            return None
        done, again = attempt.which[settled], attempt.which[~settled]
        self.used[done] = final[settled]
        if sums is not None:
            self._unstage(sums[settled], done, final[settled])
        self.num_repeated += len(again)
        self.used[again] = highest[~settled]
        return self._round(again)

    def _memory(self, values: Floats) -> Floats:
        """For the result of these: what the last result does not have, and the values themselves do not."""
        latest, other = self._memories
        if len(other) < len(values) or np.may_share_memory(other, values):
            other = np.empty_like(values)
        self._memories = other, latest
        return other[: len(values)]

    def _unstage(self, words: Elements, which: Blocks, exponents: Exponents) -> None:
        sums = words if self._form is INT32 else self._form.integers(words).astype(np.int32)
        self._codec.unstage(sums, which, exponents, self._num_workers, self.result, self._form)

    def _round(self, which: Blocks) -> Round:
        return Round(which=which, used=self.used[which], actual=self._actual[which])


def remembered(history: Exponents | None, highest: Exponents) -> Exponents:
    """What to predict from after a reduction with these highest exponents: what was there before sinks by one with each
    reduction, so that blocks whose magnitudes go up and down are not done again each time they go up."""
    if history is None or len(history) != len(highest):
        return highest
    sinking = np.maximum(history.astype(np.int32) - 1, MIN_EXPONENT).astype(np.int8)
    sinking = np.where((history == EXPONENT_ZERO) | (history == EXPONENT_NOT_FINITE), EXPONENT_ZERO, sinking)
    return np.where(highest == EXPONENT_NOT_FINITE, sinking, np.maximum(sinking, highest)).astype(np.int8)


def predicted(history: Exponents, headroom: int = INT32.headroom) -> Exponents:
    """The exponents to use, given those of the last reduction of the same name."""
    grown = np.clip(history.astype(np.int32) + headroom, MIN_EXPONENT, MAX_EXPONENT).astype(np.int8)
    unknown = (history == EXPONENT_ZERO) | (history == EXPONENT_NOT_FINITE)
    return np.where(unknown, np.int8(EXPONENT_ZERO), grown)
