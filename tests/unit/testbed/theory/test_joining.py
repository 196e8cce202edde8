"""What an engine joins: the rule of `transports/torch_backend/engine.py`, whatever exchanges take."""

from typing import Any

import pytest

from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan
from testbed.plan.traffic import Traffic, expected_loads
from testbed.theory.joining import Decision, Joining

FORWARD_S, LAYER_S = 0.1, 0.02
WORKLOAD = {"kind": "synthetic", "layers": ["4KB"] * 8, "forward": "100ms", "backward": "160ms"}


def joining(*factors: float, **fusion: Any) -> Joining:
    spec = validate({"name": "x", "workers": len(factors), "workload": WORKLOAD, "fusion": {"kind": "time", **fusion}})
    return Joining(spec, spec.workload.timed_layers(), factors)


def decided(made: Joining, *factors: float, exchange_s: float) -> list[Decision]:
    """Where each bucket takes that long."""
    free_s, found = [0.0] * len(factors), []
    while not made.done:
        found.append(made.decide(free_s))
        free_s = [max(found[-1].looks_s) + exchange_s * len(found[-1].buckets)] * len(factors)
    return found


def counts(found: list[Decision]) -> list[list[int]]:
    return [[bucket.num_elements // 1000 for bucket in each.buckets] for each in found]


def test_what_became_ready_while_the_thread_was_busy_goes_together() -> None:
    found = decided(joining(1, 1), 1, 1, exchange_s=0.055)
    assert counts(found) == [[1], [2], [3], [2]]
    assert [each.looks_s[0] for each in found] == pytest.approx([0.12, 0.175, 0.23, 0.285])
    assert [each.waited for each in found] == [False, True, True, True]
    quick = decided(joining(1, 1), 1, 1, exchange_s=0.001)
    assert counts(quick) == [[1]] * 8
    assert not any(each.waited for each in quick)


def test_a_look_comes_no_sooner_than_a_cycle_after_the_one_before() -> None:
    found = decided(joining(1, 1, cycle="70ms"), 1, 1, exchange_s=0.001)
    assert [each.looks_s[0] for each in found] == pytest.approx([0.12, 0.19, 0.26])
    assert counts(found) == [[1], [3], [4]]


def test_what_exceeds_the_size_goes_in_several_after_one_agreement() -> None:
    found = decided(joining(1, 1, bytes="9KB"), 1, 1, exchange_s=0.08)
    assert counts(found) == [[1], [2, 2], [2, 1]]
    agreed = [[[each.of_gradients for each in bucket.exchanges] for bucket in each.buckets] for each in found]
    assert agreed == [[[False, True]], [[False, True], [True]], [[False, True], [True]]]


def test_only_what_all_have_goes_out() -> None:
    """One that computes twice as long has a layer when the other has nine."""
    found = decided(joining(1, 2), 1, 2, exchange_s=0.001)
    assert found[0].looks_s == pytest.approx((0.12, 0.24))
    assert counts(found) == [[1]] * 8
    assert found[-1].buckets[-1].ready_s == pytest.approx(FORWARD_S + 8 * LAYER_S)


@pytest.mark.parametrize("cycle", ["1ms", "20ms", "50ms", "1s"])
@pytest.mark.parametrize(
    ("collective", "compression", "num_layers", "size"),
    [
        ("in_network", {"kind": "random_k", "ratio": 0.01}, 40, "1MiB"),
        ("ring", {"kind": "random_k", "ratio": 0.01}, 40, "1MiB"),
        ("ring", {"kind": "top_k", "ratio": 0.001}, 40, "1MiB"),
        ("ring", "signsgd", 200, "64KiB"),
        ("ring", "none", 400, "16KiB"),
    ],
)
def test_whatever_is_joined_puts_on_the_wire_what_the_plan_expects_and_allows(
    collective: str, compression: Any, num_layers: int, size: str, cycle: str
) -> None:
    """One decision makes many buckets here, and agrees once: an agreement before each was 5.6 % more than runs had."""
    workload = {"kind": "synthetic", "layers": [size] * num_layers, "forward": "100ms", "backward": "200ms"}
    fusion = {"kind": "time", "bytes": size, "cycle": cycle}
    spec = validate(
        {"name": "x", "workload": workload, "fusion": fusion, "collective": collective, "compression": compression}
    )
    made = make_plan(spec)
    joining = Joining(spec, spec.workload.timed_layers(), [1.0] * spec.workers)
    decisions = decided(joining, *[1.0] * spec.workers, exchange_s=0.0)
    exchanges = [exchange for each in decisions for bucket in each.buckets for exchange in bucket.exchanges]
    traffic = Traffic(made.collective, spec.channel, made.world, spec.mtu).wire(exchanges, made.aggregators)
    loads = expected_loads(made.paths, traffic, set())
    own = [each for each in made.directions if not {"w0", "w1", "w2", "w3"}.isdisjoint(each.hop)]
    assert len(own) == 2 * spec.workers
    for direction in own:
        carried_bytes, expected_bytes = loads[direction.hop][0], direction.expected_bytes
        assert carried_bytes is not None
        assert expected_bytes is not None
        assert expected_bytes <= carried_bytes <= expected_bytes + direction.split_bytes
