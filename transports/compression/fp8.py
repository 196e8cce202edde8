"""8-bit floating point, E4M3: 4 significant bits, from 2^-9 to 448, with a scale that makes the largest value 448.

Micikevicius et al. 2022, "FP8 Formats for Deep Learning" (arXiv 2209.05433). On the wire: a float32, the bucket's
scale, then a byte per element.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from transports.compression._sharded import Sharded, ShardedCodec
from transports.compression.base import (
    CHUNK,
    COMPRESSORS,
    Array,
    Bytes,
    Codec,
    Layout,
    Place,
    Shape,
    chunks,
    count,
)

_LARGEST: Final = 448.0
_SMALLEST: Final = 2.0**-9


@COMPRESSORS.register
class EightBitFloats(Sharded):
    """Rounded to the nearest."""

    @property
    def unbiased(self) -> bool:
        """It rounds to the nearest."""
        return False

    def contraction(self, num_elements: int) -> float | None:
        """An element errs by 2^-4 of itself or, near zero, by half the smallest number, which is tiny beside the
        largest element but there as often as there are elements."""
        contraction = 1 - 2.0**-8 - num_elements * (_SMALLEST / 2 / _LARGEST) ** 2
        return contraction if contraction > 0 else None

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """A scale and a byte for each."""
        return 4 + count(shapes)

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(ShardedCodec):
    options: EightBitFloats  # type: ignore[misc]

    def encode(self, values: Array, layout: Layout) -> Bytes:  # noqa: ARG002
        import torch

        payload = np.empty(4 + len(values), np.uint8)
        peak = float(np.maximum(values.max(), -values.min()))
        scale = payload[:4].view(np.float32)
        scale[0] = peak / _LARGEST
        codes = torch.from_numpy(payload[4:]).view(torch.float8_e4m3fn)
        given = torch.from_numpy(values)
        for start, stop in chunks(len(values), CHUNK):
            # A subnormal scale has few bits and no inverse: hence the limits and the division.
            codes[start:stop] = (given[start:stop] / (float(scale[0]) or 1.0)).clamp_(-_LARGEST, _LARGEST)
        return payload

    def add_decoded(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:  # noqa: ARG002
        table = self._decoded * (payload[:4].view(np.float32)[0] * np.float32(weight))
        for start, stop in chunks(len(total), CHUNK):
            # A byte is no index out of range; without looking for one it takes a quarter of the time.
            total[start:stop] += np.take(table, payload[4 + start : 4 + stop], mode="wrap")

    @property
    def _decoded(self) -> Array:
        """What each byte stands for, (256,)."""
        import torch

        decoded: Array = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
        return decoded
