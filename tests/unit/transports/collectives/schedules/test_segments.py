"""How buffers are cut."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transports.collectives.schedules.segments import MIN_SEGMENT_BYTES, parts, segments


@pytest.mark.parametrize("num_elements", [0, 1, 4, 10, 1001])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 7])
def test_parts_are_those_of_tensor_split(num_elements: int, num_parts: int) -> None:
    split = torch.arange(num_elements).tensor_split(num_parts)
    assert [list(range(start, start + count)) for start, count in parts(num_elements, num_parts)] == [
        part.tolist() for part in split
    ]


@given(
    start=st.integers(0, 2**40),
    count=st.integers(0, 2**34),
    element_bytes=st.sampled_from([1, 2, 4, 8]),
    segment_bytes=st.integers(2**22, 2**31),
    wanted=st.integers(1, 8),
)
def test_segments_are_the_run_in_order_and_none_is_too_long(
    start: int, count: int, element_bytes: int, segment_bytes: int, wanted: int
) -> None:
    cut = segments(start, count, element_bytes=element_bytes, segment_bytes=segment_bytes, wanted=wanted)
    position = start
    for segment_start, length in cut:
        assert segment_start == position
        assert 0 < length <= max(segment_bytes // element_bytes, 1)
        position += length
    assert position == start + count


def test_as_many_as_wanted_unless_too_short() -> None:
    def lengths(count: int, wanted: int) -> list[int]:
        return [length for _, length in segments(0, count, element_bytes=1, segment_bytes=2**20, wanted=wanted)]

    assert lengths(4 * MIN_SEGMENT_BYTES, 4) == [MIN_SEGMENT_BYTES] * 4
    assert lengths(MIN_SEGMENT_BYTES, 4) == [MIN_SEGMENT_BYTES]
    assert lengths(3, 4) == [3]
    assert lengths(0, 4) == []
