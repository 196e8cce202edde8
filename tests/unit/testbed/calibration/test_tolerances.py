"""What calibration makes of what was measured, and which links stand for which."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from testbed.calibration.cache import Mode
from testbed.calibration.losses import LossMeasurement
from testbed.calibration.queues import QueueMeasurement
from testbed.calibration.tolerances import (
    Calibration,
    ClassMeasurement,
    Dated,
    DelayMeasurement,
    Measurement,
    RateMeasurement,
    judge,
    link_class,
)
from testbed.experiment.clock import Clock
from testbed.experiment.experiment import validate
from testbed.links.htb import goodput_fraction
from testbed.plan.plan import Plan, make_plan

DATED = Dated(measured_at="2026-01-01T00:00:00+00:00", direction="w0 -> s0", from_cache=False)


def plan(**keys: Any) -> Plan:
    return make_plan(validate({"name": "t", "workers": 2, **keys}))


def measured(**changes: Any) -> Measurement:
    reported: Mapping[str, Any] = {
        "link": "w0-s0", "sender": "w0", "receiver": "s0", "link_class": "c", "delay_s": 20e-6,
        "goodput_bps": 100e6 * goodput_fraction(), "rate_bps": 100e6, "rate_of": "w0 -> s0", "congestion": "cubic",
        "delay_attempts_s": (20e-6,), "rate_attempts_bps": (100e6 * goodput_fraction(),),
    }  # fmt: skip
    return Measurement(**{**reported, **changes})


def of_class(**changes: Any) -> Calibration:
    reported: Mapping[str, Any] = {
        "link_class": "c", "num_directions": 2, "loss": None, "loss_dated": DATED, "queue": None,
        "queue_dated": DATED, "rate_dated": DATED, "not_measured": {},
        "rate": RateMeasurement(goodput_bps=95e6, congestion="cubic", attempts_bps=(95e6,)),
        "attempts": {},
    }  # fmt: skip
    return Calibration(mode=Mode.CLASS, classes=[ClassMeasurement(**{**reported, **changes})])


def test_a_rate_that_was_measured_before_is_so_whatever_direction_it_was_of() -> None:
    direction = plan().directions[0]
    rate = RateMeasurement(goodput_bps=95e6, congestion="cubic", attempts_bps=(90e6, 95e6))
    delay = DelayMeasurement(20e-6, (21e-6, 20e-6))
    now = Measurement.of(direction, "c", delay, rate, DATED)
    assert (now.rate_of, now.rate_from_cache) == (direction.name, False)
    before = Measurement.of(direction, "c", delay, rate, replace(DATED, from_cache=True))
    assert before == replace(now, rate_from_cache=True)
    assert (now.link, now.sender, now.receiver, now.link_class) == ("w0-s0", "w0", "s0", "c")
    assert (now.rate_bps, now.rate_attempts_bps) == (rate.rate_bps, rate.attempts_bps)
    assert (now.delay_s, now.delay_attempts_s) == delay


def wrong(*links: Measurement, **keys: Any) -> list[str]:
    return judge(plan(**keys), Calibration(mode=Mode.CLASS, links=links))


def test_links_of_one_configuration_between_the_same_kinds_of_nodes_are_one_class() -> None:
    star = plan(workers=4)
    assert len({link_class(star, direction) for direction in star.directions}) == 2
    uneven = plan(workers=4, links={"w3-s0": {"delay": "5ms"}})
    assert len({link_class(uneven, direction) for direction in uneven.directions}) == 4
    back = plan(workers=4, links={"s0->w3": {"delay": "5ms"}})
    classes = {direction.hop: link_class(back, direction) for direction in back.directions}
    assert len(set(classes.values())) == 4, "a stream from w3 has longer round trips than one from w2"
    assert ", 0ns back" not in classes["w2", "s0"]
    assert " 5ms back, " in classes["w3", "s0"]


@pytest.mark.parametrize("made", [{"switch": "bridged"}, {"runtime": "docker"}])
def test_what_makes_switches_and_hosts_makes_other_classes(made: dict[str, str]) -> None:
    usual, other = plan(), plan(**made)
    assert link_class(usual, usual.directions[0]) != link_class(other, other.directions[0])


def test_a_link_that_stands_for_a_faster_one_is_a_class_of_its_own() -> None:
    """It has that one's bursts, and super-frames: what was measured of the one is not known of the other."""
    slow = plan(workload="synthetic", link={"rate": "100mbit"}).real()
    stands = plan(workload="synthetic", link={"rate": "10gbit"}, dilation=100).real()
    assert slow.directions[0].requested == stands.directions[0].requested
    names = [link_class(each, each.directions[0]) for each in (slow, stands)]
    assert names[1] == names[0].replace(", cubic", ", bursts of 125000 B, super-frames of any number of packets, cubic")
    same = plan(workload="synthetic", link={"rate": "10gbit"})
    assert link_class(same, same.directions[0]) == link_class(same.real(), same.real().directions[0])


