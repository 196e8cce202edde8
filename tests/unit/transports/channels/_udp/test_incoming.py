"""What has come, what is put aside, when it is acknowledged; on a network it is in tests/simulation/test_udp.py."""

import pytest

from transports.channels._udp.incoming import (
    MAX_ACKNOWLEDGEMENT_DELAY_S,
    PACKETS_PER_ACKNOWLEDGEMENT,
    Arrival,
    Incoming,
)
from transports.channels._udp.wire import ASIDE_BYTES, Kind, Packet, unpack, unpack_acknowledged
from transports.channels.framing import HEADER_BYTES

HEADER = bytes(range(HEADER_BYTES))


def come(
    incoming: Incoming, number: int, offset: int, body: bytes, now_s: float = 0.0, *, marked: bool = False
) -> None:
    assert incoming.place(Packet(1, number, Kind.DATA, offset, body))
    incoming.on_packets(Arrival(number, 1, offset, len(body), marked, now_s, len(body)), now_s)


@pytest.mark.parametrize("expected_first", [True, False])
def test_a_message_lands_in_its_memory_wherever_its_bytes_waited(expected_first: bool) -> None:
    completions: list[int] = []
    incoming, view = Incoming(completions, 0.0), bytearray(300)
    payload = bytes(number % 251 for number in range(300))
    if expected_first:
        incoming.expect(HEADER, memoryview(view), 5)
    stream = HEADER + payload
    come(incoming, 1, 200, stream[200:])
    assert incoming.peek() is None
    come(incoming, 0, 0, stream[:200])
    if not expected_first:
        assert incoming.peek() == HEADER
        incoming.expect(HEADER, memoryview(view), 5)
    assert view == payload
    assert completions == [5]
    assert not incoming.expecting
    assert incoming.payload_bytes == len(stream)


def test_bytes_that_belong_nowhere_are_refused() -> None:
    incoming = Incoming([], 0.0)
    assert not incoming.place(Packet(1, 0, Kind.DATA, ASIDE_BYTES - 5, bytes(6)))
    assert not incoming.place(Packet(1, 0, Kind.DATA, 0, b""))
    assert incoming.place(Packet(1, 0, Kind.DATA, ASIDE_BYTES - 6, bytes(6)))


def test_a_frame_that_differs_completes_nothing() -> None:
    completions: list[int] = []
    incoming = Incoming(completions, 0.0)
    incoming.expect(HEADER, memoryview(bytearray(10)), 1)
    come(incoming, 0, 0, HEADER[::-1] + bytes(10))
    assert incoming.disagreement == (HEADER[::-1], HEADER)
    assert completions == []


def test_acknowledgements_are_late_only_while_all_is_well() -> None:
    incoming = Incoming([], 0.0)
    incoming.expect(HEADER, memoryview(bytearray(10_000)), 1)
    come(incoming, 0, 0, HEADER.ljust(100), 1.0)
    assert incoming.acknowledge_s == 1.0 + MAX_ACKNOWLEDGEMENT_DELAY_S
    come(incoming, 2, 200, bytes(100), 1.0)  # one is missing
    assert incoming.acknowledge_s == 0.0
    incoming.acknowledgement(9, 1.0)
    assert incoming.acknowledge_s is None
    come(incoming, 3, 300, bytes(100), 2.0, marked=True)
    assert incoming.acknowledge_s == 0.0
    incoming.acknowledgement(9, 2.0)
    for number in range(4, 4 + PACKETS_PER_ACKNOWLEDGEMENT):
        assert incoming.acknowledge_s != 0.0
        come(incoming, number, 100 * number, bytes(100), 3.0)
    assert incoming.acknowledge_s == 0.0


def test_an_acknowledgement_says_what_has_come_and_how_much_more_may() -> None:
    incoming = Incoming([], 0.0)
    come(incoming, 0, 0, bytes(100), 1.0)
    come(incoming, 2, 200, bytes(100), 1.5, marked=True)
    packet = unpack(incoming.acknowledgement(9, 2.0))
    said = unpack_acknowledged(packet.number, packet.body)
    assert (packet.connection, packet.number, packet.offset) == (9, 2, ASIDE_BYTES)
    assert said.ranges == ((2, 2), (0, 0))
    assert (said.delay_s, said.arrived_us, said.marks, said.train_bytes) == (0.5, 1_500_000, 1, 100)


def test_posting_much_tells_the_sender_that_it_may_go_on() -> None:
    incoming = Incoming([], 0.0)
    incoming.expect(HEADER, memoryview(bytearray(1000)), 1)
    assert incoming.acknowledge_s is None
    incoming.expect(HEADER, memoryview(bytearray(ASIDE_BYTES // 4)), 2)
    assert incoming.acknowledge_s == 0.0
