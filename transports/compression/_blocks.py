"""Blocks of elements with a scale of their own, which no two parameters share: a layer whose gradients are a million
times smaller than its neighbour's in the bucket keeps its bits."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final, NamedTuple

import numpy as np

from transports.compression.base import FLOAT32_MAX, SMALLEST_PEAK, Array, Layout, Shape, chunks

SCALE_BYTES: Final = 4
"""Of a block's scale, a float32."""


class Run(NamedTuple):
    """Elements of one parameter, whole blocks but for its last one."""

    first_block: int
    start: int
    stop: int


def num_blocks(shapes: Sequence[Shape], block: int) -> int:
    """Blocks of so many elements for parameters of these shapes; the last of each may be shorter."""
    return sum(-(-prod(shape) // block) for shape in shapes)


def runs(layout: Layout, block: int) -> Iterator[Run]:
    """All elements in order, in runs that fit the cache."""
    first_block = begin = 0
    for piece in layout:
        num_elements = prod(piece.shape)
        for start, stop in chunks(num_elements, block):
            yield Run(first_block + start // block, begin + start, begin + stop)
        first_block += -(-num_elements // block)
        begin += num_elements


def scales_of(blocks: Array, largest: float) -> tuple[Array, Array]:
    """For (blocks, elements) the scales (blocks,) that make their largest values `largest`, and the inverses; zeros
    where a block is too small for an inverse. A value times its inverse and then its scale is finite if it was.

    Those of a block with something that is not finite are not finite either, or zero.
    """
    peaks = np.abs(blocks).max(axis=1)
    scales = np.minimum(peaks, FLOAT32_MAX * (1 - 2.0**-20), where=np.isfinite(peaks), out=peaks.copy())
    scales /= np.float32(largest)
    inverses = np.divide(largest, peaks, out=np.zeros_like(peaks), where=peaks > SMALLEST_PEAK)
    return scales, inverses
