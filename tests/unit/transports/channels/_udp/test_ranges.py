"""Sets of integers."""

import ctypes
import itertools

from hypothesis import given
from hypothesis import strategies as st

from transports.channels._udp import native

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=30)


def found(ranges: native.Ranges) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in ranges.items[: ranges.num]] if ranges.num else []


@given(pairs, st.integers(0, 60), st.integers(1, 20))
def test_ranges_are_a_set_of_integers(pieces: list[tuple[int, int]], start: int, length: int) -> None:
    library, ranges, numbers = native.library(), native.Ranges(), set[int]()
    for begin, size in pieces:
        new = set(range(begin, begin + size)) - numbers
        numbers |= new
        assert library.ranges_add(ctypes.byref(ranges), begin, begin + size) == len(new)
    kept = found(ranges)
    assert {number for pair in kept for number in range(*pair)} == numbers
    assert kept == sorted(kept)
    assert all(pair[1] < following[0] for pair, following in itertools.pairwise(kept))
    covered = set(range(start, start + length)) <= numbers
    assert bool(library.ranges_cover(ctypes.byref(ranges), start, start + length)) == covered
    first_missing = next(number for number in range(100) if number not in numbers)
    assert library.ranges_prefix(ctypes.byref(ranges)) == first_missing


def test_the_largest_are_kept() -> None:
    ranges = native.Ranges()
    for number in range(0, 20, 2):
        native.library().ranges_add(ctypes.byref(ranges), number, number + 1)
    native.library().ranges_keep_last(ctypes.byref(ranges), 2)
    assert found(ranges) == [(16, 17), (18, 19)]
