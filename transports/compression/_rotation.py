"""Blocks rotated by a random Hadamard matrix, which makes their elements alike: what both forms of THC share.

Each block of a bucket, filled up with zeros, is multiplied with random signs, the same on every worker, and with the
Hadamard matrix. Its length stays, and its elements become nearly normal, of the block's root mean square (Suresh, Yu,
Kumar, McMahan 2017, "Distributed Mean Estimation with Limited Communication", ICML).
"""

from collections.abc import Iterator
from functools import lru_cache
from math import sqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from transports.compression.base import CHUNK, Array

BLOCK: Final = 1024


class Rotation:
    """One draw of signs, for buckets of so many elements."""

    def __init__(self, num_elements: int, shared: np.random.Generator) -> None:
        self._num_elements = num_elements
        self._block = block_elements(num_elements)
        self._signs = 1 - 2 * shared.integers(0, 2, self._block).astype(np.float32)

    def forward(self, values: Array) -> Array:
        """(n,) as rotated blocks (blocks, elements), a new array."""
        rotated = np.zeros((filled(len(values)) // self._block, self._block), np.float32)
        rotated.reshape(-1)[: len(values)] = values
        for start, stop in runs(rotated):
            rotated[start:stop] = rotate(rotated[start:stop] * self._signs)
        return rotated

    def back(self, blocks: npt.NDArray[Any], scales: npt.NDArray[np.float32]) -> Array:
        """The inverse, (n,), of blocks of integers times a scale (), or one for each block (blocks, 1)."""
        turned = np.empty(blocks.shape, np.float32)
        each = np.broadcast_to(scales, (len(blocks), 1))
        for start, stop in runs(turned):
            turned[start:stop] = rotate(blocks[start:stop].astype(np.float32) * each[start:stop]) * self._signs
        return turned.reshape(-1)[: self._num_elements]


def block_elements(num_elements: int) -> int:
    """The smallest power of two that holds so many, at most BLOCK."""
    return min(BLOCK, 1 << max(0, num_elements - 1).bit_length())


def filled(num_elements: int) -> int:
    """Elements of whole blocks."""
    block = block_elements(num_elements)
    return -(-num_elements // block) * block


def runs(blocks: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Start and stop of rows that fit the cache."""
    step = max(1, CHUNK // blocks.shape[1])
    for start in range(0, len(blocks), step):
        yield start, min(start + step, len(blocks))


@lru_cache
def hadamard(size: int) -> Array:
    """Sylvester's matrix (size, size) of +1 and -1."""
    matrix: Array = np.ones((1, 1), dtype=np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]]).astype(np.float32)
    return matrix


def rotate(blocks: Array) -> Array:
    """Each row times the Hadamard matrix of its length over the root of that: its own inverse.

    The matrix is the Kronecker product of two small ones, so two short matrix products do it.
    """
    num_blocks, block = blocks.shape
    rows = 1 << (block.bit_length() - 1) // 2
    cube = blocks.reshape(num_blocks, rows, block // rows)
    rotated: npt.NDArray[Any] = hadamard(rows) @ cube @ hadamard(block // rows)
    rotated *= np.float32(1 / sqrt(block))
    return rotated.reshape(num_blocks, block)
