"""Tiles and what is kept of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports.compression._tiles import (
    index_bytes,
    largest,
    pack_indices,
    parameters,
    tiles_of,
    unpack_indices,
)


@pytest.mark.parametrize(
    ("shape", "side", "expected"),
    [
        ((128, 192), 64, (64, 64)),
        ((10, 97), 64, (10, 1)),
        ((96, 100), 64, (48, 50)),
        ((32, 3, 3, 3), 64, (32, 27)),
        ((300,), 64, (1, 60)),
        ((1,), 64, (1, 1)),
        ((), 64, (1, 1)),
    ],
)
def test_sides_are_the_largest_divisors_that_are_not_above_the_one_requested(
    shape: tuple[int, ...], side: int, expected: tuple[int, int]
) -> None:
    """As get_smaller_split of github.com/bloc97/DeMo has it."""
    tiles = tiles_of(shape, side)
    assert (tiles.height, tiles.width) == expected
    assert tiles.num_tiles * tiles.num_elements == np.prod(shape, dtype=int)


@given(rows=st.integers(1, 40), columns=st.integers(1, 40), side=st.integers(2, 16), kept=st.integers(1, 300))
def test_cutting_packing_and_placing_lose_nothing(rows: int, columns: int, side: int, kept: int) -> None:
    tiles = tiles_of((rows, columns), side)
    values = np.random.default_rng(rows * columns).standard_normal(rows * columns).astype(np.float32)
    cut = tiles.cut(values)
    assert np.array_equal(tiles.joined(cut), values)
    num_kept = min(kept, tiles.num_elements)
    chosen = largest(cut, num_kept)
    packed = pack_indices(chosen, tiles)
    assert len(packed) == index_bytes(tiles, num_kept)
    assert np.array_equal(unpack_indices(packed, tiles, num_kept), chosen)
    assert np.array_equal(values[tiles.places(chosen)], np.take_along_axis(cut, chosen, 1))
    sizes = np.sort(np.abs(cut), axis=1)[:, tiles.num_elements - num_kept :]
    assert np.array_equal(np.sort(np.abs(np.take_along_axis(cut, chosen, 1)), axis=1), sizes)


def test_parameters_without_elements_are_left_out() -> None:
    found = [(start, stop) for start, stop, _ in parameters([(0,), (2, 3), (4, 0), (5,)], 64)]
    assert found == [(0, 6), (6, 11)]
