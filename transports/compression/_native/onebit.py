"""The native coder of signs and means (onebit.c) as Python sees it: what `onebit.py` does in numpy, in a fifth of the
time."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Final

from switch_agg.native.build import build
from transports.compression.base import Array, Bytes
from transports.native import load_library

SOURCE: Final = Path(__file__).with_name("onebit.c")


def build_library() -> Path:
    """Where it is, built if need be. Raises UnsupportedError of switch_agg where it cannot be."""
    return build(SOURCE, "library")


@cache
def library() -> ctypes.CDLL | None:
    """The functions, built if need be; None, or UnsupportedError, as :func:`load_library` says, where there is no C
    compiler."""
    found = load_library(build_library, "onebit takes more of the processor's time than it needs to")
    if found is None:
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    found.encode_signs.argtypes = (pointer, size, size, pointer, pointer)
    found.add_decoded_signs.argtypes = (pointer, pointer, size, size, ctypes.c_float, pointer)
    found.encode_signs.restype = found.add_decoded_signs.restype = None
    return found


def encode(native: ctypes.CDLL, values: Array, block: int, means: Bytes, signs: Bytes) -> None:
    """Two float32 for each block, and a bit for each element."""
    assert values.flags.c_contiguous, "what is read as one run is one"
    native.encode_signs(values.ctypes.data, len(values), block, means.ctypes.data, signs.ctypes.data)


def add_decoded(native: ctypes.CDLL, means: Bytes, signs: Bytes, block: int, weight: float, total: Array) -> None:
    """Add `weight` times what is coded to the total."""
    assert total.flags.c_contiguous, "what is written as one run is one"
    assert means.flags.c_contiguous, "and what is read"
    assert signs.flags.c_contiguous, "and what is read"
    native.add_decoded_signs(means.ctypes.data, signs.ctypes.data, len(total), block, weight, total.ctypes.data)
