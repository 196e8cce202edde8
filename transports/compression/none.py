"""No compression: gradients as they are, in their own type."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from transports.compression.base import (
    COMPRESSORS,
    ELEMENT_BYTES,
    AllReduce,
    Codec,
    Exchanging,
    OwnTypeCodec,
    Place,
    Shape,
    Summed,
    count,
)

if TYPE_CHECKING:
    from torch import Tensor


@COMPRESSORS.register
class Uncompressed(Summed):
    """Everything is sent."""

    compresses: ClassVar[bool] = False
    own_type: ClassVar[bool] = True
    no_feedback: ClassVar[str] = "nothing is left out that could be fed back"

    @property
    def unbiased(self) -> bool:
        """Exact, in fact."""
        return True

    def contraction(self, num_elements: int) -> float:  # noqa: ARG002
        """All the way."""
        return 1.0

    def variance(self, num_elements: int) -> float:  # noqa: ARG002
        """None at all."""
        return 0.0

    def reductions(self, shapes: Sequence[Shape]) -> Sequence[tuple[int, int]]:
        """One, of everything."""
        return [(count(shapes), ELEMENT_BYTES)]

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(OwnTypeCodec):
    def exchange_tensor(self, buffer: "Tensor", weight: float) -> Exchanging:
        # As DistributedDataParallel does it, bit for bit: each gradient x 1/N, then the sum.
        buffer.mul_(weight)
        yield AllReduce(buffer, "sum")
