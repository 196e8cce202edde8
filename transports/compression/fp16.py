"""IEEE half precision: 11 significant bits, 6e-8 to 65504.

Micikevicius et al. 2018, "Mixed Precision Training" (ICLR); what Horovod and torch call fp16 compression. Gradients
beyond 65504 x the number of workers become infinite, which gradient scalers look for.
"""

from collections.abc import Sequence

from transports.compression.base import COMPRESSORS, Codec, Place, Shape, Summed, count


@COMPRESSORS.register
class HalfPrecision(Summed):
    """Cast, and added, in half precision."""

    @property
    def unbiased(self) -> bool:
        """It rounds to the nearest."""
        return False

    def contraction(self, num_elements: int) -> float:  # noqa: ARG002
        """Rounding errs by 2^-11 of an element; below 6e-5, where the type has fewer bits, by 3e-8."""
        return 1 - 2.0**-22

    def reductions(self, shapes: Sequence[Shape]) -> Sequence[tuple[int, int]]:
        """One, at half the bytes."""
        return [(count(shapes), 2)]

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        import torch

        from transports.compression._cast import CastCodec

        return CastCodec(self, place, torch.float16)
