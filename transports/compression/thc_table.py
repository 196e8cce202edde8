"""Indices into a table of integers that add up: four bits out, and the sum of all workers' integers back.

Li, Basat, Vargaftik, Lao, Xu, Mitzenmacher, Yu 2024, "THC: Accelerating Distributed Deep Learning Using Tensor
Homomorphic Compression" (NSDI), its non-uniform form, as in the authors' github.com/SophiaLi06/BytePS_THC
(byteps/torch/compression.py). Workers agree on their largest norm; blocks are rotated by a random Hadamard matrix,
which makes their elements nearly normal; they are clipped where a share `clip` of normal ones lies beyond, and drawn
between the two table entries beside them. Entries are 2^bits of the integers from 0 to `granularity`, chosen so that
drawing has the least variance. Who adds looks up entries and adds integers; nothing is decoded, and nothing rounded
again.

There the adding is a server's or a switch's; here, as with `exchange: two_phase`, each worker's that owns a shard. The
authors take one norm for a tensor; here each block has its own, for tensors of unlike size share a bucket.

On the wire: a float32 for each block, gathered; then indices, to each shard's owner; then sums, in 1 byte where
`granularity` times the number of workers is at most 255, else in 2. Blocks are filled up, and shards.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from statistics import NormalDist
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from transports.compression._levels import pack, packed_bytes, unpack
from transports.compression._rotation import Rotation, block_elements, filled, runs
from transports.compression._sharded import shard_elements
from transports.compression.base import (
    COMPRESSORS,
    FLOAT32_MIN_NORMAL,
    AllGather,
    AllToAll,
    Array,
    Bytes,
    Codec,
    Compressor,
    Exchange,
    Exchanging,
    Layout,
    Pattern,
    Place,
    Range,
    Shape,
    count,
    limited,
)
from transports.errors import OptionError

_NORM_BYTES: Final = 4
_LARGEST_SUM: Final = 2**16 - 1
_NORMAL: Final = NormalDist()


@COMPRESSORS.register
class TableHomomorphic(Compressor):
    """What is clipped is fed back, as the authors have it; otherwise right on average."""

    summable: ClassVar[bool] = False
    valid_range: ClassVar[Range] = Range(floor=2.0**-111, largest=2.0**112)

    bits: Literal[2, 4] = 4
    """Of an index."""
    granularity: int = Field(30, ge=3, le=255)
    """The largest integer in the table: the range is cut into so many steps."""
    clip: float = Field(1 / 32, ge=1e-6, le=0.5)
    """The share of normal elements beyond the range."""
    error_feedback: bool = True

    @model_validator(mode="after")
    def _table_has_room(self) -> "TableHomomorphic":
        if self.granularity < 2**self.bits - 1:
            raise ValueError(
                f"granularity: {2**self.bits} entries of {self.bits} bits are of integers up to {2**self.bits - 1} "
                f"at least, not {self.granularity}"
            )
        return self

    @property
    def unbiased(self) -> bool:
        """It clips."""
        return False

    def damping(self, num_elements: int) -> float:  # noqa: ARG002
        """1: what is left is what was clipped, and of the drawing `resolution` of the norm."""
        return 1.0

    @property
    def range_in_deviations(self) -> float:
        """Where elements are clipped, in root mean squares of a block."""
        return _NORMAL.inv_cdf(1 - self.clip / 2)

    @property
    def resolution(self) -> float:
        """The widest gap of the table, of elements of which a block's root mean square is 1. No element that is not
        clipped errs by more."""
        widest = max(np.diff(table(self.bits, self.granularity, self.clip)))
        return float(2 * self.range_in_deviations / self.granularity * widest)

    def check_world(self, num_workers: int) -> None:
        """A sum must fit two bytes."""
        if self.granularity * num_workers > _LARGEST_SUM:
            raise OptionError(
                f"compression.granularity: a sum of {num_workers} workers' integers up to {self.granularity} needs "
                f"more than 16 bits; set it to {_LARGEST_SUM // num_workers} or less"
            )

    def sum_bytes(self, num_workers: int) -> int:
        """Of an element's sum."""
        return 1 if self.granularity * num_workers <= 255 else 2

    def pattern(self, shapes: Sequence[Shape], num_workers: int) -> Pattern:  # noqa: ARG002
        """Always: indices do not add up."""
        return "two_phase"

    def exchanges(self, shapes: Sequence[Shape], num_workers: int) -> Sequence[Exchange]:
        """Norms, indices, sums."""
        num_elements = filled(count(shapes))
        shard = shard_elements(num_elements, num_workers)
        norms_bytes = _NORM_BYTES * (num_elements // block_elements(count(shapes)))
        return [
            Exchange("all_gather", num_workers * norms_bytes, 1),
            Exchange("all_to_all", num_workers * packed_bytes(shard, self.bits), 1),
            Exchange("all_gather", num_workers * shard * self.sum_bytes(num_workers), 1),
        ]

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(Codec):
    options: TableHomomorphic  # type: ignore[misc]

    def exchange(self, values: Array, out: Array, layout: Layout, weight: float) -> Exchanging:  # noqa: ARG002
        num_workers, granularity = self.place.num_workers, self.options.granularity
        entries = table(self.options.bits, granularity, self.options.clip)
        rotation = Rotation(len(values), self.shared)
        rotated = rotation.forward(limited(values, self.options.valid_range.largest))
        norms: list[Bytes] = yield AllGather(_norms(rotated).view(np.uint8), varying=False)
        steps = self._steps(np.max([each.view(np.float32) for each in norms], axis=0), rotated.shape[1])
        indices = self._drawn(rotated, steps, entries)
        if self.options.error_feedback:
            values -= rotation.back(entries[indices] - np.float32(granularity / 2), steps)
        shards: Bytes = yield AllToAll(self._packed(indices))
        sums: list[Bytes] = yield AllGather(self._added(shards, entries).view(np.uint8), varying=False)
        total = np.concatenate(sums).view(self._sum_type)[: rotated.size].astype(np.float32).reshape(rotated.shape)
        total -= np.float32(num_workers * granularity / 2)
        out[:] = rotation.back(total, steps * np.float32(weight))

    @property
    def _sum_type(self) -> type[np.uint8 | np.uint16]:
        return np.uint8 if self.options.sum_bytes(self.place.num_workers) == 1 else np.uint16

    def _steps(self, norms: Array, block: int) -> Array:
        """How far integers are apart, (blocks, 1); zero where that has no inverse."""
        range_ = self.options.range_in_deviations / sqrt(block)
        steps = norms * np.float32(2 * range_ / self.options.granularity)
        steps[steps < FLOAT32_MIN_NORMAL] = 0
        return steps[:, None]

    def _drawn(self, rotated: Array, steps: Array, entries: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The index of one of the two entries beside each element, so that the expectation is the element."""
        granularity = self.options.granularity
        below = np.searchsorted(entries, np.arange(granularity + 1), side="right").astype(np.uint8) - np.uint8(1)
        lower_entry = entries[below].astype(np.float32)
        gaps = np.append(np.diff(entries), 1).astype(np.float32)[below]
        indices = np.empty(rotated.shape, np.uint8)
        inverses = np.divide(1, steps, out=np.zeros_like(steps), where=steps > 0)
        for start, stop in runs(rotated):
            places = rotated[start:stop] * inverses[start:stop]
            places += np.float32(granularity / 2)
            np.fmax(places, 0, out=places)  # what is no number becomes the lowest; its block's step says it
            np.minimum(places, granularity, out=places)
            whole = places.astype(np.uint8)
            places -= lower_entry[whole]
            places /= gaps[whole]
            indices[start:stop] = below[whole] + (self.private.random(places.shape, dtype=np.float32) < places)
        return indices

    def _packed(self, indices: npt.NDArray[np.uint8]) -> Bytes:
        """A row for each owner of a shard; the last ones are filled up with zeros."""
        num_workers = self.place.num_workers
        shard = shard_elements(indices.size, num_workers)
        rows = np.zeros(num_workers * shard, np.uint8)
        rows[: indices.size] = indices.reshape(-1)
        return pack(rows, self.options.bits).reshape(num_workers, -1)

    def _added(self, rows: Bytes, entries: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Of this worker's shard, from all workers' indices."""
        total = np.zeros(rows.shape[1] * 8 // self.options.bits, self._sum_type)
        for row in rows:
            total += entries[unpack(row, self.options.bits)]
        return total


def _norms(blocks: Array) -> Array:
    """Of each row. In float64: a square of a float32 above 1.8e19 or below 1e-23 is none."""
    norms = np.empty(len(blocks), np.float32)
    for start, stop in runs(blocks):
        wide = blocks[start:stop].astype(np.float64)
        norms[start:stop] = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    return norms


@lru_cache(maxsize=64)
def table(bits: int, granularity: int, clip: float) -> npt.NDArray[np.uint8]:
    """The 2^bits integers in [0, granularity], rising, the first and last among them, between which drawing normal
    numbers has the least variance, when the integers are equal steps over all but a share `clip` of them.

    Symmetric, so that clipping what is symmetric leaves its mean. By dynamic programming over the lower half: the
    tables that the authors publish come out.
    """
    half, middle = 2 ** (bits - 1), (granularity + 1) // 2
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}
    for _ in range(half - 1):
        further: dict[int, tuple[float, tuple[int, ...]]] = {}
        for last, (variance, chosen) in best.items():
            for following in range(last + 1, middle):
                candidate = variance + _variance(last, following, granularity, clip), (*chosen, following)
                further[following] = min(further.get(following, candidate), candidate)
        best = further
    _, lower = min(
        (2 * variance + _variance(last, granularity - last, granularity, clip), chosen)
        for last, (variance, chosen) in best.items()
    )
    return np.array([*lower, *(granularity - entry for entry in reversed(lower))], np.uint8)


def _variance(lower: int, upper: int, granularity: int, clip: float) -> float:
    """Of drawing one of these two entries for the normal numbers x between them: the integral of (b - x)(x - a) times
    their density."""
    limit = _NORMAL.inv_cdf(1 - clip / 2)
    a, b = (limit * (2 * entry / granularity - 1) for entry in (lower, upper))
    share = _NORMAL.cdf(b) - _NORMAL.cdf(a)
    first = _NORMAL.pdf(a) - _NORMAL.pdf(b)
    second = share - (b * _NORMAL.pdf(b) - a * _NORMAL.pdf(a))
    return (a + b) * first - a * b * share - second
