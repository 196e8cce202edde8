"""Small integers: drawn so that their expectation is the value, and packed several to a byte."""

from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from transports.compression.base import Array, Bytes

Width = Literal[2, 4, 8]
WIDTHS: Final[tuple[Width, ...]] = (2, 4, 8)


def num_levels(width: Width) -> int:
    """The largest level; with the negative ones and zero they fit the width."""
    return (1 << (width - 1)) - 1


def packed_bytes(num_elements: int, width: Width) -> int:
    """Bytes of so many packed levels."""
    return -(-num_elements * width // 8)


def draw(scaled: Array, levels: int, generator: np.random.Generator) -> Array:
    """One of the two levels beside each value in [-levels, levels], so that the expectation is the value.

    Counted from the lowest. A value that is a level stays one: the draw decides between a level and the next one by the
    remainder, which for it is zero. In place on the values. What is not a number becomes the lowest level.
    """
    scaled += levels
    # A value that rounding has put a little outside would spill over into its neighbour's bits.
    np.fmax(scaled, 0, out=scaled)
    np.minimum(scaled, 2 * levels, out=scaled)
    lower = np.floor(scaled)
    scaled -= lower
    lower += generator.random(scaled.shape, dtype=np.float32) < scaled
    return lower


def pack(levels: npt.NDArray[np.uint8], width: Width) -> Bytes:
    """Levels (n,) of so many bits each; the first in the lowest bits of the first byte."""
    per_byte = 8 // width
    if missing := -len(levels) % per_byte:
        levels = np.concatenate([levels, np.zeros(missing, np.uint8)])
    packed = levels[0::per_byte].copy()
    for position in range(1, per_byte):
        packed |= levels[position::per_byte] << np.uint8(position * width)
    return packed


def unpack(packed: Bytes, width: Width) -> npt.NDArray[np.uint8]:
    """The inverse, with what filled the last byte at the end."""
    per_byte = 8 // width
    levels = np.empty(len(packed) * per_byte, np.uint8)
    for position in range(per_byte):
        np.right_shift(packed, np.uint8(position * width), out=levels[position::per_byte])
    levels &= np.uint8(2**width - 1)
    return levels
