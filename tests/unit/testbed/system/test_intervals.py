"""Sets of times cover what they should, and counters move only in them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.system.intervals import bytes_while_busy, union


def test_coarse_samples_do_not_smear_bytes_over_short_gaps() -> None:
    """10 Hz samples, buckets in service 80 ms of every 100, the link full meanwhile: busy means full."""
    busy = (np.arange(10) / 10 + 0.01, np.arange(10) / 10 + 0.09)
    at_s = np.arange(11) / 10
    assert bytes_while_busy(at_s, np.arange(0.0, 880.0, 80.0), busy) == pytest.approx(800)


def test_bytes_that_pass_while_nothing_is_in_service_are_not_busy() -> None:
    busy = (np.array([0.0]), np.array([0.1]))
    assert bytes_while_busy(np.array([0.0, 0.1, 0.2, 0.3]), np.array([0.0, 50.0, 90.0, 99.0]), busy) == 50


moments = st.integers(0, 50)


@given(st.lists(st.tuples(moments, moments).map(sorted), max_size=12))
def test_union_covers_the_same_moments_with_disjoint_intervals(pairs: list[list[int]]) -> None:
    starts, ends = (np.array([pair[side] for pair in pairs], dtype=float) for side in (0, 1))
    merged_starts, merged_ends = union(starts, ends)
    assert np.all(merged_starts[1:] > merged_ends[:-1])
    for moment in np.arange(0, 50.5, 0.5):
        inside = any(low <= moment <= high for low, high in pairs)
        assert inside == bool(np.any((merged_starts <= moment) & (moment <= merged_ends)))
