"""Matrices cut into tiles, of each of which the largest few elements are kept: what DeMo and SparseLoCo share.

Peng, Quesnelle, Kingma 2024, "DeMo: Decoupled Momentum Optimization" (arXiv 2411.19870), github.com/bloc97/DeMo. The
sides of a tile are the largest divisors of the matrix' that are not above the one requested; a vector is cut into runs.
On the wire an index takes as many bits as tell the elements of a tile apart.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from transports.compression.base import Array, Bytes, Layout, Shape

Indices = npt.NDArray[np.int64]


class Tiles(NamedTuple):
    """Of one parameter; a gradient of shape (a, ...) is a matrix (a, b)."""

    rows: int
    columns: int
    height: int
    width: int

    @property
    def num_elements(self) -> int:
        """In each tile."""
        return self.height * self.width

    @property
    def num_tiles(self) -> int:
        """In all."""
        return self.rows * self.columns // self.num_elements

    def cut(self, values: Array) -> Array:
        """(rows * columns,) as (num_tiles, num_elements), a copy."""
        grid = values.reshape(self.rows // self.height, self.height, self.columns // self.width, self.width)
        return grid.swapaxes(1, 2).reshape(self.num_tiles, self.num_elements)

    def joined(self, tiles: Array) -> Array:
        """The inverse."""
        grid = tiles.reshape(self.rows // self.height, self.columns // self.width, self.height, self.width)
        return grid.swapaxes(1, 2).reshape(self.rows * self.columns)

    def places(self, indices: Indices) -> Indices:
        """Where in the parameter elements of its tiles lie, (num_tiles, any)."""
        above, beside = np.divmod(np.arange(self.num_tiles)[:, None], self.columns // self.width)
        row, column = np.divmod(indices, self.width)
        places: Indices = (above * self.height + row) * self.columns + beside * self.width + column
        return places


@lru_cache(maxsize=4096)
def tiles_of(shape: Shape, side: int) -> Tiles:
    """Of a parameter of that shape; none where it has no elements."""
    if len(shape) < 2:
        return Tiles(1, prod(shape), 1, _divisor(prod(shape), side))
    rows, columns = shape[0], prod(shape[1:])
    return Tiles(rows, columns, _divisor(rows, side), _divisor(columns, side))


def _divisor(length: int, most: int) -> int:
    return next((each for each in range(min(length, most), 1, -1) if length % each == 0), 1)


def parameters(shapes: Sequence[Shape], side: int) -> Iterator[tuple[int, int, Tiles]]:
    """Start and stop in the bucket, and tiles, of each that has elements."""
    start = 0
    for shape in shapes:
        if prod(shape):
            yield start, start + prod(shape), tiles_of(shape, side)
        start += prod(shape)


def shapes_of(layout: Layout) -> list[Shape]:
    """Of the parameters."""
    return [piece.shape for piece in layout]


def largest(tiles: Array, num_kept: int) -> Indices:
    """Of each tile, (num_tiles, num_kept), in order; one that is not a number counts as largest."""
    if num_kept >= tiles.shape[1]:
        return np.broadcast_to(np.arange(tiles.shape[1]), tiles.shape)
    import torch  # compressors are known, and planned with, where nothing computes

    # torch keeps a heap of the few that are kept, numpy partitions all of a tile: a third of the time for 32 of 4,096.
    _, chosen = torch.from_numpy(np.abs(tiles)).topk(num_kept, dim=1, sorted=False)
    return np.sort(chosen.numpy(), axis=1)


def index_bytes(tiles: Tiles, num_kept: int) -> int:
    """Of all tiles' indices."""
    return -(-tiles.num_tiles * num_kept * _index_bits(tiles) // 8)


def pack_indices(indices: Indices, tiles: Tiles) -> Bytes:
    """The lowest bit of the first index is the highest of the first byte."""
    places = np.arange(_index_bits(tiles))
    return np.packbits((indices.reshape(-1, 1) >> places & 1).astype(np.uint8))


def unpack_indices(packed: Bytes, tiles: Tiles, num_kept: int) -> Indices:
    """The inverse, (num_tiles, num_kept)."""
    bits, count = _index_bits(tiles), tiles.num_tiles * num_kept
    unpacked = np.unpackbits(packed, count=count * bits).reshape(count, bits)
    indices: Indices = (unpacked.astype(np.int64) << np.arange(bits)).sum(axis=1)
    return indices.reshape(tiles.num_tiles, num_kept)


def _index_bits(tiles: Tiles) -> int:
    return (tiles.num_elements - 1).bit_length()
