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


def test_a_direction_that_has_rested_for_too_long_takes_another_round_trip() -> None:
    """46 segments, 20 ms one way, among four. The exchange before leaves windows of 56; w1 -> w0 and w3 -> w2 then rest
    for more than the 0.24 s of a timeout, since no barrier uses them, and begin with 28. Measured on 2026-11-23: 86 ms,
    and windows of 56 and 28."""
    far = planned("recursive_doubling", "64KiB", link={"rate": "100mbit", "delay": "10ms"})
    assert far.prediction.predicted_s == pytest.approx(0.048, rel=0.05)
    assert lone_exchange_s(far) == pytest.approx(0.086, rel=0.05)


@pytest.mark.parametrize(("collective", "measured_s"), [("ring", 0.122), ("halving_doubling", 0.084)])
def test_windows_that_are_large_enough_cost_nothing(collective: str, measured_s: float) -> None:
    far = planned(collective, "64KiB", link={"rate": "100mbit", "delay": "10ms"})
    assert lone_exchange_s(far) == far.prediction.predicted_s == pytest.approx(measured_s, rel=0.05)


def test_near_by_nothing_waits_for_a_window() -> None:
    near = planned("recursive_doubling", "1MiB", link={"rate": "100mbit"})
    assert lone_exchange_s(near) == near.prediction.predicted_s


def test_what_a_switch_adds_has_no_windows_of_tcp() -> None:
    far = planned("in_network", "1MiB", link={"rate": "100mbit", "delay": "10ms"})
    assert lone_exchange_s(far) == far.prediction.predicted_s
