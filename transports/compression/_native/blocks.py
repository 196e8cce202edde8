"""The native coder of blocks (blocks.c) as Python sees it: what `_blocks.py` does in numpy, in a fifth of the time."""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, Literal

import numpy as np

from switch_agg.native.build import build
from transports.compression.base import Array, Bytes
from transports.native import load_library

SOURCE: Final = Path(__file__).with_name("blocks.c")
CodeName = Literal["int8", "e4m3"]
NUMBERS: Final[dict[CodeName, int]] = {"int8": 0, "e4m3": 1}
"""enum code of blocks.c."""


def build_library() -> Path:
    """Where it is, built if need be. Raises UnsupportedError of switch_agg where it cannot be."""
    return build(SOURCE, "library")


@cache
def library() -> ctypes.CDLL | None:
    """The functions, built if need be; None, or UnsupportedError, as :func:`load_library` says, where there is no C
    compiler."""
    found = load_library(build_library, "int8 and fp8 take more of the processor's time than they need to")
    if found is None:
        return None
    pointer, u32, size = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_size_t
    found.encode_blocks.argtypes = (u32, pointer, pointer, size, size, pointer, pointer)
    found.decode_blocks.argtypes = (
        u32, pointer, pointer, pointer, size, size, ctypes.c_float, pointer, u32,
    )  # fmt: skip
    found.encode_blocks.restype = found.decode_blocks.restype = None
    return found


def encode(
    native: ctypes.CDLL, code: CodeName, values: Array, lengths: Sequence[int], block: int, scales: Bytes, codes: Bytes
) -> None:
    """Code parameters of so many elements, one after another in the values: a float32 for each block, and a byte for
    each element."""
    assert values.flags.c_contiguous, "what is read as one run is one"
    counts = np.array(lengths, np.uint64)
    native.encode_blocks(
        NUMBERS[code], values.ctypes.data, counts.ctypes.data, len(counts), block, scales.ctypes.data, codes.ctypes.data
    )


def decode(
    native: ctypes.CDLL,
    code: CodeName,
    scales: Bytes,
    codes: Bytes,
    lengths: Sequence[int],
    block: int,
    weight: float,
    total: Array,
    *,
    fresh: bool,
) -> None:
    """Add `weight` times what is coded to the total; to zeros in its place, if it is `fresh`."""
    assert total.flags.c_contiguous, "what is written as one run is one"
    assert codes.flags.c_contiguous, "and what is read"
    counts = np.array(lengths, np.uint64)
    native.decode_blocks(
        NUMBERS[code], scales.ctypes.data, codes.ctypes.data, counts.ctypes.data, len(counts), block, weight,
        total.ctypes.data, fresh,
    )  # fmt: skip
