"""Deep gradient compression: the largest elements of gradients that were accumulated with their momentum.

Lin, Han, Mao, Wang, Dally 2018, "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
Training" (ICLR): momentum correction (Nesterov's too), local gradient clipping, momentum factor masking, and a
threshold found in a sample, as in the authors' github.com/synxlin/deep-gradient-compression (dgc/memory.py), and its
warm-up: in the paper the ratio goes down from 25 % by a quarter with each of the first four epochs. On the wire as
`threshold`.

The momentum is applied here, before the selection, so the optimizer must have none.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from transports.compression._sparse import ENTRY_BYTES, SparseCodec, largest, pack
from transports.compression._start import Exchanges
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
    euclidean_norm,
    num_kept,
)
from transports.compression.memory import Memory, forget_infinite

_FIRST_RATIO: Final = 0.25
_NUM_STAGES: Final = 4
"""Of the warm-up."""
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
    warmup: int = Field(0, ge=0, le=1_000_000)
    """Exchanges of each bucket, an epoch's in the paper, in which 25 % of it goes out, then 6.25 %, 1.56 % and 0.39 %,
    as long as that is more than `ratio`; 0: `ratio` from the start."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """In place of the optimizer's."""
    nesterov: bool = False
    """Nesterov's momentum: what is accumulated looks one step of the momentum ahead."""
    momentum_masking: bool = True
    """Forget the momentum of what is sent: it is stale by as long as its elements waited."""
    clip_norm: float | None = Field(None, gt=0)
    """The bucket's gradient is first scaled down to this norm over the square root of the number of workers."""

    @property
    def unbiased(self) -> bool:
        """It leaves out the small."""
        return False

    @property
    def homogeneous(self) -> bool:
        """Without clipping to a norm."""
        return self.clip_norm is None

    def ratio_at(self, exchange: int) -> float:
        """In the exchange of that number, from 0."""
        stage = exchange // self.warmup if self.warmup else _NUM_STAGES
        return max(self.ratio, _FIRST_RATIO ** (stage + 1)) if stage < _NUM_STAGES else self.ratio

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """By the ratio after the warm-up."""
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
        self._exchanges = Exchanges()

    def encode(self, values: Array, layout: Layout) -> Bytes:
        velocity, accumulated = self._velocity.flat(layout), self._accumulated.flat(layout)
        gradient = values * self._clipping(values)
        if self.options.nesterov:
            velocity += gradient
            velocity *= self.options.momentum
            accumulated += gradient
        else:
            velocity *= self.options.momentum
            velocity += gradient
        accumulated += velocity
        chosen = self._choose(accumulated, self.options.ratio_at(self._exchanges.next(layout)))
        payload = pack(chosen, accumulated)
        accumulated[chosen] = 0
        if self.options.momentum_masking:
            velocity[chosen] = 0
        forget_infinite(accumulated, velocity)
        return payload

    def _clipping(self, values: Array) -> np.float32:
        if self.options.clip_norm is None:
            return np.float32(1)
        limit = self.options.clip_norm / np.sqrt(self.place.num_workers)
        return np.float32(limit / max(limit, euclidean_norm(values)))

    def _choose(self, accumulated: Array, ratio: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        num_elements = len(accumulated)
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
