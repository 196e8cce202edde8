"""IEEE half precision: 11 significant bits, 6e-8 to 65504.

Micikevicius et al. 2018, "Mixed Precision Training" (ICLR); what Horovod and torch call fp16 compression. A worker's
share of the mean is cast: beyond 65504 times the number of workers it becomes infinite, which gradient scalers look for
(with error feedback it is limited, and the rest sent later), and below 6e-8 times that number little is left of it.
"""

from collections.abc import Sequence
from typing import ClassVar

from transports.compression.base import COMPRESSORS, Codec, Place, Range, Shape, Summed, count


@COMPRESSORS.register
class HalfPrecision(Summed):
    """Cast, and added, in half precision."""

    valid_range: ClassVar[Range] = Range(floor=2.0**-25, largest=65504.0)
    overflows: ClassVar[bool] = True

    @property
    def unbiased(self) -> bool:
        """It rounds to the nearest."""
        return False

    def contraction(self, num_elements: int) -> float:  # noqa: ARG002
        """Rounding errs by 2^-11 of an element; below 6e-5, with fewer bits, by half the smallest number."""
        return 1 - 2.0**-22

    def reductions(self, shapes: Sequence[Shape]) -> Sequence[tuple[int, int]]:
        """One, at half the bytes."""
        return [(count(shapes), 2)]

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        import torch

        from transports.compression._cast import CastCodec

        return CastCodec(self, place, torch.float16)
