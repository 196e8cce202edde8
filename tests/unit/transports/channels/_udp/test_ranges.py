"""Sets of integers."""

from hypothesis import given
from hypothesis import strategies as st

from transports.channels._udp.ranges import Ranges

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=30)


@given(pairs, st.integers(0, 60), st.integers(1, 20))
def test_ranges_are_a_set_of_integers(pieces: list[tuple[int, int]], start: int, length: int) -> None:
    ranges, numbers = Ranges(), set[int]()
    for begin, size in pieces:
        new = set(range(begin, begin + size)) - numbers
        numbers |= new
        assert ranges.add(begin, begin + size) == len(new)
    assert {number for pair in zip(ranges.starts, ranges.ends, strict=True) for number in range(*pair)} == numbers
    assert ranges.starts == sorted(ranges.starts)
    assert all(end < following for end, following in zip(ranges.ends, ranges.starts[1:], strict=False))
    assert ranges.covers(start, start + length) == (set(range(start, start + length)) <= numbers)
    assert ranges.prefix == next(number for number in range(100) if number not in numbers)


def test_the_largest_are_kept() -> None:
    ranges = Ranges()
    for number in range(0, 20, 2):
        ranges.add(number, number + 1)
    ranges.keep_last(2)
    assert (ranges.starts, ranges.ends) == ([16, 18], [17, 19])
