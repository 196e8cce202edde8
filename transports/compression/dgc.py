"""Deep gradient compression: the largest elements of gradients that were accumulated with their momentum.

Lin, Han, Mao, Wang, Dally 2018, "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
Training" (ICLR): momentum correction, local gradient clipping, momentum factor masking, and a threshold found in a
sample. Its warm-up is a matter of a schedule of ratios and is left to the caller. On the wire as `threshold`.

The momentum is applied here, before the selection, so the optimizer must have none.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from transports.compression._memory import Memory, forget_infinite
from transports.compression._sparse import ENTRY_BYTES, SparseCodec, largest, pack
from transports.compression.base import (
    COMPRESSORS,
    Array,
    Bytes,
    Codec,
    Gathered,
    Layout,
    Place,
    Ratio,
    Shape,
    count,
    num_kept,
)

_SAMPLE_SHARE: Final = 0.01
_LEAST_ABOVE: Final = 128
"""Sampled elements above the threshold: so many that the share they estimate errs by a tenth."""
_SURPLUS: Final = 1.3
"""A sample's threshold that lets through more than this many times the share is followed by an exact selection."""


@COMPRESSORS.register
class DeepGradientCompression(Gathered):
    """About the share `ratio` of each bucket."""

    data_dependent: ClassVar[bool] = True
    stateful: ClassVar[bool] = True
    own_momentum: ClassVar[bool] = True
    no_feedback: ClassVar[str] = "it accumulates what it does not send by itself"

    ratio: Ratio = 0.01
    momentum: float = Field(0.9, ge=0, lt=1)
    """In place of the optimizer's."""
    clip_norm: float | None = Field(None, gt=0)
    """The bucket's gradient is first scaled down to this norm over the square root of the number of workers."""

    @property
    def unbiased(self) -> bool:
        """It leaves out the small."""
        return False

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """By the ratio."""
        return ENTRY_BYTES * num_kept(count(shapes), self.ratio)

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(SparseCodec):
    options: DeepGradientCompression  # type: ignore[misc]

    def __init__(self, options: DeepGradientCompression, place: Place) -> None:
        super().__init__(options, place)
        self._velocity = Memory()
        self._accumulated = Memory()

    def encode(self, values: Array, layout: Layout) -> Bytes:
        velocity, accumulated = self._velocity.flat(layout), self._accumulated.flat(layout)
        velocity *= self.options.momentum
        velocity += values * self._clipping(values)
        accumulated += velocity
        chosen = self._choose(accumulated)
        payload = pack(chosen, accumulated)
        accumulated[chosen] = 0
        velocity[chosen] = 0
        forget_infinite(accumulated, velocity)
        return payload

    def _clipping(self, values: Array) -> np.float32:
        if self.options.clip_norm is None:
            return np.float32(1)
        limit = self.options.clip_norm / np.sqrt(self.place.num_workers)
        return np.float32(limit / max(limit, float(np.sqrt(np.dot(values, values)))))

    def _choose(self, accumulated: Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        num_elements, ratio = len(accumulated), self.options.ratio
        wanted = num_kept(num_elements, ratio)
        size = max(int(_LEAST_ABOVE / ratio), int(num_elements * _SAMPLE_SHARE))
        if size >= num_elements:
            return largest(accumulated, wanted)
        sample = np.abs(accumulated[self.private.integers(0, num_elements, size)])
        rank = size - num_kept(size, ratio)
        threshold = np.partition(sample, rank)[rank]
        chosen = np.flatnonzero(~(np.abs(accumulated) < threshold))
        if len(chosen) <= _SURPLUS * wanted:
            return chosen
        return chosen[largest(accumulated[chosen], wanted)]
