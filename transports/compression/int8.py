"""8-bit integers with a scale for each block of a parameter: the largest absolute value of the block becomes 127.

Dettmers 2016, "8-Bit Approximations for Parallelism in Deep Learning" (ICLR), with the linear code of torch's
`quantization_hooks.py`. On the wire: a float32 per block, then a byte per element.
"""

from typing import ClassVar, Final

import numpy as np

from transports.compression._blocks import BlockCodec, Blocked, Code
from transports.compression.base import COMPRESSORS, Array, Bytes, Codec, Place

_LARGEST: Final = 127


def _narrow(scaled: Array, codes: Bytes) -> None:
    np.rint(scaled, out=scaled)
    codes.view(np.int8)[:] = scaled


def _wide(codes: Bytes) -> Array:
    return codes.view(np.int8).astype(np.float32)


@COMPRESSORS.register
class EightBitIntegers(Blocked):
    """Rounded to the nearest of 255 multiples of the block's scale."""

    code: ClassVar[Code] = Code("int8", _LARGEST, _narrow, _wide)

    def contraction(self, num_elements: int) -> float:  # noqa: ARG002
        """Rounding errs by at most 1/254 of the block's largest value, once for each of its elements."""
        return 1 - self.block / (2 * _LARGEST) ** 2

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return BlockCodec(self, place)
