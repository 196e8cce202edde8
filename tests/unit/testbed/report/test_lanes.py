"""Spans in one lane never overlap, and there are no more lanes than spans at one moment."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from testbed.report.lanes import Lanes

SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)))


@given(SPANS)
def test_overlapping_spans_are_apart_and_no_lane_is_wasted(given_spans: list[tuple[int, int]]) -> None:
    spans = sorted((begin, begin + length) for begin, length in given_spans)
    lanes = Lanes()
    taken = [lanes.take(*span) for span in spans]
    for (one, first), (other, second) in combinations(zip(taken, spans, strict=True), 2):
        assert one != other or first[1] <= second[0]
    most = max((sum(begin <= at < end for begin, end in spans) for at, _ in spans), default=0)
    assert len(lanes) == most
