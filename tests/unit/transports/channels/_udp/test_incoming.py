"""What has come, what is put aside, when it is acknowledged; on a network it is in tests/simulation/test_udp.py."""

import ctypes
import math
from typing import Any

import pytest

from tests.udp_twin import unpack, unpack_acknowledged
from transports.channels._udp import native
from transports.channels._udp.native import Arrival, Completions, library
from transports.channels._udp.wire import ASIDE_BYTES
from transports.channels.framing import HEADER_BYTES

MAX_ACKNOWLEDGEMENT_DELAY_S = ctypes.c_double.in_dll(library(), "MAX_ACKNOWLEDGEMENT_DELAY_S").value
PACKETS_PER_ACKNOWLEDGEMENT = ctypes.c_uint32.in_dll(library(), "PACKETS_PER_ACKNOWLEDGEMENT").value
HEADER = bytes(range(HEADER_BYTES))


class Incoming:
    def __init__(self) -> None:
        self.completions = Completions()
        self.state = native.Incoming()
        library().incoming_begin(ctypes.byref(self.state), self.completions.address, 0.0)

    def __del__(self) -> None:
        library().incoming_free(ctypes.byref(self.state))

    def _call(self, name: str, *arguments: Any) -> Any:
        return getattr(library(), f"incoming_{name}")(ctypes.byref(self.state), *arguments)

    def expect(self, header: bytes, view: memoryview, token: int) -> None:
        self.completions.hold(token, view)
        self._call("expect", header, native.address_of(view), len(view), token)

    def let_go(self) -> None:
        self._call("let_go")

    def peek(self) -> bytes | None:
        frame = ctypes.create_string_buffer(HEADER_BYTES)
        return frame.raw if self._call("peek", frame) else None

    def place(self, offset: int, body: bytes) -> bool:
        return bool(self._call("place", offset, body, len(body)))

    def on_packets(self, arrival: Arrival, now_s: float) -> None:
        self._call("on_packets", ctypes.byref(arrival), now_s)

    def acknowledgement(self, connection: int, now_s: float) -> bytes:
        room = ctypes.create_string_buffer(200)
        length = self._call("acknowledge", connection, now_s, room)
        return room.raw[:length]


def come(
    incoming: Incoming, number: int, offset: int, body: bytes, now_s: float = 0.0, *, marked: bool = False
) -> None:
    assert incoming.place(offset, body)
    arrival = Arrival(
        number=number,
        num_packets=1,
        offset=offset,
        num_bytes=len(body),
        train_bytes=len(body),
        marked=marked,
        arrived_s=now_s,
    )
    incoming.on_packets(arrival, now_s)


@pytest.mark.parametrize("expected_first", [True, False])
def test_a_message_lands_in_its_memory_wherever_its_bytes_waited(expected_first: bool) -> None:
    incoming, view = Incoming(), bytearray(300)
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
    assert incoming.completions.take() == [5]
    assert incoming.state.messages.num == 0
    assert incoming.state.payload_bytes == len(stream)


def test_bytes_that_belong_nowhere_are_refused() -> None:
    incoming = Incoming()
    assert not incoming.place(ASIDE_BYTES - 5, bytes(6))
    assert not incoming.place(0, b"")
    assert incoming.place(ASIDE_BYTES - 6, bytes(6))


def test_a_frame_that_differs_completes_nothing() -> None:
    incoming = Incoming()
    incoming.expect(HEADER, memoryview(bytearray(10)), 1)
    come(incoming, 0, 0, HEADER[::-1] + bytes(10))
    assert incoming.state.disagreement
    assert incoming.completions.take() == []


def test_acknowledgements_are_late_only_while_all_is_well() -> None:
    incoming = Incoming()
    incoming.expect(HEADER, memoryview(bytearray(10_000)), 1)
    come(incoming, 0, 0, HEADER.ljust(100), 1.0)
    assert incoming.state.acknowledge_s == 1.0 + MAX_ACKNOWLEDGEMENT_DELAY_S
    come(incoming, 2, 200, bytes(100), 1.0)  # one is missing
    assert incoming.state.acknowledge_s == 0.0
    incoming.acknowledgement(9, 1.0)
    assert incoming.state.acknowledge_s == math.inf
    come(incoming, 3, 300, bytes(100), 2.0, marked=True)
    assert incoming.state.acknowledge_s == 0.0
    incoming.acknowledgement(9, 2.0)
    for number in range(4, 4 + PACKETS_PER_ACKNOWLEDGEMENT):
        assert incoming.state.acknowledge_s != 0.0
        come(incoming, number, 100 * number, bytes(100), 3.0)
    assert incoming.state.acknowledge_s == 0.0


def test_an_acknowledgement_says_what_has_come_and_how_much_more_may() -> None:
    incoming = Incoming()
    come(incoming, 0, 0, bytes(100), 1.0)
    come(incoming, 2, 200, bytes(100), 1.5, marked=True)
    packet = unpack(incoming.acknowledgement(9, 2.0))
    said = unpack_acknowledged(packet.number, packet.body)
    assert (packet.connection, packet.number, packet.offset) == (9, 2, ASIDE_BYTES)
    assert said.ranges == ((2, 2), (0, 0))
    assert (said.delay_s, said.arrived_us, said.marks, said.train_bytes) == (0.5, 1_500_000, 1, 100)


def test_posting_much_tells_the_sender_that_it_may_go_on() -> None:
    incoming = Incoming()
    incoming.expect(HEADER, memoryview(bytearray(1000)), 1)
    assert incoming.state.acknowledge_s == math.inf
    incoming.expect(HEADER, memoryview(bytearray(ASIDE_BYTES // 4)), 2)
    assert incoming.state.acknowledge_s == 0.0


def test_what_was_received_without_a_gap_is_not_written_again() -> None:
    """The memory is its owner's again, and what comes late and straddles its end only adds what is missing."""
    incoming, view = Incoming(), bytearray(100)
    incoming.expect(HEADER, memoryview(view), 1)
    come(incoming, 0, 0, HEADER + bytes([1]) * 60)
    come(incoming, 1, HEADER_BYTES, bytes([2]) * 100)
    assert view == bytes([1]) * 60 + bytes([2]) * 40
    assert incoming.completions.take() == [1]
    come(incoming, 2, 0, HEADER + bytes([3]) * 100)
    assert view == bytes([1]) * 60 + bytes([2]) * 40


def test_what_was_let_go_of_is_acknowledged_and_not_written() -> None:
    incoming, view = Incoming(), bytearray(100)
    incoming.expect(HEADER, memoryview(view), 1)
    come(incoming, 0, 0, HEADER + bytes([1]) * 60)
    incoming.let_go()
    come(incoming, 1, HEADER_BYTES + 60, bytes([2]) * 40)
    assert view == bytes([1]) * 60 + bytes(40)
    assert incoming.state.payload_bytes == HEADER_BYTES + 100
    assert unpack_acknowledged(1, unpack(incoming.acknowledgement(9, 1.0)).body).ranges == ((0, 1),)
