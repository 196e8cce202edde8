"""What the two streams have to do with each other; whole connections are in tests/simulation/test_udp.py."""

import math

import pytest

from switch_agg.window import FixedWindow
from transports.channels._udp.connection import MAX_RUN_PACKETS, Connection
from transports.channels._udp.delivery import UNMEASURED
from transports.channels._udp.pacing import FixedPace, Pace, Pacer, WindowPace
from transports.channels._udp.wire import OVERHEAD_BYTES, Kind, pack, pack_acknowledged, unpack
from transports.channels.framing import HEADER_BYTES


def connection(pace: Pace, packet_bytes: int, window_packets: int) -> Connection:
    return Connection(
        peer=("127.0.0.1", 0),
        local=1,
        remote=2,
        packet_bytes=packet_bytes,
        window=FixedWindow(window_packets),
        pace=pace,
        pacer=Pacer(),
        now_s=0.0,
    )


def given(rate_bps: float) -> Connection:
    """A sender of that rate, one of whose packets has taken a millisecond of round-trip time."""
    sender = connection(FixedPace(rate_bps), 1448, 8192)
    sender.outgoing.post(bytes(HEADER_BYTES), memoryview(bytes(100)), None)
    assert sender.next_run(0.0) is not None
    acknowledge(sender, 0, 1e-3)
    return sender


def acknowledge(sender: Connection, last: int, now_s: float) -> None:
    body = pack_acknowledged(delay_s=0.0, arrived_s=now_s, train_bytes=1500, marks=0, ranges=[(0, last)])
    sender.on_control(unpack(pack(1, last, Kind.ACKNOWLEDGEMENT, 2**40, body)), now_s)


def test_a_sender_says_how_long_it_can_do_without_acknowledgements() -> None:
    rate_bps = 1e9
    sender = given(rate_bps)
    wire_bytes = 1448 + OVERHEAD_BYTES
    pace = FixedPace(rate_bps)
    pace.on_acknowledged(UNMEASURED, 1e-3, 0, 0.0)
    assert pace.flight_bytes is not None
    num_allowed = int(pace.flight_bytes) // wire_bytes
    assert sender.spare_s == math.inf  # with nothing under way
    sender.outgoing.post(bytes(HEADER_BYTES), memoryview(bytes(4_000_000)), None)
    now_s, num_sent = 1e-3, 0
    while num_sent < num_allowed:
        now_s += 1e-3
        while (run := sender.next_run(now_s)) is not None:
            num_sent += run.num_packets
            assert sender.spare_s == pytest.approx((num_allowed - num_sent) * wire_bytes * 8 / rate_bps)
    assert sender.spare_s == 0.0
    # More than half of what may be under way, and still some milliseconds left.
    acknowledge(sender, num_sent * 2 // 5, now_s)
    assert sender.outgoing.num_under_way > num_allowed / 2
    assert sender.spare_s > 2e-3


def test_before_the_first_round_trip_half_of_what_may_be_under_way_is_spare() -> None:
    sender = Connection(
        peer=("127.0.0.1", 0),
        local=1,
        remote=2,
        packet_bytes=1448,
        window=FixedWindow(2 * MAX_RUN_PACKETS),
        pace=WindowPace(),
        pacer=Pacer(),
        now_s=0.0,
    )
    sender.outgoing.post(bytes(HEADER_BYTES), memoryview(bytes(900_000)), None)
    assert sender.next_run(0.0) is not None
    assert sender.spare_s == math.inf
    assert sender.next_run(0.0) is not None
    assert sender.spare_s == 0.0


def test_looking_before_anything_is_due_changes_nothing() -> None:
    sender = given(1e9)
    sender.outgoing.post(bytes(HEADER_BYTES), memoryview(bytes(100_000)), None)
    assert sender.next_run(2e-3) is not None
    due_s = sender.deadline_s()
    sender.expire(2.1e-3)
    assert sender.deadline_s() == due_s
    assert not sender.controls(2.1e-3)


def test_what_the_machine_did_not_take_of_a_run_is_sent_again() -> None:
    sender = connection(WindowPace(), 100, 1000)
    sender.outgoing.post(bytes(HEADER_BYTES), memoryview(bytes(950 - HEADER_BYTES)), 1)
    run = sender.next_run(0.0)
    assert run is not None
    assert (run.num_packets, run.num_bytes) == (10, 950)
    sender.take_back(run, 4, 0.0)
    assert sender.next_run(0.0) is None
    again = sender.next_run(1.0)
    assert again is not None
    assert (again.first, again.num_packets, again.offset, again.num_bytes) == (10, 6, 400, 550)
    assert sender.outgoing.retransmitted_bytes == 0
