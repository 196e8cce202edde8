"""Datagrams of the UDP channel are read as they were written, and nothing else is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switch_agg.faults import corrupt
from transports.channels._udp.wire import (
    MAX_RANGES,
    Kind,
    pack,
    pack_acknowledged,
    unpack,
    unpack_acknowledged,
    whole,
)
from transports.errors import FrameMismatchError

words = st.integers(0, 2**32 - 1)


def body(ranges: list[tuple[int, int]], *, delay_s: float = 0.0, arrived_s: float = 0.0) -> bytes:
    return pack_acknowledged(delay_s=delay_s, arrived_s=arrived_s, train_bytes=1448, marks=7, ranges=ranges)


@given(words, words, st.sampled_from(Kind), st.integers(0, 2**64 - 1), st.binary(max_size=200))
def test_what_is_packed_is_unpacked(connection: int, number: int, kind: Kind, offset: int, body: bytes) -> None:
    assert unpack(pack(connection, number, kind, offset, body)) == (connection, number, kind, offset, body)


@given(st.binary(max_size=100), st.integers(0, 2**16 - 1))
def test_one_wrong_bit_is_noticed(body: bytes, place: int) -> None:
    with pytest.raises(FrameMismatchError):
        unpack(corrupt(pack(1, 2, Kind.DATA, 3, body), place))


@given(st.binary(min_size=1, max_size=100), st.data())
def test_what_is_cut_short_is_noticed(body: bytes, data: st.DataObject) -> None:
    datagram = pack(1, 2, Kind.DATA, 3, body)
    with pytest.raises(FrameMismatchError):
        unpack(datagram[: data.draw(st.integers(0, len(datagram) - 1))])


@given(st.integers(0, 2**40), st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), max_size=MAX_RANGES))
def test_acknowledged_ranges_are_read_as_written(first: int, pieces: list[tuple[int, int]]) -> None:
    ranges: list[tuple[int, int]] = []
    for gap, length in pieces:
        ranges.insert(0, (first + gap, first + gap + length - 1))
        first += gap + length
    largest = ranges[0][1] if ranges else 0
    found = unpack_acknowledged(largest, body(ranges, delay_s=0.5, arrived_s=5000.000003))
    assert found == (0.5, 5_000_000_003 % 2**32, 1448, 7, tuple(ranges))


def test_ranges_beyond_the_limits_are_left_out_from_below() -> None:
    many = [(number, number) for number in range(1000, 0, -2)]
    assert unpack_acknowledged(1000, body(many)).ranges == tuple(many[:MAX_RANGES])
    assert unpack_acknowledged(10**6, body([(10**6, 10**6), (0, 1)])).ranges == ((10**6, 10**6),)
    assert unpack_acknowledged(10**6, body([(0, 10**6)])).ranges == ((10**6 - 0xFFFE, 10**6),)


@pytest.mark.parametrize("short", [b"", bytes(17), body([(1, 2)])[:-1]])
def test_a_short_acknowledgement_is_refused(short: bytes) -> None:
    with pytest.raises(FrameMismatchError):
        unpack_acknowledged(9, short)


@given(st.integers(0, 2**50), st.integers(-(2**30), 2**30))
def test_a_number_is_distinguished_from_its_last_32_bits(near: int, distance: int) -> None:
    number = max(0, near + distance)
    assert whole(number & 0xFFFF_FFFF, near) == number
