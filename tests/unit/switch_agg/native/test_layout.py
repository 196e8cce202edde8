"""What Python says of a structure is what C has, or there is nothing to run."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from switch_agg.errors import UnsupportedError
from switch_agg.native.build import build
from switch_agg.native.layout import layout_of

C = """
#include <stdint.h>
struct inner { double low, high; };
struct shared { uint32_t first; uint64_t second; struct inner range; uint8_t rest[3]; };
int of(struct shared *s) { return s->first; }
"""


class Shared(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_uint32),
        ("second", ctypes.c_uint64),
        ("low", ctypes.c_double),
        ("high", ctypes.c_double),
        ("rest", ctypes.c_uint8 * 3),
    )


RENAMED = {"low": "range.low", "high": "range.high"}
NUMPY = np.dtype(
    [
        ("first", "u4"),
        ("padding", "u4"),
        ("second", "u8"),
        ("range", [("low", "f8"), ("high", "f8")]),
        ("rest", "u1", 3),
        ("padding_behind", "u1", 5),
    ]
)


def source(folder: Path, text: str = C) -> Path:
    path = folder / "shared.c"
    path.write_text(text)
    return path


def test_both_forms_are_the_same() -> None:
    assert layout_of("shared", Shared, RENAMED) == layout_of("shared", NUMPY)


def test_a_library_is_built_where_both_sides_agree(tmp_path: Path) -> None:
    assert build(source(tmp_path), "library", layouts=[layout_of("shared", Shared, RENAMED)]).exists()


@pytest.mark.parametrize(
    ("was", "becomes", "named"),
    [
        ("uint32_t first; uint64_t second;", "uint64_t second; uint32_t first;", "struct shared.first"),
        ("double low, high;", "double high, low;", "struct shared.range.low"),
        ("uint32_t first;", "uint16_t first;", "struct shared.first"),
        ("uint8_t rest[3];", "uint8_t rest[4];", "struct shared.rest"),
        ("uint8_t rest[3];", "uint8_t rest[3]; double more;", "struct shared: size"),
    ],
)
def test_a_field_that_is_elsewhere_is_named_even_where_the_size_stays(
    tmp_path: Path, was: str, becomes: str, named: str
) -> None:
    assert was in C
    with pytest.raises(UnsupportedError) as raised:
        build(source(tmp_path, C.replace(was, becomes)), "library", layouts=[layout_of("shared", Shared, RENAMED)])
    assert named in str(raised.value)


def test_a_layout_that_changes_is_compiled_against_anew(tmp_path: Path) -> None:
    path = source(tmp_path)
    assert build(path, "library") != build(path, "library", layouts=[layout_of("shared", Shared, RENAMED)])
