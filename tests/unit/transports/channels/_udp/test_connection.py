"""What the two streams have to do with each other; whole connections are in tests/simulation/test_udp.py."""

import ctypes
import gc
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switch_agg.core import Datagram
from switch_agg.round_trip import INITIAL_TIMEOUT_S, MAX_TIMEOUT_S, MIN_TIMEOUT_S, RoundTripEstimator
from switch_agg.window import AimdWindow, FixedWindow, Window
from tests.udp_twin import CLOSE, Kind, pack, pack_acknowledged, unpack
from transports.channels._udp import native
from transports.channels._udp.connection import WINDOW_PACE, Connection, Pace
from transports.channels._udp.native import Completions, Pacer, RoundTrip, Run, library
from transports.channels._udp.wire import OVERHEAD_BYTES
from transports.channels.framing import HEADER_BYTES, Farewell

MAX_RUN_PACKETS = 176
FRAME = bytes(HEADER_BYTES)


def connection(pace: Pace, packet_bytes: int, window: int | Window) -> Connection:
    return Connection(
        peer=("127.0.0.1", 0),
        local=1,
        remote=2,
        packet_bytes=packet_bytes,
        window=FixedWindow(window) if isinstance(window, int) else window,
        pace=pace,
        pacer=Pacer(),
        completions=Completions(),
        now_s=0.0,
    )


def next_run(sender: Connection, now_s: float) -> Run | None:
    run = Run()
    return run if library().connection_next_run(sender.address, now_s, ctypes.byref(run)) else None


def spare_s(sender: Connection) -> float:
    return float(library().connection_spare_s(sender.address))


def given_rate(rate_bps: float) -> Connection:
    """A sender of that rate, one of whose packets has taken a millisecond of round-trip time."""
    sender = connection(Pace.fixed(rate_bps), 1448, 8192)
    sender.post(FRAME, memoryview(bytes(100)), None)
    assert next_run(sender, 0.0) is not None
    acknowledge(sender, 0, 1e-3)
    return sender


def said(last: int, now_s: float, *, marks: int = 0) -> bytes:
    body = pack_acknowledged(delay_s=0.0, arrived_s=now_s, train_bytes=1500, marks=marks, ranges=[(0, last)])
    return pack(1, last, Kind.ACKNOWLEDGEMENT, 2**40, body)


def acknowledge(sender: Connection, last: int, now_s: float, *, marks: int = 0) -> None:
    sender.receive([Datagram(sender.peer, said(last, now_s, marks=marks))], now_s)


