"""Integers that add up: one scale for all workers, and registers wide enough for the sum.

Li, Basat, Vargaftik, Lao, Xu, Mitzenmacher, Yu 2024, "THC: Accelerating Distributed Deep Learning Using Tensor
Homomorphic Compression" (NSDI), with equal steps in place of its table and its clipping. Blocks are rotated by a random
Hadamard matrix, which makes their elements alike; the largest of all workers becomes the largest level, as many as the
sum of all workers' leaves room for. A switch that adds integers can add these. On the wire: the scale, a float32
reduced by maximum, then one register per element, blocks filled up.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from transports.compression.base import (
    CHUNK,
    COMPRESSORS,
    AllReduce,
    Array,
    Codec,
    Exchanging,
    Layout,
    Place,
    Shape,
    Summed,
    chunks,
    count,
)
from transports.errors import OptionError

_BLOCK = 1024


@COMPRESSORS.register
class TensorHomomorphic(Summed):
    """Rounded at random, so that the mean is right on average; with error feedback to the nearest."""

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

    def exchange(self, values: Array, out: Array, layout: Layout) -> Exchanging:  # noqa: ARG002
        import torch

        block, num_workers = _block(len(values)), self.place.num_workers
        levels = self.options.num_levels(num_workers)
        signs = 1 - 2 * self.shared.integers(0, 2, block).astype(np.float32)
        rotated = np.zeros((_filled(len(values)) // block, block), np.float32)
        rotated.reshape(-1)[: len(values)] = values
        for start, stop in chunks(len(rotated), max(1, CHUNK // block)):
            rotated[start:stop] = _rotate(rotated[start:stop] * signs)
        peak = np.maximum(rotated.max(), -rotated.min()).reshape(1)
        yield AllReduce(torch.from_numpy(peak), "max")
        step = peak[0] / np.float32(levels)
        registers = self._round(rotated, step, levels)
        if self.options.error_feedback:
            for start, stop in chunks(len(registers), max(1, CHUNK // block)):
                rotated[start:stop] = _rotate(registers[start:stop].astype(np.float32) * step) * signs
            values -= rotated.reshape(-1)[: len(values)]
        yield AllReduce(torch.from_numpy(registers.reshape(-1)), "sum")
        for start, stop in chunks(len(registers), max(1, CHUNK // block)):
            rotated[start:stop] = _rotate(registers[start:stop].astype(np.float32) * (step / num_workers)) * signs
        out[:] = rotated.reshape(-1)[: len(out)]

    def _round(self, rotated: Array, step: np.float32, levels: int) -> npt.NDArray[Any]:
        """To integers in [-levels, levels]."""
        registers = np.zeros(rotated.shape, np.int8 if self.options.register_bits == 8 else np.int16)
        inverse = np.float32(1) / step if step else np.float32(0)
        for start, stop in chunks(len(rotated), max(1, CHUNK // rotated.shape[1])):
            scaled = rotated[start:stop] * inverse
            if not self.options.error_feedback:
                scaled += self.private.random(scaled.shape, dtype=np.float32)
                np.floor(scaled, out=scaled)
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
