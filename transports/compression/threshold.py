"""The elements not below a threshold, and where they are: as many as there happen to be.

Strom 2015, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing" (Interspeech), with values in place
of the threshold's sign. On the wire: a length (int64), then for each an index (uint32) and a value (float32); all
workers' payloads take as many bytes as the longest.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from transports.compression._sparse import ENTRY_BYTES, SparseCodec, pack
from transports.compression.base import (
    COMPRESSORS,
    Array,
    Bytes,
    Codec,
    Gathered,
    Layout,
    Place,
    Shape,
    count,
)


@COMPRESSORS.register
class Threshold(Gathered):
    """How much is sent depends on the gradients; the plan's estimate is everything."""

    data_dependent: ClassVar[bool] = True

    threshold: float = Field(1e-3, ge=0)
    """In the gradients' own unit."""
    error_feedback: bool = True

    @property
    def unbiased(self) -> bool:
        """It leaves out the small."""
        return False

    @property
    def homogeneous(self) -> bool:
        """The threshold stays where it is."""
        return False

    def damping(self, num_elements: int) -> float:  # noqa: ARG002
        """1: no contraction, for all may be below the threshold, but no element's error ever exceeds it."""
        return 1.0

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """At most."""
        return ENTRY_BYTES * count(shapes)

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(SparseCodec):
    options: Threshold  # type: ignore[misc]

    def encode(self, values: Array, layout: Layout) -> Bytes:  # noqa: ARG002
        return pack(np.flatnonzero(~(np.abs(values) < self.options.threshold)), values)
