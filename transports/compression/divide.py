"""The compressor of what-if studies: sends 1/c of the bytes and costs nothing else.

Zhang, Chang, Lin, Wang, Arora, Jin 2020, "Is Network the Bottleneck of Distributed Training?" (NetAI) divide the bytes
of a perfect compressor by c. Here the first n/c elements of each bucket are averaged; **the rest keeps each worker's
own values**, so that the times are those of a compressor of ratio c and the model learns nothing one should look at.
"""

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

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
    written,
)

if TYPE_CHECKING:
    from torch import Tensor


@COMPRESSORS.register
class Divide(Summed):
    """Bytes divided by `by`; the numbers are wrong on purpose."""

    replicas_agree: ClassVar[bool] = False
    own_type: ClassVar[bool] = True
    no_feedback: ClassVar[str] = "what is not sent is used where it is"

    by: float = Field(10.0, ge=1, le=1e6)
    """The compression ratio c."""

    @property
    def unbiased(self) -> bool:
        """What is not sent is not the mean of anything."""
        return False

    def sent(self, num_elements: int) -> int:
        """Elements that are averaged."""
        return ceil(num_elements / written(self.by))

    def reductions(self, shapes: Sequence[Shape]) -> Sequence[tuple[int, int]]:
        """One, of the first elements."""
        return [(self.sent(count(shapes)), ELEMENT_BYTES)]

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(OwnTypeCodec):
    options: Divide  # type: ignore[misc]

    def exchange_tensor(self, buffer: "Tensor", weight: float) -> Exchanging:
        sent = buffer[: self.options.sent(len(buffer))]
        sent.mul_(weight)
        yield AllReduce(sent, "sum")
