"""A given rate is kept, an unknown one is found."""

import ctypes
import math

import pytest

from transports.channels._udp import native
from transports.channels._udp.connection import PaceKind
from transports.channels._udp.native import Delivery, library


def constant(name: str) -> float:
    return ctypes.c_double.in_dll(library(), name).value


BURST_S, CATCH_UP_BYTES, CATCH_UP_S = constant("BURST_S"), constant("CATCH_UP_BYTES"), constant("CATCH_UP_S")
LONGEST_CATCH_UP_S, MIN_FLIGHT_BYTES = constant("LONGEST_CATCH_UP_S"), constant("MIN_FLIGHT_BYTES")
MIN_INTERVAL_S, QUEUE_S = constant("MIN_INTERVAL_S"), constant("QUEUE_S")


class Pacer(native.Pacer):
    def opens(self, now_s: float) -> bool:
        return bool(library().pacer_opens(ctypes.byref(self), now_s))

    def pause(self, until_s: float) -> None:
        library().pacer_pause(ctypes.byref(self), until_s)

    def spend(self, num_bytes: int, rate_bps: float, now_s: float) -> None:
        library().pacer_spend(ctypes.byref(self), num_bytes, rate_bps, now_s)


class Pace:
    def __init__(self, kind: PaceKind, fixed_bps: float = 0.0) -> None:
        self._pace = native.Pace(kind=kind, fixed_bps=fixed_bps)

    @property
    def rate_bps(self) -> float:
        return float(library().pace_rate_bps(ctypes.byref(self._pace)))

    @property
    def flight_bytes(self) -> float:
        return float(library().pace_flight_bytes(ctypes.byref(self._pace)))

    def on_acknowledged(self, delivery: Delivery, round_trip_s: float, flight_bytes: int, now_s: float) -> None:
        library().pace_on_acknowledged(
            ctypes.byref(self._pace), ctypes.byref(delivery), round_trip_s, flight_bytes, now_s
        )


def test_a_pacer_keeps_its_rate_and_catches_up_a_little() -> None:
    pacer, now_s = Pacer(), 1.0
    for _ in range(1000):
        now_s = max(now_s, pacer.next_s)
        pacer.spend(1514, 1e8, now_s)
    assert pacer.next_s == pytest.approx(1.0 - LONGEST_CATCH_UP_S + 1000 * 1514 * 8 / 1e8)
    pacer.spend(1514, 1e8, 100.0)
    assert pacer.next_s == pytest.approx(100.0 - LONGEST_CATCH_UP_S + 1514 * 8 / 1e8)
    before_s = pacer.next_s
    pacer.spend(10**9, 0.0, 101.0)
    assert pacer.next_s == before_s


def test_a_burst_goes_on_for_its_time_and_ends_with_a_pause() -> None:
    pacer, sent_bytes, now_s = Pacer(), 0, 100.0
    pacer.spend(1514, 1e8, now_s)
    now_s = pacer.next_s
    while pacer.opens(now_s):
        pacer.spend(1514, 1e8, now_s)
        sent_bytes += 1514
    assert sent_bytes == pytest.approx(1e8 / 8 * BURST_S, abs=1514)
    assert not pacer.opens(now_s)
    assert pacer.next_s >= now_s + BURST_S
    now_s = pacer.next_s
    assert pacer.opens(now_s)
    pacer.pause(now_s + 1e-4)
    assert not pacer.opens(now_s)
    assert pacer.opens(now_s + 1e-4)


def test_a_given_rate_allows_two_round_trips_under_way() -> None:
    pace = Pace(PaceKind.FIXED, 2e8)
    assert pace.flight_bytes == math.inf
    pace.on_acknowledged(Delivery(-1.0, 0.0, 0.0), 0.02, 0, 1.0)
    assert pace.rate_bps == 2e8
    assert 2e8 / 8 * 0.04 < pace.flight_bytes < 2e8 / 8 * 0.06


