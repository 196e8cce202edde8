"""The largest elements and where they are.

Aji and Heafield 2017, "Sparse Communication for Distributed Gradient Descent" (EMNLP); Stich, Cordonnier, Jaggi 2018,
"Sparsified SGD with Memory" (NeurIPS) for the contraction. On the wire: for each an index (uint32) and a value
(float32).
"""

from collections.abc import Sequence

from transports.compression._sparse import ENTRY_BYTES, SparseCodec, largest, pack
from transports.compression.base import (
    COMPRESSORS,
    Array,
    Bytes,
    Codec,
    Gathered,
    Layout,
    Place,
    Ratio,
    Shape,
    count,
    num_kept,
)


@COMPRESSORS.register
class TopK(Gathered):
    """The share `ratio` of a bucket's elements that are largest in absolute value."""

    ratio: Ratio = 0.01
    error_feedback: bool = True

    @property
    def unbiased(self) -> bool:
        """It leaves out the small."""
        return False

    def contraction(self, num_elements: int) -> float:
        """The largest k of n hold at least k/n of the square."""
        return num_kept(num_elements, self.ratio) / num_elements if num_elements else 1.0

    def encoded_bytes(self, shapes: Sequence[Shape]) -> int:
        """Indices and values."""
        return ENTRY_BYTES * num_kept(count(shapes), self.ratio)

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(SparseCodec):
    options: TopK  # type: ignore[misc]

    def encode(self, values: Array, layout: Layout) -> Bytes:  # noqa: ARG002
        return pack(largest(values, num_kept(len(values), self.options.ratio)), values)
