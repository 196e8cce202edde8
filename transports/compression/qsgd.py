"""Random rounding to a few levels of the block's norm.

Alistarh, Grubic, Li, Tomioka, Vojnovic 2017, "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding"
(NeurIPS), with levels of a fixed width in place of Elias' code. On the wire: a float32 per block, its norm, then `bits`
per element.

The paper's analysis is of the Euclidean norm, its experiments are with the largest absolute value ("max normalization
preserves more values, and has slightly higher accuracy"), which costs the same bytes and has no more variance.
"""

from collections.abc import Sequence
from math import sqrt
from typing import ClassVar, Final, Literal

import numpy as np
from pydantic import Field

from transports.compression._levels import Width, draw, num_levels, pack, packed_bytes, unpack
from transports.compression._sharded import Sharded, ShardedCodec
from transports.compression.base import (
    COMPRESSORS,
    FLOAT32_MAX,
    SMALLEST_PEAK,
    Array,
    Bytes,
    Codec,
    Layout,
    Place,
    Range,
    Shape,
    blocks_of,
    chunks,
    count,
)

_LARGEST_NORM: Final = np.float32(FLOAT32_MAX * (1 - 2.0**-20))
"""What it is divided by and multiplied with rounds, and must not become infinite."""


@COMPRESSORS.register
class Qsgd(Sharded):
    """Levels are multiples of the block's norm over 1, 7 or 127, for 2, 4 or 8 bits."""

    valid_range: ClassVar[Range] = Range(floor=SMALLEST_PEAK)

    bits: Width = 4
    block: int = Field(512, ge=8, le=2**16, multiple_of=8)
    """Elements that share a norm."""
    norm: Literal["max", "euclidean"] = "max"
    """The largest absolute value of a block, or its length."""

    @property
    def unbiased(self) -> bool:
        """The neighbouring level is drawn so that it is."""
        return True

    def variance(self, num_elements: int) -> float:  # noqa: ARG002
        """Lemma 3.1 of the paper, for the Euclidean norm; the other one is not larger."""
        levels = num_levels(self.bits)
        return min(self.block / levels**2, sqrt(self.block) / levels)

    def contraction(self, num_elements: int) -> float | None:
        """One minus the variance, where that is below one."""
        variance = self.variance(num_elements)
        return 1 - variance if variance < 1 else None

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """Norms and levels."""
        num_elements = count(shapes)
        return 4 * -(-num_elements // self.block) + packed_bytes(num_elements, self.bits)

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(ShardedCodec):
    options: Qsgd  # type: ignore[misc]

    def encode(self, values: Array, layout: Layout) -> Bytes:
        block, bits = self.options.block, self.options.bits
        levels = num_levels(bits)
        payload = np.empty(self.options.encoded_bytes([piece.shape for piece in layout]), np.uint8)
        border = 4 * -(-len(values) // block)
        norms, packed = payload[:border].view(np.float32), payload[border:]
        for start, stop in chunks(len(values), block):
            blocks = blocks_of(values, start, stop, block)
            norm = self._norm(blocks)
            norms[start // block : start // block + len(norm)] = norm
            inverse = np.divide(levels, norm, out=np.zeros_like(norm), where=norm > SMALLEST_PEAK)
            drawn = draw(blocks * inverse[:, None], levels, self.private).reshape(-1)[: stop - start]
            packed[start * bits // 8 : -(-stop * bits // 8)] = pack(drawn.astype(np.uint8), bits)
        return payload

    def _norm(self, blocks: Array) -> Array:
        """Of each row."""
        peak: Array = np.maximum(blocks.max(axis=1), -blocks.min(axis=1))
        if self.options.norm == "max":
            norm = peak
        else:
            # Squares of what lies between -1 and 1: those of large or small values are none in float32.
            unit = blocks * np.divide(1, peak, out=np.zeros_like(peak), where=peak > SMALLEST_PEAK)[:, None]
            norm = peak * np.sqrt(np.einsum("ij,ij->i", unit, unit))
        return np.minimum(norm, _LARGEST_NORM, where=np.isfinite(peak), out=norm)

    def add_decoded(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:  # noqa: ARG002
        block, bits = self.options.block, self.options.bits
        levels = num_levels(bits)
        border = 4 * -(-len(total) // block)
        scales = payload[:border].view(np.float32) * np.float32(weight / levels)
        packed = payload[border:]
        for start, stop in chunks(len(total), block):
            drawn = unpack(packed[start * bits // 8 : -(-stop * bits // 8)], bits)[: stop - start]
            decoded = blocks_of(drawn, 0, stop - start, block).astype(np.float32)
            decoded -= levels
            decoded *= scales[start // block : start // block + len(decoded), None]
            total[start:stop] += decoded.reshape(-1)[: stop - start]
