"""A low-rank approximation of each parameter's gradient by one step of the power method.

Vogels, Karimireddy, Jaggi 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization"
(NeurIPS). A gradient of shape (a, ...) is a matrix M (a, b). With Q (b, r) of the time before, orthogonalised: P = M Q
is summed and orthogonalised, Q = M^T P is summed, and P Q^T stands for M. So what M is multiplied with has columns of
length 1, whatever the size of M. Parameters of one dimension, and those that would not shrink, travel as
they are, with the first of the two sums. On the wire: float32.

`start`, `min_compression_rate` and `batch_same_shapes` are `start_powerSGD_iter`, `min_compression_rate` and
`batch_tensors_with_same_shape` of torch's PowerSGDState (torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py),
whose defaults are 1000, 2 and False.
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
    min_compression_rate: float = Field(1.0, ge=1, le=1e6)
    """A gradient is factored where that saves more than this many times the elements."""
    batch_same_shapes: bool = False
    """Factor gradients of one shape together: less of the processor's time for many small ones, and memory for a copy
    of them. Results are the same but for roundings."""
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
    """A parameter, and where it lies in the bucket."""

    key: Hashable
    start: int
    stop: int
    matrix: tuple[int, int] | None


class _Batch(NamedTuple):
    """Matrices of one shape (rows, columns), factored together."""

    rows: int
    columns: int
    parts: list[_Part]

    def stacked(self, values: Array) -> Array:
        """Of the bucket's values (matrices, rows, columns): a view, where there is one."""
        matrices = [values[part.start : part.stop].reshape(self.rows, self.columns) for part in self.parts]
        return matrices[0][None] if len(matrices) == 1 else np.stack(matrices)


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
        batches, whole = self._batches(parts), [part for part in parts if part.matrix is None]
        sent = limited(values, self.options.valid_range.largest)
        matrices = [batch.stacked(sent) for batch in batches]
        first = _joined(
            [matrix @ self._query(batch) for batch, matrix in zip(batches, matrices, strict=True)]
            + [sent[part.start : part.stop] for part in whole],
            weight,
        )
        yield AllReduce(torch.from_numpy(first), "sum")
        *summed, rest = _cut(first, [self._elements(batch, batch.rows) for batch in batches])
        lefts = [_orthogonal(each.reshape(len(b.parts), b.rows, -1)) for b, each in zip(batches, summed, strict=True)]
        for part, mean in zip(whole, _cut(rest, [part.stop - part.start for part in whole]), strict=False):
            out[part.start : part.stop] = mean
            if self.options.error_feedback:
                values[part.start : part.stop] -= sent[part.start : part.stop]
        if not batches:
            return
        rights = [matrix.swapaxes(1, 2) @ left for matrix, left in zip(matrices, lefts, strict=True)]
        second = _joined(rights, weight)
        if self.options.error_feedback:
            for batch, left, right in zip(batches, lefts, rights, strict=True):
                for part, product in zip(batch.parts, left @ right.swapaxes(1, 2), strict=True):
                    values[part.start : part.stop] -= product.reshape(-1)
        yield AllReduce(torch.from_numpy(second), "sum")
        factors = _cut(second, [self._elements(batch, batch.columns) for batch in batches])
        for batch, left, each in zip(batches, lefts, factors, strict=False):
            self._finish(batch, left, each.reshape(len(batch.parts), batch.columns, -1), out)

    def _finish(self, batch: _Batch, left: Array, right: Array, out: Array) -> None:
        """Put the products in the bucket, and keep where the next time begins."""
        queries = _orthogonal(right)
        for number, part in enumerate(batch.parts):
            product = out[part.start : part.stop].reshape(batch.rows, batch.columns)
            np.matmul(left[number], right[number].T, out=product)
            if np.isfinite(right[number]).all() and right[number].any():  # zeros would find no direction ever again
                self._queries[part.key] = queries[number]
            else:
                self._queries.pop(part.key, None)

    def _parts(self, layout: Layout) -> list[_Part]:
        """In order. Those that have no Q are given one, in that order too, so that all workers draw the same."""
        parts, start = [], 0
        for piece in layout:
            stop = start + prod(piece.shape)
            parts.append(part := _Part(piece.key, start, stop, self.options.matrix(piece.shape)))
            if part.matrix and part.key not in self._queries:
                shape = part.matrix[1], self.options.rank
                self._queries[part.key] = _orthogonal(self.shared.standard_normal(shape, dtype=np.float32))
            start = stop
        return parts

    def _batches(self, parts: Sequence[_Part]) -> list[_Batch]:
        """Of one matrix each, unless those of one shape go together."""
        batches: dict[Hashable, _Batch] = {}
        for part in parts:
            if part.matrix:
                key = part.matrix if self.options.batch_same_shapes else part.start
                batches.setdefault(key, _Batch(*part.matrix, [])).parts.append(part)
        return list(batches.values())

    def _query(self, batch: _Batch) -> Array:
        """(matrices, columns, rank)."""
        return np.stack([self._queries[part.key] for part in batch.parts])

    def _elements(self, batch: _Batch, length: int) -> int:
        return len(batch.parts) * length * self.options.rank


def _joined(arrays: Sequence[Array], weight: float) -> Array:
    """All of them one after another, times the weight."""
    flat = np.concatenate([each.reshape(-1) for each in arrays])
    flat *= np.float32(weight)
    return flat


def _orthogonal(matrices: Array) -> Array:
    """(..., n, r) of orthogonal columns of length 1 that span the given ones, by Householder reflections: they are so
    also where the given ones are tiny, huge, zero, or depend on each other.
    """
    return np.linalg.qr(matrices)[0]


def _cut(flat: Array, lengths: Sequence[int]) -> list[Array]:
    """Parts of such lengths, and the rest."""
    return np.split(flat, np.cumsum(lengths))
