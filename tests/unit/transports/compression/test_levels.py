"""Levels in a few bits."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transports.compression._levels import WIDTHS, draw, num_levels, pack, packed_bytes, unpack


@given(width=st.sampled_from(WIDTHS), data=st.data())
@settings(max_examples=100)
def test_packing_is_undone(width: Any, data: st.DataObject) -> None:
    levels = np.array(data.draw(st.lists(st.integers(0, 2**width - 1), max_size=40)), np.uint8)
    packed = pack(levels, width)
    assert len(packed) == packed_bytes(len(levels), width)
    assert unpack(packed, width)[: len(levels)].tolist() == levels.tolist()


def test_the_first_level_lies_lowest() -> None:
    assert pack(np.array([1, 2, 15], np.uint8), 4).tolist() == [0x21, 0x0F]
    assert pack(np.array([1, 2, 0, 2, 1], np.uint8), 2).tolist() == [0b10001001, 0b01]


@pytest.mark.parametrize("width", WIDTHS)
def test_values_outside_and_values_that_are_none_stay_within_their_bits(width: Any) -> None:
    levels = num_levels(width)
    given_in = np.array([-levels - 0.5, levels + 0.5, np.nan, 0.0], np.float32)
    drawn = draw(given_in, levels, np.random.default_rng(1))
    assert drawn.min() == 0
    assert drawn.max() == 2 * levels
    assert drawn[3] == levels


@pytest.mark.parametrize("levels", [1, 7, 127, 8191])
def test_what_is_a_level_stays_one(levels: int) -> None:
    """Zero above all: adding the draw first made 2e-7 to 4e-6 of all zeros ones, never minus ones."""
    generator = np.random.default_rng(1)
    for value in {0, 1, -1, levels, -levels}:
        drawn = draw(np.full(2**22, value, np.float32), levels, generator)
        assert (drawn == value + levels).all()


@pytest.mark.parametrize("levels", [1, 7, 127])
def test_small_values_of_both_signs_are_drawn_alike(levels: int) -> None:
    generator = np.random.default_rng(1)
    size, share = 2**22, 1e-3
    above = int((draw(np.full(size, share, np.float32), levels, generator) - levels).sum())
    below = int((draw(np.full(size, -share, np.float32), levels, generator) - levels).sum())
    deviation = np.sqrt(size * share)
    assert abs(above - size * share) < 5 * deviation
    assert abs(below + size * share) < 5 * deviation
