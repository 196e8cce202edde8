"""Datagrams of the UDP channel are read as they were written, and nothing else is read; a twin in Python agrees."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switch_agg.faults import corrupt
from tests.udp_twin import HEADER, Kind, check, pack, pack_acknowledged, unpack_acknowledged
from transports.channels._udp.native import Acknowledged, Named, Ranges, library
from transports.channels._udp.wire import ACKNOWLEDGEMENT_BYTES, HEADER_BYTES, MAX_RANGES, RANGE_BYTES
from transports.errors import FrameMismatchError

words = st.integers(0, 2**32 - 1)
SHORTS = ctypes.c_uint16 * (2 * MAX_RANGES)


def body(ranges: list[tuple[int, int]], *, delay_s: float = 0.0, arrived_s: float = 0.0) -> bytes:
    return pack_acknowledged(delay_s=delay_s, arrived_s=arrived_s, train_bytes=1448, marks=7, ranges=ranges)


def is_read(datagram: bytes) -> bytes | None:
    """The header, if it is one."""
    header = ctypes.create_string_buffer(HEADER_BYTES)
    return header.raw if library().read_header(datagram, len(datagram), header) else None


def read_ranges(largest: int, said: bytes) -> tuple[Acknowledged, list[tuple[int, int]]] | None:
    head, found = Acknowledged(), (Named * MAX_RANGES)()
    number = library().read_ranges(said, len(said), largest, ctypes.byref(head), found, MAX_RANGES)
    return None if number < 0 else (head, [(each.first, each.last) for each in found[:number][::-1]])


def written(ranges: list[tuple[int, int]]) -> bytes:
    """Those ranges as an acknowledgement has them."""
    numbers, pairs = Ranges(), SHORTS()
    for first, last in ranges:
        library().ranges_add(ctypes.byref(numbers), first, last + 1)
    number = library().write_ranges(ctypes.byref(numbers), pairs)
    return bytes(pairs)[: RANGE_BYTES * number]


@given(words, words, st.sampled_from(Kind), st.integers(0, 2**64 - 1), st.binary(max_size=200))
def test_what_is_written_is_read_here_and_by_the_twin(
    connection: int, number: int, kind: Kind, offset: int, body: bytes
) -> None:
    datagram = ctypes.create_string_buffer(HEADER_BYTES + len(body))
    length = library().write_datagram(datagram, connection, number, kind, offset, body, len(body))
    assert datagram.raw[:length] == pack(connection, number, kind, offset, body)
    assert is_read(datagram.raw[:length]) == datagram.raw[:HEADER_BYTES]


@given(st.binary(max_size=100), st.integers(0, 2**16 - 1))
def test_one_wrong_bit_is_noticed(body: bytes, place: int) -> None:
    assert is_read(corrupt(pack(1, 2, Kind.DATA, 3, body), place)) is None


@given(st.binary(min_size=1, max_size=100), st.data())
def test_what_is_cut_short_is_noticed(body: bytes, data: st.DataObject) -> None:
    datagram = pack(1, 2, Kind.DATA, 3, body)
    assert is_read(datagram[: data.draw(st.integers(0, len(datagram) - 1))]) is None


@pytest.mark.parametrize(("kind", "zero"), [(0, 0), (7, 0), (1, 1)])
def test_what_another_version_would_send_is_not_read(kind: int, zero: int) -> None:
    datagram = bytearray(HEADER.pack(0, 1, 2, kind, zero, 0, 3))
    datagram[:4] = check(datagram).to_bytes(4, "little")
    assert is_read(bytes(datagram)) is None


@given(st.integers(0, 2**40), st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), max_size=MAX_RANGES))
def test_acknowledged_ranges_are_read_as_written(first: int, pieces: list[tuple[int, int]]) -> None:
    ranges: list[tuple[int, int]] = []
    for gap, length in pieces:
        ranges.insert(0, (first + gap, first + gap + length - 1))
        first += gap + length
    largest = ranges[0][1] if ranges else 0
    said = body(ranges, delay_s=0.5, arrived_s=5000.000003)
    assert written(ranges) == said[ACKNOWLEDGEMENT_BYTES:]
    found = read_ranges(largest, said)
    assert found is not None
    head, named = found
    assert named == ranges
    assert (head.delay_us, head.arrived_us, head.train_bytes, head.marks) == (500_000, 5_000_000_003 % 2**32, 1448, 7)


@pytest.mark.parametrize(
    ("ranges", "kept"),
    [
        ([(number, number) for number in range(1000, 0, -2)], [(n, n) for n in range(1000, 1000 - 2 * MAX_RANGES, -2)]),
        ([(10**6, 10**6), (0, 1)], [(10**6, 10**6)]),
        ([(0, 10**6)], [(10**6 - 0xFFFE, 10**6)]),
    ],
)
def test_ranges_beyond_the_limits_are_left_out_from_below(
    ranges: list[tuple[int, int]], kept: list[tuple[int, int]]
) -> None:
    assert written(ranges) == body(ranges)[ACKNOWLEDGEMENT_BYTES:]
    found = read_ranges(kept[0][1], body(ranges))
    assert found is not None
    assert found[1] == kept


@given(st.integers(0, 2**33), st.binary(max_size=120))
def test_an_acknowledgement_that_nobody_would_write_is_refused(largest: int, said: bytes) -> None:
    found = read_ranges(largest, said)
    try:
        expected = unpack_acknowledged(largest, said)
    except FrameMismatchError:
        assert found is None
    else:
        kept = list(expected.ranges) if len(expected.ranges) <= MAX_RANGES else None
        assert (found and found[1]) == kept


@pytest.mark.parametrize(
    "said", [b"", bytes(17), body([(1, 2)])[:-1], body([(1, 2)])[:-2] + bytes(2), body([(90, 99)])]
)
def test_a_wrong_acknowledgement_is_refused(said: bytes) -> None:
    """Cut short, of no packets, of packets below the first."""
    assert read_ranges(8, said) is None


@given(st.integers(0, 2**50), st.integers(-(2**30), 2**30))
def test_a_number_is_distinguished_from_its_last_32_bits(near: int, distance: int) -> None:
    number = max(0, near + distance)
    assert library().whole_number(number & 0xFFFF_FFFF, near) == number
