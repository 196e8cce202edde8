"""The frame header: its bytes, and the errors that tell a disagreement."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports.channels.base import Header
from transports.channels.framing import (
    DTYPE_BYTES,
    DTYPES,
    GOODBYE,
    HEADER_BYTES,
    OPERATIONS,
    REDUCTIONS,
    Farewell,
    argument,
    describe,
    group_id,
    left,
    mismatch,
    pack,
    unpack,
)
from transports.errors import FrameMismatchError, PeerLostError, PeerTimeoutError
from transports.execution.operations import ReduceOperation

NUMBER = st.integers(0, 2**32 - 1)
HEADERS = st.builds(
    Header,
    group=NUMBER,
    sequence=NUMBER,
    operation=st.integers(0, len(OPERATIONS) - 1),
    dtype=st.integers(0, len(DTYPES) - 1),
    count=st.integers(0, 2**64 - 1),
    phase=NUMBER,
    argument=st.integers(0, len(REDUCTIONS) - 1),
    total=st.integers(0, 2**64 - 1),
)
ALL_REDUCE = Header(
    1, 7, OPERATIONS.index("all_reduce"), DTYPES.index("float32"), 512, 3, REDUCTIONS.index("avg"), 2048
)


@given(HEADERS)
def test_a_header_reads_back(header: Header) -> None:
    assert unpack(pack(header)) == header


def test_the_header_has_these_bytes() -> None:
    expected = "696e6131010000000700000003000000000200000000000002070400"
    packed = pack(ALL_REDUCE)
    assert packed[:28].hex() == expected
    assert packed[28:36] == (2048).to_bytes(8, "little")
    assert len(packed) == HEADER_BYTES == 40


@given(HEADERS, st.integers(0, HEADER_BYTES * 8 - 1))
def test_one_flipped_bit_is_noticed(header: Header, bit: int) -> None:
    data = bytearray(pack(header))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameMismatchError, match="not a frame header"):
        unpack(data)


def test_an_operation_of_a_later_version_is_reported() -> None:
    with pytest.raises(FrameMismatchError, match="another version"):
        unpack(pack(ALL_REDUCE._replace(operation=99)))
    with pytest.raises(FrameMismatchError, match=f"unknown reduction {len(REDUCTIONS)}: another version"):
        unpack(pack(ALL_REDUCE._replace(argument=len(REDUCTIONS))))


def test_a_mismatch_names_both_sides() -> None:
    expected = ALL_REDUCE._replace(
        operation=OPERATIONS.index("broadcast"), argument=argument(OPERATIONS.index("broadcast"), 0, 2)
    )
    error = mismatch(sender=1, sent=ALL_REDUCE, receiver=0, expected=expected)
    assert str(error) == (
        "rank 1 sends all_reduce (avg) #7 of 2048 float32 (8192 B), message 3: 512 float32; "
        "rank 0 expects broadcast (from rank 2) #7 of 2048 float32 (8192 B), message 3: 512 float32"
    )


def test_a_mismatch_of_groups_says_so() -> None:
    error = mismatch(sender=1, sent=ALL_REDUCE, receiver=0, expected=ALL_REDUCE._replace(group=2))
    assert "groups 0x1 and 0x2 differ" in str(error)


def test_a_point_to_point_message_is_reported_with_its_tag() -> None:
    assert "tag 3" in describe(ALL_REDUCE._replace(operation=OPERATIONS.index("point_to_point")))


def test_groups_differ_by_name() -> None:
    assert group_id("default") != group_id("default/1")


def test_every_reduction_has_its_number() -> None:
    assert get_args(ReduceOperation) == REDUCTIONS


def test_every_element_type_has_its_size() -> None:
    import torch

    assert [torch.empty(0, dtype=getattr(torch, name)).element_size() for name in DTYPES] == list(DTYPE_BYTES)


@pytest.mark.parametrize("farewell", [Farewell(0), Farewell(7), Farewell(7, lost=0), Farewell(2**32 - 1, lost=63)])
def test_a_goodbye_says_what_was_done_and_who_was_lost(farewell: Farewell) -> None:
    header = unpack(farewell.pack("group"))
    assert header.operation == GOODBYE
    assert header.group == group_id("group")
    assert Farewell.of(header) == farewell


def test_who_leaves_because_a_peer_was_lost_says_which_and_a_timeout_blames_nobody() -> None:
    assert Farewell.because(3, PeerLostError(2, "it closed the connection")) == Farewell(3, lost=2)
    assert Farewell.because(3, PeerTimeoutError(2, 1.0, "a message")) == Farewell(3)
    assert Farewell.because(3, None) == Farewell(3)


@pytest.mark.parametrize(
    ("lost", "named", "reason"),
    [
        (None, 1, "it closed the group after operation #4"),
        (1, 1, "it closed the group after operation #4"),
        (0, 1, "it closed the group after operation #4, having lost this rank"),
        (2, 2, "rank 1 has lost it, and closed the group after operation #4"),
    ],
)
def test_the_rank_that_was_lost_first_is_named(lost: int | None, named: int, reason: str) -> None:
    error = left(1, Farewell(4, lost), to=0)
    assert (error.peer, error.reason) == (named, reason)
