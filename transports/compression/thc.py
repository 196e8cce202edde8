"""Integers that add up: one scale for all workers, and registers wide enough for the sum.

Li, Basat, Vargaftik, Lao, Xu, Mitzenmacher, Yu 2024, "THC: Accelerating Distributed Deep Learning Using Tensor
Homomorphic Compression" (NSDI), with equal steps in place of its table and its clipping. Blocks are rotated by a random
Hadamard matrix, which makes their elements alike; the largest of all workers becomes the largest level, as many as the
sum of all workers' leaves room for. A switch that adds integers can add these. On the wire: the scale, a float32
reduced by maximum, then one register per element, blocks filled up.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import sqrt
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from transports.compression._levels import draw
from transports.compression.base import (
    CHUNK,
    COMPRESSORS,
    FLOAT32_MIN_NORMAL,
    AllReduce,
    Array,
    Codec,
    Exchanging,
    Layout,
    Place,
    Range,
    Shape,
    Summed,
    count,
    limited,
)
from transports.errors import OptionError

_BLOCK = 1024


@COMPRESSORS.register
class TensorHomomorphic(Summed):
    """Rounded at random, so that the mean is right on average; with error feedback to the nearest."""

    valid_range: ClassVar[Range] = Range(floor=2.0**-111, largest=2.0**112)

    register_bits: Literal[8, 16] = 8
    """Of the integers that are summed."""

    @property
    def unbiased(self) -> bool:
        """The neighbouring level is drawn so that it is."""
        return not self.error_feedback

    def damping(self, num_elements: int) -> float:  # noqa: ARG002
        """1: rounded to the nearest of levels that include zero, no rotated element errs by more than itself."""
        return 1.0

    def num_levels(self, num_workers: int) -> int:
        """The largest of one worker; the sum of all workers' stays in a register."""
        return int((2 ** (self.register_bits - 1) - 1) // num_workers)

    def check_world(self, num_workers: int) -> None:
        """There must be a level beside zero."""
        if not self.num_levels(num_workers):
            raise OptionError(
                f"compression.register_bits: a sum of {num_workers} workers' integers needs more than "
                f"{self.register_bits} bits; set it to 16"
            )

    def reductions(self, shapes: Sequence[Shape]) -> Sequence[tuple[int, int]]:
        """The scale; the registers."""
        return [(1, 4), (_filled(count(shapes)), self.register_bits // 8)]

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(Codec):
    options: TensorHomomorphic  # type: ignore[misc]

    def exchange(self, values: Array, out: Array, layout: Layout, weight: float) -> Exchanging:  # noqa: ARG002
        import torch

        block = _block(len(values))
        levels = self.options.num_levels(self.place.num_workers)
        signs = 1 - 2 * self.shared.integers(0, 2, block).astype(np.float32)
        rotated = np.zeros((_filled(len(values)) // block, block), np.float32)
        rotated.reshape(-1)[: len(values)] = limited(values, self.options.valid_range.largest)
        for start, stop in _runs(rotated):
            rotated[start:stop] = _rotate(rotated[start:stop] * signs)
        peak = np.maximum(rotated.max(), -rotated.min()).reshape(1)
        yield AllReduce(torch.from_numpy(peak), "max")
        step = peak[0] / np.float32(levels)
        if step < FLOAT32_MIN_NORMAL:  # whose inverse is infinite
            step = np.float32(0)
        registers = self._round(rotated, step, levels)
        if self.options.error_feedback:
            for start, stop in _runs(rotated):
                rotated[start:stop] = _rotate(registers[start:stop].astype(np.float32) * step) * signs
            values -= rotated.reshape(-1)[: len(values)]
        yield AllReduce(torch.from_numpy(registers.reshape(-1)), "sum")
        weighted_step = step * np.float32(weight)
        for start, stop in _runs(rotated):
            rotated[start:stop] = _rotate(registers[start:stop].astype(np.float32) * weighted_step) * signs
        out[:] = rotated.reshape(-1)[: len(out)]

    def _round(self, rotated: Array, step: np.float32, levels: int) -> npt.NDArray[Any]:
        """To integers in [-levels, levels]."""
        registers = np.zeros(rotated.shape, np.int8 if self.options.register_bits == 8 else np.int16)
        inverse = np.float32(1) / step if step else np.float32(0)
        for start, stop in _runs(rotated):
            scaled = rotated[start:stop] * inverse
            if not self.options.error_feedback:
                scaled = draw(scaled, levels, self.private)
                scaled -= levels
            else:
                np.rint(scaled, out=scaled)
                np.fmax(scaled, -levels, out=scaled)
                np.minimum(scaled, levels, out=scaled)
            registers[start:stop] = scaled
        return registers


def _block(num_elements: int) -> int:
    """The smallest power of two that holds so many elements, at most _BLOCK."""
    return min(_BLOCK, 1 << max(0, num_elements - 1).bit_length())


def _filled(num_elements: int) -> int:
    """Elements of whole blocks."""
    block = _block(num_elements)
    return -(-num_elements // block) * block


def _runs(blocks: Array) -> Iterator[tuple[int, int]]:
    """Start and stop of rows that fit the cache."""
    step = max(1, CHUNK // blocks.shape[1])
    for start in range(0, len(blocks), step):
        yield start, min(start + step, len(blocks))


@lru_cache
def _hadamard(size: int) -> Array:
    """Sylvester's matrix (size, size) of +1 and -1."""
    matrix: Array = np.ones((1, 1), dtype=np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]]).astype(np.float32)
    return matrix


def _rotate(blocks: Array) -> Array:
    """Each row times the Hadamard matrix of its length over the root of that: its own inverse.

    The matrix is the Kronecker product of two small ones, so two short matrix products do it.
    """
    num_blocks, block = blocks.shape
    rows = 1 << (block.bit_length() - 1) // 2
    cube = blocks.reshape(num_blocks, rows, block // rows)
    rotated: npt.NDArray[Any] = _hadamard(rows) @ cube @ _hadamard(block // rows)
    rotated *= np.float32(1 / sqrt(block))
    return rotated.reshape(num_blocks, block)