def test_a_sender_says_how_long_it_can_do_without_acknowledgements() -> None:
    rate_bps = 1e9
    sender = given_rate(rate_bps)
    wire_bytes = 1448 + OVERHEAD_BYTES
    pace_address = sender.address + native.ConnectionState.pace.offset
    num_allowed = int(library().pace_flight_bytes(pace_address)) // wire_bytes
    assert num_allowed > 100
    assert spare_s(sender) == math.inf  # with nothing under way
    sender.post(FRAME, memoryview(bytes(4_000_000)), 1)
    now_s, num_sent = 1e-3, 0
    while num_sent < num_allowed:
        now_s += 1e-3
        while (run := next_run(sender, now_s)) is not None:
            num_sent += run.num_packets
            assert spare_s(sender) == pytest.approx((num_allowed - num_sent) * wire_bytes * 8 / rate_bps)
    assert spare_s(sender) == 0.0
    # More than half of what may be under way, and still some milliseconds left.
    acknowledge(sender, num_sent * 2 // 5, now_s)
    assert sender.state.outgoing.num_under_way > num_allowed / 2
    assert spare_s(sender) > 2e-3


def test_before_the_first_round_trip_half_of_what_may_be_under_way_is_spare() -> None:
    sender = connection(WINDOW_PACE, 1448, 2 * MAX_RUN_PACKETS)
    sender.post(FRAME, memoryview(bytes(900_000)), 1)
    assert next_run(sender, 0.0) is not None
    assert spare_s(sender) == math.inf
    assert next_run(sender, 0.0) is not None
    assert spare_s(sender) == 0.0


def test_looking_before_anything_is_due_changes_nothing() -> None:
    sender = given_rate(1e9)
    sender.post(FRAME, memoryview(bytes(100_000)), 1)
    assert next_run(sender, 2e-3) is not None
    due_s = sender.deadline_s()
    sender.expire(2.1e-3)
    assert sender.deadline_s() == due_s
    assert not sender.state.num_waiting_bytes


def test_what_the_machine_did_not_take_of_a_run_is_sent_again() -> None:
    sender = connection(WINDOW_PACE, 100, 1000)
    sender.post(FRAME, memoryview(bytes(950 - HEADER_BYTES)), 1)
    run = next_run(sender, 0.0)
    assert run is not None
    assert (run.num_packets, run.num_bytes) == (10, 950)
    library().connection_take_back(sender.address, ctypes.byref(run), 4, 0.0)
    assert next_run(sender, 0.0) is None
    again = next_run(sender, 1.0)
    assert again is not None
    assert (again.first, again.num_packets, again.offset, again.num_bytes) == (10, 6, 400, 550)
    assert sender.state.outgoing.retransmitted_bytes == 0


def test_a_window_that_adapts_learns_of_every_packet_of_marks_and_of_loss() -> None:
    window = AimdWindow(4, 64)
    sender = connection(WINDOW_PACE, 100, window)
    sender.post(FRAME, memoryview(bytes(100_000)), 1)
    assert (run := next_run(sender, 0.0)) is not None
    assert run.num_packets == 4
    acknowledge(sender, 3, 1e-3)
    assert sender.state.window == window.size == 8  # slow start: one for each packet
    while next_run(sender, 1.0) is not None:
        pass
    assert sender.state.outgoing.num_under_way == 8
    acknowledge(sender, 11, 1.001, marks=1)
    assert sender.state.window == window.size
    assert 4 <= window.size < 8
    sender.state.round_trip.smoothed_s, before = 0.0, window.size
    while next_run(sender, 2.0) is not None:
        pass
    largest = sender.state.outgoing.next_number - 1
    body = pack_acknowledged(delay_s=0.0, arrived_s=3.0, train_bytes=100, marks=1, ranges=[(largest, largest)])
    sender.receive([Datagram(sender.peer, pack(1, largest, Kind.ACKNOWLEDGEMENT, 2**40, body))], 3.0)
    assert sender.state.window == window.size < before


@pytest.mark.parametrize("token", [None, 7])
def test_memory_is_the_owners_once_the_engine_needs_it_no_more(token: int | None) -> None:
    """A message without a token is copied; one with a token is kept until that completes, whatever its owner does."""
    sender = connection(WINDOW_PACE, 100, 1000)
    data = bytearray(b"x" * 500)
    sender.post(FRAME, memoryview(bytes(data)) if token else memoryview(data), token)
    data[:] = b"y" * 500
    gc.collect()
    sent = b"".join(bytes(unpack(datagram.data).body) for datagram in sender.transmit(0.0))
    assert sent == FRAME + b"x" * 500
    acknowledge(sender, 5, 1e-3)
    assert sender.delivered
    assert sender.completions.take() == ([] if token is None else [token])


def test_what_was_let_go_of_is_sent_no_more_and_leaving_says_so() -> None:
    """What was copied before it is still delivered: its token has completed."""
    sender = connection(WINDOW_PACE, 100, 1000)
    sender.post(FRAME, memoryview(b"x" * 60), None)
    sender.post(FRAME, memoryview(b"y" * 500), 7)
    assert next_run(sender, 0.0) is not None
    for _ in range(2):
        sender.let_go()
    assert next_run(sender, 1.0) is None
    assert sender.first_pending is None
    sender.leave(Farewell(3), 1.0)
    (close,) = [packet for each in sender.transmit(1.0) if (packet := unpack(each.data)).kind is Kind.CLOSE]
    assert close.offset == HEADER_BYTES + 60


def test_a_close_that_is_no_close_is_refused() -> None:
    receiver = connection(WINDOW_PACE, 100, 10)
    never_sent = CLOSE.pack(3, 1)
    for number, body in enumerate((b"long as nothing", (3).to_bytes(4, "little"), never_sent), 1):
        receiver.receive([Datagram(receiver.peer, pack(1, 5, Kind.CLOSE, 0, body))], 0.0)
        assert not receiver.peer_leaves
        assert receiver.num_rejected == number
    receiver.receive([Datagram(receiver.peer, pack(1, 5, Kind.CLOSE, 0, CLOSE.pack(3, 0)))], 0.0)
    assert receiver.farewell == Farewell(5, 2)


def carried(datagrams: Sequence[Datagram]) -> list[Datagram]:
    """As they arrive at the other end, whose number is 1 here as well."""
    return [Datagram(("127.0.0.1", 0), pack(1, *unpack(datagram.data)[1:])) for datagram in datagrams]


@pytest.mark.parametrize("acknowledgement", ["not due", "lost", "overtaken"])
def test_who_leaves_says_what_it_has(acknowledgement: str) -> None:
    """Its peer does not take for lost what has come, whatever became of the acknowledgement."""
    sender, receiver = connection(WINDOW_PACE, 100, 10), connection(WINDOW_PACE, 100, 10)
    sender.post(FRAME, memoryview(bytes(200)), 1)
    if acknowledgement != "not due":
        receiver.expect(FRAME, memoryview(bytearray(200)), 2)
    receiver.receive(carried(sender.transmit(0.0)), 1e-3)
    if acknowledgement == "not due":  # it came before anybody expected it
        receiver.expect(FRAME, memoryview(bytearray(200)), 2)
    assert receiver.completions.take() == [2]
    late = receiver.transmit(1.1e-3)
    assert [unpack(each.data).kind for each in late] == [Kind.ACKNOWLEDGEMENT] * (acknowledgement != "not due")
    receiver.leave(Farewell(1), 1.2e-3)
    close = receiver.transmit(1.2e-3)
    assert [unpack(each.data).kind for each in close] == [Kind.CLOSE]
    sender.receive(carried(close), 2e-3)
    assert sender.farewell == Farewell(1)
    assert sender.first_pending is None
    assert sender.completions.take() == [1]
    if acknowledgement == "overtaken":
        sender.receive(carried(late), 3e-3)
    assert sender.delivered
    assert sender.completions.take() == []
    assert sender.state.outgoing.num_under_way == 0
    assert sender.deadline_s() > 0.1  # nothing is sent again


@given(st.lists(st.floats(1e-6, 2.0), max_size=50), st.integers(1, 40))
def test_round_trips_are_reckoned_as_everywhere_else(round_trips_s: list[float], attempts: int) -> None:
    timer = RoundTrip(timeout_s=INITIAL_TIMEOUT_S, min_timeout_s=MIN_TIMEOUT_S, max_timeout_s=MAX_TIMEOUT_S)
    twin = RoundTripEstimator()
    for each in round_trips_s:
        library().round_trip_sample(ctypes.byref(timer), each)
        twin.sample(each)
    assert timer.timeout_s == pytest.approx(twin.timeout_s)
    assert timer.least_s == pytest.approx(twin.least_s)
    after_s = library().round_trip_after_attempts_s(ctypes.byref(timer), attempts)
    assert after_s == pytest.approx(twin.after_attempts_s(attempts))