@pytest.mark.parametrize("bottleneck_bps", [1e7, 2e8, 1e9])
def test_the_rate_of_a_bottleneck_is_found_and_kept(bottleneck_bps: float) -> None:
    """A fluid model: what is sent faster than the bottleneck waits in its queue."""
    pace, now_s, base_s, queue_bytes = Pace(PaceKind.PROBED), 0.0, 0.01, 0.0
    assert pace.rate_bps == 0.0
    assert pace.flight_bytes == MIN_FLIGHT_BYTES
    rates_bps = []
    for _ in range(4000):
        round_trip_s = base_s + queue_bytes * 8 / bottleneck_bps
        flight_bytes = pace.flight_bytes
        requested_bps = min(pace.rate_bps or 1e12, flight_bytes * 8 / round_trip_s)
        delivered_bps = min(bottleneck_bps, requested_bps) if queue_bytes == 0 else bottleneck_bps
        queue_bytes = max(0.0, queue_bytes + (requested_bps - bottleneck_bps) / 8 * 1e-3)
        now_s += 1e-3
        queue_s = round_trip_s - base_s
        delivery = Delivery(delivered_bps, 1e-3 if queue_s >= QUEUE_S else 0.0, queue_s)
        pace.on_acknowledged(delivery, round_trip_s, int(requested_bps / 8 * round_trip_s), now_s)
        rates_bps.append(pace.rate_bps)
    settled = rates_bps[-1000:]
    assert sum(settled) / len(settled) == pytest.approx(bottleneck_bps, rel=0.05)


def found(rate_bps: float) -> Pace:
    """One that has known its bottleneck for a while."""
    pace = Pace(PaceKind.PROBED)
    for step in range(1000):
        pace.on_acknowledged(Delivery(rate_bps, 0.0, 0.0), 1e-4, 0, step * 1e-3)
    return pace


def rate_after(pace: Pace, delivery: Delivery, duration_s: float, *, start_s: float = 1.0) -> float:
    """The largest rate of a whole cycle that follows on such acknowledgements."""
    rates_bps = []
    for step in range(round((duration_s + 16 * MIN_INTERVAL_S) / 1e-3)):
        pace.on_acknowledged(delivery, 1e-4, 0, start_s + step * 1e-3)
        if step * 1e-3 >= duration_s:
            rates_bps.append(pace.rate_bps)
    return max(rates_bps)


@pytest.mark.parametrize("rate_bps", [1e6, 2e8, 5e8, 1e9, 1e10])
def test_nobody_makes_up_for_more_than_queues_hold_or_the_scheduler_takes(rate_bps: float) -> None:
    pacer = Pacer()
    pacer.spend(1514, rate_bps, 100.0)
    made_up_s = 100.0 + 1514 * 8 / rate_bps - pacer.next_s
    assert made_up_s + 1e-12 >= CATCH_UP_S
    assert made_up_s <= LONGEST_CATCH_UP_S + 1e-12
    assert made_up_s * rate_bps / 8 <= max(CATCH_UP_BYTES, CATCH_UP_S * rate_bps / 8) * (1 + 1e-9)


def test_who_was_kept_from_sending_does_not_forget_the_rate() -> None:
    assert rate_after(found(1e9), Delivery(2e8, 0.0, 0.0), 1.0) >= 1e9


def test_what_a_busy_network_delivers_is_believed() -> None:
    assert rate_after(found(1e9), Delivery(2e8, 1e-3, QUEUE_S), 0.5) <= 1.25 * 2e8


def test_a_rest_ages_nothing() -> None:
    pace = found(1e9)
    assert rate_after(pace, Delivery(1e8, 0.0, 0.0), 0.0, start_s=3600.0) >= 1e9


def test_a_probe_that_finds_more_goes_on() -> None:
    """The network is ten times as fast as it was."""
    pace, now_s = found(1e8), 1.0
    while pace.rate_bps < 1e9:
        now_s += 1e-3
        pace.on_acknowledged(Delivery(pace.rate_bps, 0.0, 0.0), 1e-4, 0, now_s)
    assert now_s - 1.0 < 30 * MIN_INTERVAL_S


@pytest.mark.parametrize(("queue_s", "least", "most"), [(0.0, 0.1, 0.15), (5e-3, 0.3, 0.45)])
def test_a_deep_queue_is_drained_for_longer(queue_s: float, least: float, most: float) -> None:
    pace, slow = found(1e9), []
    for step in range(4000):
        pace.on_acknowledged(Delivery(1e9, 0.0, queue_s), 1e-4, 10**6, 1.0 + step * 1e-3)
        slow.append(pace.rate_bps < 1e9)
    assert least < sum(slow) / len(slow) < most
