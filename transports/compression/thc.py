"""Integers that add up: one scale for all workers, and registers wide enough for the sum.

Li, Basat, Vargaftik, Lao, Xu, Mitzenmacher, Yu 2024, "THC: Accelerating Distributed Deep Learning Using Tensor
Homomorphic Compression" (NSDI), its uniform form: with equal steps (`thc_table` has the paper's table and clipping).
Blocks are rotated by a random Hadamard matrix, which makes their elements alike; the largest of all workers becomes the
largest level, as many as the sum of all workers' leaves room for. In-network aggregation of integers can add these.
On the wire: the scale, a float32 reduced by maximum, then one register per element, blocks filled up.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from transports.compression._levels import draw
from transports.compression._rotation import Rotation, filled, runs
from transports.compression.base import (
    COMPRESSORS,
    FLOAT32_MIN_NORMAL,
    AllReduce,
    Array,
    Codec,
    Exchange,
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
        return [(1, 4), (filled(count(shapes)), self.register_bits // 8)]

    def exchanges(self, shapes: Sequence[Shape], num_workers: int) -> Sequence[Exchange]:
        """All-reduces: of the greatest scale, of integers."""
        return [each._replace(sums_floats=False) for each in super().exchanges(shapes, num_workers)]

    def codec(self, place: Place) -> Codec:
        """One worker's."""
        return _Codec(self, place)


class _Codec(Codec):
    options: TensorHomomorphic  # type: ignore[misc]

    def exchange(self, values: Array, out: Array, layout: Layout, weight: float) -> Exchanging:  # noqa: ARG002
        import torch

        levels = self.options.num_levels(self.place.num_workers)
        rotation = Rotation(len(values), self.shared)
        rotated = rotation.forward(limited(values, self.options.valid_range.largest))
        peak = np.maximum(rotated.max(), -rotated.min()).reshape(1)
        yield AllReduce(torch.from_numpy(peak), "max")
        step = peak / np.float32(levels)
        step[step < FLOAT32_MIN_NORMAL] = 0  # its inverse would be infinite
        registers = self._round(rotated, step[0], levels)
        if self.options.error_feedback:
            values -= rotation.back(registers, step)
        yield AllReduce(torch.from_numpy(registers.reshape(-1)), "sum")
        out[:] = rotation.back(registers, step * np.float32(weight))

    def _round(self, rotated: Array, step: np.float32, levels: int) -> npt.NDArray[Any]:
        """To integers in [-levels, levels]."""
        registers = np.zeros(rotated.shape, np.int8 if self.options.register_bits == 8 else np.int16)
        inverse = np.float32(1) / step if step else np.float32(0)
        for start, stop in runs(rotated):
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
