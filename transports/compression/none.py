"""No compression: float32 as it is."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from transports.compression.base import (
    COMPRESSORS,
    ELEMENT_BYTES,
    AllReduce,
    Array,
    Codec,
    Exchanging,
    Layout,
    Place,
    Shape,
    Summed,
    count,
)


@COMPRESSORS.register
class Uncompressed(Summed):
    """Everything is sent."""

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


class _Codec(Codec):
    def exchange(self, values: Array, out: Array, layout: Layout) -> Exchanging:  # noqa: ARG002
        import torch

        # As DistributedDataParallel does it, bit for bit: each gradient x 1/N, then the sum.
        out[:] = values * np.float32(1.0 / self.place.num_workers)
        yield AllReduce(torch.from_numpy(out), "sum")
