"""One bit for each element, decoded as the mean of those on its side of zero; the error is fed back.

Seide, Fu, Droppo, Li, Yu 2014, "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
Training of Speech DNNs" (Interspeech), as in CNTK, where a matrix' columns have means of their own; here blocks do. On
the wire: two float32 per block, the means of what is negative and of the rest, then a bit per element.

Coding is native where there is a C compiler (`_native/onebit.c`), and in numpy where there is none, to the same bits.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from transports.compression._native import onebit as native
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

_LANES: Final = 8
"""Of onebit.c: sums of which a block's are added."""


@COMPRESSORS.register
class OneBit(Sharded):
    """A sign and two means."""

    native_libraries: ClassVar[Sequence[Callable[[], Path]]] = (native.build_library,)

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
        payload = np.empty(self.options.encoded_bytes([piece.shape for piece in layout]), np.uint8)
        means, signs = self._divided(payload, len(values))
        if (library := native.library()) is not None:
            native.encode(library, values, self.options.block, means, signs)
        else:
            encode(values, self.options.block, means, signs)
        return payload

    def add_decoded(self, payload: Bytes, total: Array, weight: float, layout: Layout) -> None:  # noqa: ARG002
        means, signs = self._divided(payload, len(total))
        if (library := native.library()) is not None:
            native.add_decoded(library, means, signs, self.options.block, weight, total)
        else:
            add_decoded(means, signs, self.options.block, weight, total)

    def _divided(self, payload: Bytes, num_elements: int) -> tuple[Bytes, Bytes]:
        """Means and signs."""
        border = 8 * -(-num_elements // self.options.block)
        return payload[:border], payload[border:]


def encode(values: Array, block: int, means: Bytes, signs: Bytes) -> None:
    """Write both means of each block, and a bit for each element: `encode_signs` of onebit.c."""
    pairs = means.view(np.float32).reshape(-1, 2)
    for start, stop in chunks(len(values), block):
        blocks = blocks_of(values, start, stop, block)
        below = blocks < 0
        signs[start // 8 : -(-stop // 8)] = np.packbits(below.reshape(-1)[: stop - start])
        num_below = np.count_nonzero(below, axis=1)
        num_others = np.minimum(block, len(values) - np.arange(start, stop, block)) - num_below
        first = start // block
        pairs[first : first + len(blocks), 0] = _sums(np.minimum(blocks, 0)) / np.maximum(num_below, 1)
        pairs[first : first + len(blocks), 1] = _sums(np.maximum(blocks, 0)) / np.maximum(num_others, 1)


def add_decoded(means: Bytes, signs: Bytes, block: int, weight: float, total: Array) -> None:
    """Add `weight` times what is coded to the total: `add_decoded_signs` of onebit.c."""
    pairs = means.view(np.float32).reshape(-1, 2) * np.float32(weight)
    for start, stop in chunks(len(total), block):
        bits = np.unpackbits(signs[start // 8 : -(-stop // 8)])[: stop - start]
        below = blocks_of(bits, 0, stop - start, block).view(np.bool_)
        below_mean, other_mean = pairs[start // block : start // block + len(below), :, None].swapaxes(0, 1)
        total[start:stop] += np.where(below, below_mean, other_mean).reshape(-1)[: stop - start]


def _sums(blocks: Array) -> npt.NDArray[np.float64]:
    """Of each row: in float64, which has room for those of any float32, and in lanes, the order in which C adds."""
    lanes = blocks.reshape(len(blocks), -1, _LANES)
    sums = np.zeros((len(blocks), _LANES))
    for row in range(lanes.shape[1]):
        sums += lanes[:, row]
    total = np.zeros(len(blocks))
    for lane in range(_LANES):
        total += sums[:, lane]
    return total
