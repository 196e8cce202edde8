"""bfloat16: the range of float32 with 8 significant bits.

Kalamkar et al. 2019, "A Study of BFLOAT16 for Deep Learning Training" (arXiv 1905.12322).
"""

from collections.abc import Sequence
from typing import ClassVar

from transports.compression.base import COMPRESSORS, Codec, Place, Range, Shape, Summed, count


@COMPRESSORS.register
class BrainFloat(Summed):
    """Cast, and added, in bfloat16."""

    valid_range: ClassVar[Range] = Range(floor=2.0**-126, largest=(2 - 2.0**-7) * 2.0**127)
    overflows: ClassVar[bool] = True

    @property
    def unbiased(self) -> bool:
        """It rounds to the nearest."""
        return False

    def contraction(self, num_elements: int) -> float:  # noqa: ARG002
        """Rounding errs by 2^-8 of an element."""
        return 1 - 2.0**-16

    def reductions(self, shapes: Sequence[Shape]) -> Sequence[tuple[int, int]]:
        """One, at half the bytes."""
        return [(count(shapes), 2)]

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        import torch

        from transports.compression._cast import CastCodec

        return CastCodec(self, place, torch.bfloat16)
