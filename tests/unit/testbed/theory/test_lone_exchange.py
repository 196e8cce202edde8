"""What is timed again and again, on cases whose windows were watched."""

from typing import Any

import pytest

from testbed.experiment.experiment import validate
from testbed.plan.plan import Plan, make_plan
from testbed.theory.lone_exchange import lone_exchange_s


def planned(collective: Any, size: str, **keys: Any) -> Plan:
    workload = {"kind": "synthetic", "layers": [size]}
    spec = {"name": "t", "workers": 4, "collective": collective, "workload": workload, "fusion": "none", **keys}
    return make_plan(validate(spec))


FAR = {"rate": "100mbit", "delay": "10ms"}
STACKS = ("ring", "halving_doubling", "recursive_doubling", "all_to_all")


def in_turn(collective: str) -> tuple[float, float]:
    """What 64 KiB are said to take, beside the others and by links alone: 20 ms one way, among four."""
    plans = {each: planned(each, "64KiB", link=FAR) for each in STACKS}
    plan = plans.pop(collective)
    return lone_exchange_s(plan, list(plans.values())), plan.prediction.predicted_s


def test_a_direction_that_was_idle_for_too_long_takes_another_round_trip() -> None:
    """46 segments. The exchange before leaves windows of 56; w1 -> w0 and w3 -> w2 then are idle for more than the
    0.24 s of a timeout, since no barrier uses them, and begin with 28. Measured on 2026-11-23: 86 ms, and those
    windows."""
    found_s, links_s = in_turn("recursive_doubling")
    assert links_s == pytest.approx(0.048, rel=0.05)
    assert found_s == pytest.approx(0.086, rel=0.05)


@pytest.mark.parametrize(("collective", "measured_s"), [("ring", 0.122), ("halving_doubling", 0.084)])
def test_windows_that_are_large_enough_cost_nothing(collective: str, measured_s: float) -> None:
    found_s, links_s = in_turn(collective)
    assert found_s == pytest.approx(links_s, rel=1e-9)
    assert links_s == pytest.approx(measured_s, rel=0.05)


def test_connections_that_nobody_keeps_idle_have_grown() -> None:
    """By itself, and where all turns together are shorter than a timeout; measured beside others, 1 ms a link: 8.3 ms
    of 64 KiB, which four round trips would make 17."""
    alone = planned("recursive_doubling", "64KiB", link=FAR)
    assert lone_exchange_s(alone) == alone.prediction.predicted_s
    near = {each: planned(each, "64KiB", link={"rate": "200mbit", "delay": "1ms"}) for each in STACKS}
    plan = near.pop("recursive_doubling")
    assert lone_exchange_s(plan, list(near.values())) == plan.prediction.predicted_s


def test_near_by_nothing_waits_for_a_window() -> None:
    near = planned("recursive_doubling", "1MiB", link={"rate": "100mbit"})
    assert lone_exchange_s(near) == near.prediction.predicted_s


def test_what_a_switch_adds_has_no_windows_of_tcp() -> None:
    far = planned("in_network", "1MiB", link={"rate": "100mbit", "delay": "10ms"})
    assert lone_exchange_s(far) == far.prediction.predicted_s


@pytest.mark.parametrize(("collective", "most"), [("ring", 1.0), ("in_network", 1.0), ("recursive_doubling", 2.5)])
@pytest.mark.parametrize("link", [{"rate": "100mbit"}, FAR])
def test_whoever_begins_first_waits_for_the_last(collective: str, most: float, link: dict[str, str]) -> None:
    """The time is the slowest worker's own, as it is measured. With recursive doubling, whoever has done a round before
    others sends into the links of those that have not."""
    plan = planned(collective, "1MiB", link=link)
    together_s = lone_exchange_s(plan)
    assert lone_exchange_s(plan, begins_s=[0.0] * 4) == pytest.approx(together_s)
    apart_s = lone_exchange_s(plan, begins_s=[0.0, 0.0, 0.0, 0.05])
    assert 0.3 * 0.05 < apart_s - together_s <= most * 0.05 + 1e-9