def test_what_holds_is_not_mentioned() -> None:
    assert wrong(measured()) == []
    assert wrong(measured(rate_bps=100.9e6)) == wrong(measured(rate_bps=99.1e6)) == []


@pytest.mark.parametrize("rate_bps", [98.9e6, 101.1e6])
def test_a_rate_beyond_one_percent_names_the_direction_that_was_measured(rate_bps: float) -> None:
    (reason,) = wrong(measured(rate_bps=rate_bps))
    assert reason.startswith("w0 -> s0: measured")
    assert wrong(measured(rate_bps=rate_bps, rate_of="w1 -> s0")) == []  # said of that one


@pytest.mark.parametrize("drawn", [{"loss": "1%"}, {"jitter": "1ms"}, {"reorder": "2%"}])
def test_what_disturbs_tcp_excuses_too_little_but_not_too_much(drawn: dict[str, str]) -> None:
    link = {"delay": "5ms", **drawn}
    assert wrong(measured(rate_bps=50e6, delay_s=5e-3), link=link) == []
    assert wrong(measured(rate_bps=102e6, delay_s=5e-3), link=link)


def test_a_queue_that_does_not_hold_a_round_trip_is_named_wherever_the_delay_is() -> None:
    (reason,) = wrong(measured(rate_bps=50e6), links={"s0->w0": {"delay": "100ms"}})
    assert reason.endswith("a round trip has 1250kB under way and the queue holds only 1MB: raise link.queue")
    (reason,) = wrong(measured(rate_bps=50e6), links={"s0->w0": {"delay": "50ms"}})
    assert "queue" not in reason


def test_delays_and_congestion_controls_are_judged_on_every_link() -> None:
    (late,) = wrong(measured(delay_s=5.4e-3, rate_of="w1 -> s0"), link={"delay": "5ms"})
    assert "measured a delay of 5400 us, requested 5000" in late
    assert wrong(measured(delay_s=4.7e-3), link={"delay": "5ms"})
    assert "TCP used reno" in wrong(measured(congestion="reno"))[0]


def test_losses_and_queues_outside_their_bounds_name_the_numbers() -> None:
    loss = LossMeasurement(requested=0.05, num_packets=8000, num_lost=80, low=0.006, high=0.015)
    (reason,) = judge(plan(), of_class(loss=loss))
    assert "lost 80 of 8000 packets, 0.600% to 1.500%, requested 5.000%" in reason
    queue = QueueMeasurement(queue_bytes=1_000_000, added_s=0.09, expected_s=0.08, num_drops=5)
    (reason,) = judge(plan(), of_class(queue=queue))
    assert "a full queue delays by 90.000 ms, 1MB at the rate are 80.000 ms (+12.5%; allowed 5%)" in reason


def test_in_slower_time_links_are_judged_as_what_they_stand_for() -> None:
    keys = {"workload": "synthetic", "dilation": 50, "link": {"rate": "100gbit", "delay": "5us"}}
    goodput_bps = 100e9 * goodput_fraction()
    right = measured(rate_bps=100e9, goodput_bps=goodput_bps, delay_s=10e-6)  # 250 us of the wall late: a wake-up
    assert judge(plan(**keys), Calibration(mode=Mode.CLASS, links=[right])) == []
    late = replace(right, delay_s=11.5e-6)
    (reason,) = judge(plan(**keys), Calibration(mode=Mode.CLASS, links=[late]))
    assert "measured a delay of 12 us, requested 5" in reason
    real = replace(right, rate_bps=2e9, goodput_bps=2e9 * goodput_fraction(), delay_s=500e-6)
    (virtual,) = Clock(50).virtual(Calibration(mode=Mode.CLASS, links=[real])).links
    assert (virtual.rate_bps, virtual.delay_s) == (pytest.approx(100e9), pytest.approx(10e-6))
    assert virtual.delay_attempts_s == pytest.approx([each_s / 50 for each_s in real.delay_attempts_s])
    assert virtual.rate_attempts_bps == pytest.approx([50 * each_bps for each_bps in real.rate_attempts_bps])
    attempts: dict[str, Any] = {name: getattr(right, name) for name in ("delay_attempts_s", "rate_attempts_bps")}
    scaled = replace(virtual, goodput_bps=goodput_bps, rate_bps=100e9, delay_s=10e-6, **attempts)
    assert scaled == right, "and nothing else"


def test_a_short_queue_may_miss_three_packets() -> None:
    queue = QueueMeasurement(queue_bytes=60_000, added_s=4.51e-3, expected_s=4.8e-3, num_drops=5)
    assert judge(plan(), of_class(queue=queue)) == []
    (reason,) = judge(plan(), of_class(queue=replace(queue, added_s=4.4e-3)))
    assert "(-8.3%; allowed 8%)" in reason


def test_a_queue_that_was_never_full_says_nothing() -> None:
    queue = QueueMeasurement(queue_bytes=1_000_000, added_s=0.0, expected_s=0.08, num_drops=0)
    assert judge(plan(), of_class(queue=queue)) == []
