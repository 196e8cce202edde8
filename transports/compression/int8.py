"""8-bit integers with a scale for each block of a parameter: the largest absolute value of the block becomes 127.

Dettmers 2016, "8-Bit Approximations for Parallelism in Deep Learning" (ICLR), with the linear code of torch's
`quantization_hooks.py`. On the wire: a float32 per block, then a byte per element.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
from pydantic import Field

from transports.compression._blocks import SCALE_BYTES, num_blocks, runs, scales_of
from transports.compression._sharded import Sharded, ShardedCodec
from transports.compression.base import (
    COMPRESSORS,
    SMALLEST_PEAK,
    Array,
    Bytes,
    Codec,
    Layout,
    Place,
    Range,
    Shape,
    blocks_of,
    count,
)

_LARGEST: Final = 127


@COMPRESSORS.register
class EightBitIntegers(Sharded):
    """Rounded to the nearest of 255 multiples of the block's scale."""

    valid_range: ClassVar[Range] = Range(floor=SMALLEST_PEAK)

    block: int = Field(256, ge=1, le=2**14)
    """Elements of a parameter that share a scale."""

    @property
    def unbiased(self) -> bool:
        """It rounds to the nearest."""
        return False

    def contraction(self, num_elements: int) -> float:  # noqa: ARG002
        """Rounding errs by at most 1/254 of the block's largest value, once for each of its elements."""
        return 1 - self.block / (2 * _LARGEST) ** 2

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """Scales and integers."""
        return SCALE_BYTES * num_blocks(shapes, self.block) + count(shapes)

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(ShardedCodec):
    options: EightBitIntegers  # type: ignore[misc]

    def _views(self, payload: Bytes, num_elements: int) -> tuple[Array, np.ndarray[tuple[int], np.dtype[np.int8]]]:
        border = len(payload) - num_elements
        return payload[:border].view(np.float32), payload[border:].view(np.int8)

    def encode(self, values: Array, layout: Layout) -> Bytes:
        block = self.options.block
        payload = np.empty(self.options.encoded_bytes([piece.shape for piece in layout]), np.uint8)
        scales, codes = self._views(payload, len(values))
        for first, start, stop in runs(layout, block):
            blocks = blocks_of(values, start, stop, block)
            scales[first : first + len(blocks)], inverses = scales_of(blocks, _LARGEST)
            scaled = blocks * inverses[:, None]
            np.rint(scaled, out=scaled)
            codes[start:stop] = scaled.reshape(-1)[: stop - start]
        return payload

    def add_decoded(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:
        block = self.options.block
        scales, codes = self._views(payload, len(total))
        weighted = scales * np.float32(weight)
        for first, start, stop in runs(layout, block):
            decoded = blocks_of(codes, start, stop, block).astype(np.float32)
            decoded *= weighted[first : first + len(decoded), None]
            total[start:stop] += decoded.reshape(-1)[: stop - start]
