"""Elements drawn at random, the same on every worker, so that their values can be summed and need no indices.

Wangni, Wang, Liu, Zhang 2018, "Gradient Sparsification for Communication-Efficient Distributed Optimization" (NeurIPS);
Stich, Cordonnier, Jaggi 2018 (NeurIPS). The gradient is cut into k runs of nearly equal length, and one element is
drawn from each: distinct by construction, and much faster than drawing k of n without replacement.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from transports.compression.base import (
    COMPRESSORS,
    ELEMENT_BYTES,
    FLOAT32_MAX,
    AllReduce,
    Array,
    Codec,
    Exchanging,
    Layout,
    Place,
    Range,
    Ratio,
    Shape,
    Summed,
    count,
    num_kept,
)


@COMPRESSORS.register
class RandomK(Summed):
    """The share `ratio` of a bucket's elements, each multiplied by the length of the run that it stands for."""

    valid_range: ClassVar[Range] = Range(largest=2.0**103)

    ratio: Ratio = 0.01
    error_feedback: bool = True

    @property
    def unbiased(self) -> bool:
        """An element of a run of s is sent s-fold once in s times."""
        return True

    def variance(self, num_elements: int) -> float:
        """An element of a run of s adds s - 1 times its square; runs are at most n/k, rounded up."""
        kept = num_kept(num_elements, self.ratio)
        return -(-num_elements // kept) - 1.0 if kept else 0.0

    def reductions(self, shapes: Sequence[Shape]) -> Sequence[tuple[int, int]]:
        """The values drawn."""
        return [(num_kept(count(shapes), self.ratio), ELEMENT_BYTES)]

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(Codec):
    options: RandomK  # type: ignore[misc]

    def exchange(self, values: Array, out: Array, layout: Layout, weight: float) -> Exchanging:  # noqa: ARG002
        import torch

        finite = np.isfinite(values).all()
        indices, lengths = self._draw(len(values))
        lengths *= self.damping(len(values))
        kept = values[indices]
        if self.options.error_feedback:
            values[indices] -= kept * lengths
        weighted = self._weighted(kept, lengths, weight)
        if not finite:
            weighted[0] = np.nan  # perhaps nobody has drawn the element
        yield AllReduce(torch.from_numpy(weighted), "sum")
        out.fill(0.0)
        out[indices] = weighted

    def _weighted(self, kept: Array, lengths: Array, weight: float) -> Array:
        """What they stand for; limited so that the workers' sum is finite where they are."""
        largest = FLOAT32_MAX * min(1.0, weight)
        product = np.clip(kept.astype(np.float64) * lengths * weight, -largest, largest)
        return np.where(np.isfinite(kept), product, kept).astype(np.float32)

    def _draw(self, num_elements: int) -> tuple[npt.NDArray[np.int64], Array]:
        """An index from each run, and the runs' lengths."""
        kept = num_kept(num_elements, self.options.ratio)
        borders = np.arange(kept + 1) * num_elements // kept
        lengths = np.diff(borders)
        drawn = (self.shared.random(kept) * lengths).astype(np.int64)
        return borders[:-1] + drawn, lengths.astype(np.float32)
