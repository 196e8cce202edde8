"""A low-rank approximation of each parameter's gradient by one step of the power method.

Vogels, Karimireddy, Jaggi 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization"
(NeurIPS). A gradient of shape (a, ...) is a matrix M (a, b). With Q (b, r) of the time before, orthogonalised: P = M Q
is summed and orthogonalised, Q = M^T P is summed, and P Q^T stands for M. So what M is multiplied with has columns of
length 1, whatever the size of M. Parameters of one dimension, and those that would not shrink, travel as
they are, with the first of the two sums. On the wire: float32.

`start` and `min_compression_rate` are `start_powerSGD_iter` and `min_compression_rate` of torch's PowerSGDState
(torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py), whose defaults are 1000 and 2.
"""

from collections.abc import Hashable, Sequence
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from transports.compression._start import Exchanges, uncompressed
from transports.compression.base import (
    COMPRESSORS,
    ELEMENT_BYTES,
    AllReduce,
    Array,
    Codec,
    Exchanging,
    Layout,
    Place,
    Range,
    Shape,
    Summed,
    limited,
)


@COMPRESSORS.register
class PowerSgd(Summed):
    """Both factors are summed; the second one is where the next time begins."""

    stateful: ClassVar[bool] = True
    valid_range: ClassVar[Range] = Range(floor=2.0**-110, largest=2.0**110)

    rank: int = Field(4, ge=1, le=1024)
    """Columns of the factors."""
    start: int = Field(0, ge=0, le=10_000_000)
    """Iterations that go uncompressed first: gradients change direction fast at the beginning of training. At most as
    many as the workload warms up for, so that all measured iterations send the same."""
    min_compression_rate: float = Field(1.0, ge=1, le=1e6, allow_inf_nan=False)
    """A gradient is factored where that saves more than this many times the elements."""
    error_feedback: bool = True

    @property
    def unbiased(self) -> bool:
        """It is a projection."""
        return False

    def damping(self, num_elements: int) -> float:  # noqa: ARG002
        """1: a projection never makes the error longer, and the power method turns towards what is left of it."""
        return 1.0

    @property
    def settled_after(self) -> int:
        """As long as nothing is compressed."""
        return self.start

    def matrix(self, shape: Shape) -> tuple[int, int] | None:
        """Rows and columns of what is factored; None: it is sent as it is."""
        if len(shape) < 2 or not prod(shape):
            return None
        rows, columns = shape[0], prod(shape[1:])
        sent = self.rank * (rows + columns) * self.min_compression_rate
        return (rows, columns) if sent < rows * columns else None

    def reductions(self, shapes: Sequence[Shape]) -> Sequence[tuple[int, int]]:
        """All P and everything that is not factored; all Q."""
        first = second = 0
        for shape in shapes:
            if matrix := self.matrix(shape):
                first += matrix[0] * self.rank
                second += matrix[1] * self.rank
            else:
                first += prod(shape)
        return [(count, ELEMENT_BYTES) for count in (first, second) if count]

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Part(NamedTuple):
    """A parameter: where it lies in the bucket and, in its turn, in what is summed first."""

    key: Hashable
    start: int
    stop: int
    matrix: tuple[int, int] | None


class _Codec(Codec):
    options: PowerSgd  # type: ignore[misc]

    def __init__(self, options: PowerSgd, place: Place) -> None:
        super().__init__(options, place)
        self._queries: dict[Hashable, Array] = {}
        self._exchanges = Exchanges()

    def exchange(self, values: Array, out: Array, layout: Layout, weight: float) -> Exchanging:
        import torch

        if self._exchanges.next(layout) < self.options.start:
            yield from uncompressed(values, out, weight, error_feedback=self.options.error_feedback)
            return
        parts = self._parts(layout)
        rank = self.options.rank
        sent = limited(values, self.options.valid_range.largest)
        first = np.concatenate([self._first(part, sent) for part in parts])
        first *= np.float32(weight)
        yield AllReduce(torch.from_numpy(first), "sum")
        lefts, rights = {}, {}
        for part, summed in zip(parts, _cut(first, [self._length(part) for part in parts]), strict=True):
            if part.matrix is None:
                out[part.start : part.stop] = summed
                if self.options.error_feedback:
                    values[part.start : part.stop] -= sent[part.start : part.stop]
                continue
            left = lefts[part] = _orthogonal(summed.reshape(-1, rank))
            right = rights[part] = sent[part.start : part.stop].reshape(part.matrix).T @ left
            if self.options.error_feedback:
                values[part.start : part.stop].reshape(part.matrix)[...] -= left @ right.T
        if not rights:
            return
        second = np.concatenate([right.ravel() for right in rights.values()])
        second *= np.float32(weight)
        yield AllReduce(torch.from_numpy(second), "sum")
        for part, summed in zip(rights, _cut(second, [right.size for right in rights.values()]), strict=True):
            assert part.matrix is not None, "only matrices have a second factor"
            query = summed.reshape(-1, rank)
            np.matmul(lefts[part], query.T, out=out[part.start : part.stop].reshape(part.matrix))
            if np.isfinite(query).all() and query.any():  # zeros would find no direction ever again
                self._queries[part.key] = _orthogonal(query)
            else:
                self._queries.pop(part.key, None)

    def _parts(self, layout: Layout) -> list[_Part]:
        parts, start = [], 0
        for piece in layout:
            stop = start + prod(piece.shape)
            parts.append(_Part(piece.key, start, stop, self.options.matrix(piece.shape)))
            start = stop
        return parts

    def _length(self, part: _Part) -> int:
        return part.stop - part.start if part.matrix is None else part.matrix[0] * self.options.rank

    def _first(self, part: _Part, values: Array) -> Array:
        """What a parameter gives to the first sum."""
        own = values[part.start : part.stop]
        if part.matrix is None:
            return own
        if part.key not in self._queries:
            shape = part.matrix[1], self.options.rank
            self._queries[part.key] = _orthogonal(self.shared.standard_normal(shape, dtype=np.float32))
        product: Array = own.reshape(part.matrix) @ self._queries[part.key]
        return product.ravel()


def _orthogonal(matrix: Array) -> Array:
    """(n, r) of orthogonal columns of length 1 that span the given ones, by Householder reflections: they are so also
    where the given ones are tiny, huge, zero, or depend on each other.
    """
    return np.linalg.qr(matrix)[0]


def _cut(flat: Array, lengths: Sequence[int]) -> list[Array]:
    return np.split(flat, np.cumsum(lengths[:-1]))
