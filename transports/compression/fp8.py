"""8-bit floating point, E4M3: 4 significant bits, from 2^-9 to 448, with a scale for each block of a parameter that
makes the block's largest value 448.

Micikevicius et al. 2022, "FP8 Formats for Deep Learning" (arXiv 2209.05433); scales by block as in Rouhani et al. 2023,
"Microscaling Data Formats for Deep Learning" (arXiv 2310.10537), here a float32. On the wire: a float32 per block, then
a byte per element.
"""

from functools import cache
from typing import ClassVar, Final

import numpy as np

from transports.compression._blocks import BlockCodec, Blocked, Code
from transports.compression.base import COMPRESSORS, Array, Bytes, Codec, Place

_LARGEST: Final = 448.0
_SMALLEST: Final = 2.0**-9


def _narrow(scaled: Array, codes: Bytes) -> None:
    import torch

    np.clip(scaled, -_LARGEST, _LARGEST, out=scaled)  # what rounding has put beyond would be no number
    torch.from_numpy(codes).view(torch.float8_e4m3fn)[:] = torch.from_numpy(scaled)


def _wide(codes: Bytes) -> Array:
    # A byte is no index out of range; without looking for one it takes a quarter of the time.
    return np.take(_values(), codes, mode="wrap")


@cache
def _values() -> Array:
    """What each byte stands for, (256,)."""
    import torch

    values: Array = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    return values


@COMPRESSORS.register
class EightBitFloats(Blocked):
    """Rounded to the nearest."""

    code: ClassVar[Code] = Code("e4m3", _LARGEST, _narrow, _wide)

    def contraction(self, num_elements: int) -> float:  # noqa: ARG002
        """An element errs by 2^-4 of itself or, near zero, by half the smallest number, which is tiny beside the
        block's largest element but there as often as the block has elements."""
        return 1 - 2.0**-8 - self.block * (_SMALLEST / 2 / _LARGEST) ** 2

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return BlockCodec(self, place)
