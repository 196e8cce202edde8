"""A given rate is kept, an unknown one is found."""

import pytest

from transports.channels._udp_pacing import BURST_S, CATCH_UP_S, MIN_FLIGHT_BYTES, DiscoveredPace, GivenPace, Pacer


def test_a_pacer_keeps_its_rate_and_catches_up_a_little() -> None:
    pacer, now_s = Pacer(), 1.0
    for _ in range(1000):
        now_s = max(now_s, pacer.next_s)
        pacer.spend(1514, 1e8, now_s)
    assert pacer.next_s == pytest.approx(1.0 - CATCH_UP_S + 1000 * 1514 * 8 / 1e8)
    pacer.spend(1514, 1e8, 100.0)
    assert pacer.next_s == pytest.approx(100.0 - CATCH_UP_S + 1514 * 8 / 1e8)
    before_s = pacer.next_s
    pacer.spend(10**9, None, 101.0)
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
    pace = GivenPace(2e8)
    assert pace.flight_bytes is None
    pace.on_acknowledged(None, 0.02, 0, 1.0)
    assert pace.rate_bps == 2e8
    assert 2e8 / 8 * 0.04 < (pace.flight_bytes or 0) < 2e8 / 8 * 0.06


@pytest.mark.parametrize("bottleneck_bps", [1e7, 2e8, 1e9])
def test_the_rate_of_a_bottleneck_is_found_and_kept(bottleneck_bps: float) -> None:
    """A fluid model: what is sent faster than the bottleneck waits in its queue."""
    pace, now_s, base_s, queue_bytes = DiscoveredPace(), 0.0, 0.01, 0.0
    assert pace.rate_bps is None
    assert pace.flight_bytes == MIN_FLIGHT_BYTES
    rates_bps = []
    for _ in range(4000):
        round_trip_s = base_s + queue_bytes * 8 / bottleneck_bps
        flight_bytes = pace.flight_bytes or 0.0
        asked_bps = min(pace.rate_bps or 1e12, flight_bytes * 8 / round_trip_s)
        delivered_bps = min(bottleneck_bps, asked_bps) if queue_bytes == 0 else bottleneck_bps
        queue_bytes = max(0.0, queue_bytes + (asked_bps - bottleneck_bps) / 8 * 1e-3)
        now_s += 1e-3
        pace.on_acknowledged(delivered_bps, round_trip_s, int(asked_bps / 8 * round_trip_s), now_s)
        rates_bps.append(pace.rate_bps or 0.0)
    settled = rates_bps[-1000:]
    assert sum(settled) / len(settled) == pytest.approx(bottleneck_bps, rel=0.05)


def found(delivery_bps: float = 1e9, *, until_s: float = 1.0, round_trip_s: float = 1e-4) -> DiscoveredPace:
    """One that has known its bottleneck for a while."""
    pace = DiscoveredPace()
    for step in range(round(until_s / 1e-3)):
        pace.on_acknowledged(delivery_bps, round_trip_s, 0, step * 1e-3)
    return pace


def test_a_sender_that_is_kept_away_for_a_while_does_not_forget_the_rate() -> None:
    pace = found(1e9)
    for step in range(50):
        pace.on_acknowledged(2e8, 8e-3, 0, 1.0 + step * 1e-3)
    assert (pace.rate_bps or 0.0) >= 0.75e9
    for step in range(200):
        pace.on_acknowledged(2e8, 8e-3, 0, 1.05 + step * 1e-3)
    assert (pace.rate_bps or 0.0) <= 1.25 * 2e8


@pytest.mark.parametrize(("waits_s", "share"), [(0.0, 0.0), (1e-3, 1 / 8), (20e-3, 1 / 8)])
def test_only_a_queue_that_holds_something_is_drained(waits_s: float, share: float) -> None:
    pace = found(1e9, round_trip_s=1e-4)
    slow = []
    for step in range(4000):
        pace.on_acknowledged(1e9, 1e-4 + BURST_S + waits_s, 0, 1.0 + step * 1e-4)
        slow.append((pace.rate_bps or 0.0) < 1e9)
    assert sum(slow) / len(slow) == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize("feigned", [1.0, 1.2, 1.4])
def test_a_queue_that_has_overflowed_is_not_filled_so_far_again(feigned: float) -> None:
    """A fluid model of 1 Gbit/s and a queue of 1 MB, whose acknowledgements come in lumps and feign a higher rate."""
    pace, now_s, queue_bytes, lost_bytes, sent_bytes, idle_s = found(feigned * 1e9), 1.0, 0.0, [], [], 0.0
    for _ in range(1900):
        now_s += 1e-3
        room_bytes = (pace.flight_bytes or 0.0) - queue_bytes
        sent = max(0.0, min((pace.rate_bps or 0.0) / 8 * 1e-3, room_bytes))
        waiting_bytes = queue_bytes + sent
        idle_s += max(0.0, 1e-3 - waiting_bytes * 8 / 1e9)
        lost = max(0.0, waiting_bytes - 125_000 - 1_000_000)
        queue_bytes = max(0.0, waiting_bytes - lost - 125_000)
        round_trip_s = 1e-4 + queue_bytes * 8 / 1e9
        pace.on_acknowledged(feigned * 1e9, round_trip_s, int(queue_bytes), now_s)
        pace.on_result(round((sent - lost) / 1514), round(lost / 1514), int(queue_bytes + lost), now_s)
        sent_bytes.append(sent)
        lost_bytes.append(lost)
    assert sum(lost_bytes[200:]) <= 0.002 * sum(sent_bytes[200:])
    assert idle_s < 0.01 * 1.9


def test_what_chance_loses_costs_no_room() -> None:
    pace = found(1e9)
    before = pace.flight_bytes
    for step in range(1000):
        pace.on_result(99, 1, 10**6, 1.0 + step * 1e-3)
    assert pace.flight_bytes == before


def test_a_ceiling_is_forgotten_and_leaves_room_enough() -> None:
    pace = found(1e9)
    before = pace.flight_bytes or 0.0
    for step in range(100):
        pace.on_result(80, 20, 10_000, 1.0 + step * 1e-3)
    assert 1e9 / 8 * 6e-3 < (pace.flight_bytes or 0.0) < before
    for step in range(100):
        pace.on_result(100, 0, 10_000, 1.1 + step * 0.1)
    assert pace.flight_bytes == before
