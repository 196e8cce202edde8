"""Gradients to integers that a switch can add, and back: int32 with block exponents.

A block is one chunk. Its exponent e says that every magnitude is below 2^e; the integer of x is x * 2^s rounded to the
nearest (ties to even) with s = 30 - ceil(log2 n) - e, so that the sum of n workers' integers never leaves 32 bits.

All workers must use one exponent for a block before any knows the others'. Nobody asks: each predicts it from the
block's exponent in the last reduction of the same name, which all workers know alike from its result, plus
:data:`HEADROOM` doublings. The result carries the highest exponent of any worker; where that exceeds the prediction the
block is done again with it, by all workers alike. So there is no extra round trip in the steady state.

Error, per element, of the sum of n workers: at most n * 2^(e-s') with s' = 31 - ceil(log2 n), where e is the exponent
used: :func:`error_bound`.

Defined at the edges: a block of zeros has exponent -128 and is exact. Exponents below -127 count as -127: magnitudes
below 2^-127 (denormals) lose relative, not absolute, precision. A block with a NaN, an infinity or a magnitude of 2^126
or more is *not finite*: its sum is NaN everywhere, on every worker.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from switch_agg.wire import EXPONENT_NOT_FINITE, EXPONENT_ZERO, Elements

HEADROOM: Final = 1
"""A block may double from one reduction to the next without being done again, for one bit of precision."""
MIN_EXPONENT: Final = -127
MAX_EXPONENT: Final = 126

Floats = npt.NDArray[np.float32]
Exponents = npt.NDArray[np.int8]


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


def shifts(exponents: Exponents, num_workers: int) -> npt.NDArray[np.int32]:
    """The power of two that each block is multiplied by."""
    return 30 - (num_workers - 1).bit_length() - exponents.astype(np.int32)


def quantize(values: Floats, exponents: Exponents, num_workers: int) -> Elements:
    """(chunks, elements) float32 -> int32. Blocks that are zero or not finite by these exponents become zeros, and
    magnitudes that exceed an exponent that was too low are clipped: such a block is done again."""
    scaled = np.ldexp(values.astype(np.float64), shifts(exponents, num_workers)[:, None])
    limit = float(2**30 >> (num_workers - 1).bit_length())
    usable = (exponents != EXPONENT_ZERO) & (exponents != EXPONENT_NOT_FINITE)
    scaled[~usable] = 0.0
    np.nan_to_num(scaled, copy=False, nan=0.0, posinf=limit, neginf=-limit)
    return np.rint(np.clip(scaled, -limit, limit, out=scaled), out=scaled).astype(np.int32)


def dequantize(sums: Elements, exponents: Exponents, num_workers: int) -> Floats:
    """(chunks, elements) int32 sums -> float32, rounded once; what exceeds float32 is infinite, as in a float sum."""
    usable = exponents != EXPONENT_ZERO
    found = np.ldexp(sums.astype(np.float64), np.where(usable, -shifts(exponents, num_workers), 0)[:, None])
    with np.errstate(over="ignore"):
        values = found.astype(np.float32)
    values[exponents == EXPONENT_NOT_FINITE] = np.nan
    return values


def error_bound(exponents: Exponents, num_workers: int) -> npt.NDArray[np.float64]:
    """(chunks,): how far any element of the sum, as a real number, may be from the sum of the float32 inputs.

    Each worker rounds by at most half a unit of 2^-s. (float32 holds the result to another relative 2^-24.)
    """
    units = np.ldexp(1.0, -shifts(exponents, num_workers))
    return np.where(exponents == EXPONENT_ZERO, 0.0, num_workers * units / 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What is sent: one attempt at some blocks of a reduction."""

    blocks: npt.NDArray[np.intp]
    """Which of the reduction's blocks, in order."""
    used: Exponents
    """With which exponent each is quantised."""
    actual: Exponents
    """The exponent that travels with it: its own."""
    elements: Elements


class Quantizer:
    """The exponents of past reductions, and the rounds of the present one.

    :meth:`begin` gives the first round; :meth:`proceed` takes its result and gives the next, of the blocks that have to
    be done again, or None when :attr:`result` is there. Every worker makes the same calls in the same order.
    """

    def __init__(self, num_workers: int, num_elements: int) -> None:
        self._num_workers = num_workers
        self._num_elements = num_elements
        self._history: dict[str, Exponents] = {}
        self._name = ""
        self._values: Floats = np.empty((0, num_elements), np.float32)
        self._count = 0
        self._actual: Exponents = np.empty(0, np.int8)
        self._used: Exponents = np.empty(0, np.int8)
        self._highest: Exponents = np.empty(0, np.int8)
        self._sums: Floats = np.empty((0, num_elements), np.float32)
        self.num_repeated = 0
        """Blocks that had to be done again, over all reductions."""

    def begin(self, name: str, values: Floats) -> Round:
        """Start the reduction of that name, of (count,) float32."""
        self._name, self._count = name, len(values)
        self._values = blocks(values, self._num_elements)
        self._actual = exponents_of(self._values)
        history = self._history.get(name)
        if history is None or len(history) != len(self._values):
            history = np.full(len(self._values), EXPONENT_ZERO, np.int8)
        self._used = predicted(history)
        self._highest = np.full(len(self._values), EXPONENT_ZERO, np.int8)
        self._sums = np.empty_like(self._values)
        return self._round(np.arange(len(self._values)))

    def proceed(self, attempt: Round, sums: Elements, highest: Exponents) -> Round | None:
        """The attempt's sums and the highest exponent of any worker, by block."""
        settled = (highest <= attempt.used) | (highest == EXPONENT_NOT_FINITE)
        self._highest[attempt.blocks] = highest
        done = attempt.blocks[settled]
        final = np.where(highest == EXPONENT_NOT_FINITE, highest, attempt.used)[settled]
        self._used[done] = final
        self._sums[done] = dequantize(sums[settled], final, self._num_workers)
        again = attempt.blocks[~settled]
        if len(again) == 0:
            self._history[self._name] = self._highest
            return None
        self.num_repeated += len(again)
        self._used[again] = highest[~settled]
        return self._round(again)

    @property
    def result(self) -> Floats:
        """(count,) float32 sums."""
        return self._sums.reshape(-1)[: self._count]

    @property
    def used(self) -> Exponents:
        """The exponent that each block of the last reduction was quantised with, for :func:`error_bound`."""
        return self._used

    def _round(self, which: npt.NDArray[np.intp]) -> Round:
        used, actual = self._used[which], self._actual[which]
        sent = np.where(actual == EXPONENT_NOT_FINITE, EXPONENT_NOT_FINITE, used).astype(np.int8)
        elements = quantize(self._values[which], sent, self._num_workers)
        return Round(blocks=which, used=used, actual=actual, elements=elements)


def predicted(history: Exponents) -> Exponents:
    """The exponents to use, given those of the last reduction of the same name."""
    grown = np.clip(history.astype(np.int32) + HEADROOM, MIN_EXPONENT, MAX_EXPONENT).astype(np.int8)
    unknown = (history == EXPONENT_ZERO) | (history == EXPONENT_NOT_FINITE)
    return np.where(unknown, np.int8(EXPONENT_ZERO), grown)
