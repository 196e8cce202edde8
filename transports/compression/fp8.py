"""8-bit floating point, E4M3: 4 significant bits, from 2^-9 to 448, with a scale for each block of a parameter that
makes the block's largest value 448.

Micikevicius et al. 2022, "FP8 Formats for Deep Learning" (arXiv 2209.05433); scales by block as in Rouhani et al. 2023,
"Microscaling Data Formats for Deep Learning" (arXiv 2310.10537), here a float32. On the wire: a float32 per block, then
a byte per element.
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

_LARGEST: Final = 448.0
_SMALLEST: Final = 2.0**-9


@COMPRESSORS.register
class EightBitFloats(Sharded):
    """Rounded to the nearest."""

    valid_range: ClassVar[Range] = Range(floor=SMALLEST_PEAK)

    block: int = Field(256, ge=1, le=2**14)
    """Elements of a parameter that share a scale."""

    @property
    def unbiased(self) -> bool:
        """It rounds to the nearest."""
        return False

    def contraction(self, num_elements: int) -> float:  # noqa: ARG002
        """An element errs by 2^-4 of itself or, near zero, by half the smallest number, which is tiny beside the
        block's largest element but there as often as the block has elements."""
        return 1 - 2.0**-8 - self.block * (_SMALLEST / 2 / _LARGEST) ** 2

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """Scales and a byte for each element."""
        return SCALE_BYTES * num_blocks(shapes, self.block) + count(shapes)

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(ShardedCodec):
    options: EightBitFloats  # type: ignore[misc]

    def __init__(self, options: EightBitFloats, place: Place) -> None:
        import torch

        super().__init__(options, place)
        self._decoded: Final[Array] = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
        """What each byte stands for, (256,)."""

    def encode(self, values: Array, layout: Layout) -> Bytes:
        import torch

        block = self.options.block
        payload = np.empty(self.options.encoded_bytes([piece.shape for piece in layout]), np.uint8)
        border = len(payload) - len(values)
        scales = payload[:border].view(np.float32)
        codes = torch.from_numpy(payload[border:]).view(torch.float8_e4m3fn)
        for first, start, stop in runs(layout, block):
            blocks = blocks_of(values, start, stop, block)
            scales[first : first + len(blocks)], inverses = scales_of(blocks, _LARGEST)
            scaled = blocks * inverses[:, None]
            np.clip(scaled, -_LARGEST, _LARGEST, out=scaled)  # what rounding has put beyond would be no number
            codes[start:stop] = torch.from_numpy(scaled.reshape(-1)[: stop - start])
        return payload

    def add_decoded(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:
        block = self.options.block
        border = len(payload) - len(total)
        weighted = payload[:border].view(np.float32) * np.float32(weight)
        codes = payload[border:]
        for first, start, stop in runs(layout, block):
            # A byte is no index out of range; without looking for one it takes a quarter of the time.
            decoded = np.take(self._decoded, blocks_of(codes, start, stop, block), mode="wrap")
            decoded *= weighted[first : first + len(decoded), None]
            total[start:stop] += decoded.reshape(-1)[: stop - start]
