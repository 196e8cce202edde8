"""Minus one, zero or one, times the largest absolute value of the parameter's gradient.

Wen, Xu, Yan, Wu, Wang, Chen, Li 2017, "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
Learning" (NeurIPS). On the wire: a float32 for each parameter, then 2 bits per element.

The paper clips at 2.5 standard deviations, of gradients that it takes to be spread around zero. The standard deviation
here is that from zero, the root of the mean square: from the mean, as in the authors' code, a parameter whose elements
are alike, or of one element, would be clipped to zero for ever. So at most 1 in 6 elements is clipped, and never all.
"""

from collections.abc import Iterator, Sequence
from math import prod, sqrt

import numpy as np
from pydantic import Field

from transports.compression._levels import draw, pack, packed_bytes, unpack
from transports.compression.base import (
    CHUNK,
    COMPRESSORS,
    Array,
    Bytes,
    Codec,
    Gathered,
    GatheredCodec,
    Layout,
    Place,
    Shape,
    count,
    euclidean_norm,
)


@COMPRESSORS.register
class TernGrad(Gathered):
    """Each element is sent with a probability in proportion to its size."""

    clip: float | None = Field(2.5, gt=0)
    """Gradients are first limited to so many standard deviations of their parameter's, from zero; null: not at all."""

    @property
    def unbiased(self) -> bool:
        """Where nothing is clipped."""
        return self.clip is None

    def variance(self, num_elements: int) -> float | None:
        """Largest for one large element among equal ones; None with clipping, which is not in proportion."""
        return (sqrt(num_elements) - 1) / 2 if self.clip is None else None

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """Scales and levels."""
        return 4 * len(shapes) + packed_bytes(count(shapes), 2)

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(GatheredCodec):
    options: TernGrad  # type: ignore[misc]

    def encode(self, values: Array, layout: Layout) -> Bytes:
        payload = np.empty(self.options.encoded_bytes([piece.shape for piece in layout]), np.uint8)
        scales = payload[: 4 * len(layout)].view(np.float32)
        for number, (start, stop) in enumerate(_borders(layout)):
            scales[number] = self._scale(values[start:stop])
        levels = np.empty(len(values), np.uint8)
        for number, (start, stop) in enumerate(_borders(layout)):
            scale = scales[number]
            for begin in range(start, stop, CHUNK):
                end = min(begin + CHUNK, stop)
                # Through the scale's inverse a subnormal one would become infinite.
                scaled = values[begin:end] / scale if scale > 0 else np.zeros(end - begin, np.float32)
                levels[begin:end] = draw(scaled, 1, self.private)
        payload[4 * len(layout) :] = pack(levels, 2)
        return payload

    def _scale(self, values: Array) -> np.float32:
        if not len(values):
            return np.float32(0)
        peak = np.maximum(values.max(), -values.min())
        if self.options.clip is None:
            return np.float32(peak)
        root_mean_square = euclidean_norm(values) / sqrt(len(values))
        return np.float32(np.minimum(peak, self.options.clip * root_mean_square))

    def add_decoded(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:
        scales = payload[: 4 * len(layout)].view(np.float32) * np.float32(weight)
        levels = unpack(payload[4 * len(layout) :], 2)
        for number, (start, stop) in enumerate(_borders(layout)):
            for begin in range(start, stop, CHUNK):
                end = min(begin + CHUNK, stop)
                decoded = levels[begin:end].astype(np.float32)
                decoded -= 1
                decoded *= scales[number]
                total[begin:end] += decoded


def _borders(layout: Layout) -> Iterator[tuple[int, int]]:
    """Start and stop of each parameter."""
    start = 0
    for piece in layout:
        yield start, start + prod(piece.shape)
        start += prod(piece.shape)
