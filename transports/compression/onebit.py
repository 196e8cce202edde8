"""One bit for each element, decoded as the mean of those on its side of zero; the error is fed back.

Seide, Fu, Droppo, Li, Yu 2014, "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
Training of Speech DNNs" (Interspeech), as in CNTK, where a matrix' columns have means of their own; here blocks do. On
the wire: two float32 per block, the means of what is negative and of the rest, then a bit per element.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from pydantic import Field

from transports.compression._sharded import Sharded, ShardedCodec
from transports.compression.base import (
    COMPRESSORS,
    Array,
    Bytes,
    Codec,
    Layout,
    Place,
    Shape,
    blocks_of,
    chunks,
    count,
)


@COMPRESSORS.register
class OneBit(Sharded):
    """A sign and two means."""

    block: int = Field(512, ge=8, le=2**16, multiple_of=8)
    """Elements that share the two means."""
    error_feedback: bool = True

    @property
    def unbiased(self) -> bool:
        """Elements become their neighbours' mean."""
        return False

    def contraction(self, num_elements: int) -> float:  # noqa: ARG002
        """What remains is the variance of each side: at most 1 - 1/block of a block's square."""
        return 1 / self.block

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """Means and signs."""
        num_elements = count(shapes)
        return 8 * -(-num_elements // self.block) + -(-num_elements // 8)

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(ShardedCodec):
    options: OneBit  # type: ignore[misc]

    def encode(self, values: Array, layout: Layout) -> Bytes:
        block = self.options.block
        payload = np.empty(self.options.encoded_bytes([piece.shape for piece in layout]), np.uint8)
        border = 8 * -(-len(values) // block)
        means, signs = payload[:border].view(np.float32).reshape(-1, 2), payload[border:]
        for start, stop in chunks(len(values), block):
            blocks = blocks_of(values, start, stop, block)
            below = blocks < 0
            signs[start // 8 : -(-stop // 8)] = np.packbits(below.reshape(-1)[: stop - start])
            num_below = np.count_nonzero(below, axis=1)
            num_others = np.minimum(block, len(values) - np.arange(start, stop, block)) - num_below
            sums_below = _sums(np.minimum(blocks, 0))
            sums_others = _sums(np.maximum(blocks, 0))
            first = start // block
            means[first : first + len(blocks), 0] = sums_below / np.maximum(num_below, 1)
            means[first : first + len(blocks), 1] = sums_others / np.maximum(num_others, 1)
        return payload

    def add_decoded(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:  # noqa: ARG002
        block = self.options.block
        border = 8 * -(-len(total) // block)
        means, signs = payload[:border].view(np.float32).reshape(-1, 2) * np.float32(weight), payload[border:]
        for start, stop in chunks(len(total), block):
            below = np.unpackbits(signs[start // 8 : -(-stop // 8)])[: stop - start]
            decoded = blocks_of(below, 0, stop - start, block).astype(np.float32)
            others = 1 - decoded
            first = start // block
            decoded *= means[first : first + len(decoded), 0, None]
            others *= means[first : first + len(decoded), 1, None]
            decoded += others
            total[start:stop] += decoded.reshape(-1)[: stop - start]


def _sums(blocks: Array) -> npt.NDArray[np.floating]:
    """Of each row; in float64 where float32 has no room for it, though perhaps for the mean."""
    sums: npt.NDArray[np.floating] = blocks.sum(axis=1)
    if not np.isfinite(sums).all():
        sums = blocks.sum(axis=1, dtype=np.float64)
    return sums
