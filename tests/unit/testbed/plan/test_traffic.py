"""What each hop must carry, and where nobody can say."""

import math
from typing import Any

import pytest

from testbed.experiment.experiment import validate
from testbed.plan.plan import Plan, make_plan


def plan(**keys: Any) -> Plan:
    return make_plan(validate({"name": "x", **keys}))


def directions(made: Plan) -> dict[tuple[str, str], Any]:
    return {direction.hop: direction for direction in made.directions}


def test_what_a_ring_must_carry_is_the_schedule_with_headers() -> None:
    made = plan(workers=4)
    payload = 2 * 3 / 4 * made.prediction.gradient_bytes
    for direction in made.directions:
        assert direction.expected_bytes == pytest.approx(payload * 1514 / 1448, rel=2e-3)
        assert direction.expected_bytes > payload * 1514 / 1448


def test_a_dumbbell_carries_one_flow_of_the_ring_each_way_across() -> None:
    made = plan(workers=4, topology="dumbbell")
    found = directions(made)
    assert found["s0", "s1"].link == found["s1", "s0"].link == "s0-s1"
    assert found["s0", "s1"].expected_bytes == found["w1", "s0"].expected_bytes == made.traffic["w1", "w2"]
    assert made.prediction.bottleneck is None


def test_short_messages_may_take_a_segment_each() -> None:
    """Six messages of 3,272 bytes to the next worker, with their headers: three segments each, or 2.27 of a stream."""
    short = plan(workers=4, workload={"kind": "synthetic", "layers": ["13kB"]})
    (own,) = (each for each in short.directions if each.hop == ("w0", "s0"))
    segments = 6 * 3 - math.ceil(6 * (3250 + 22) / 1448)
    assert own.split_bytes == pytest.approx(66 * segments, abs=66)
    (own,) = (each for each in plan(workers=4).directions if each.hop == ("w0", "s0"))
    assert own.expected_bytes is not None
    assert own.split_bytes < 1e-3 * own.expected_bytes, "long ones do not matter"


def test_gloo_may_say_of_each_message_that_it_is_ready_and_end_it_with_a_segment() -> None:
    """Twelve messages of 15 KiB a worker: 1.5 % more than the schedule was counted of them on quiet links, 3 Mbit/s."""
    workload = {"kind": "synthetic", "layers": ["30KiB"] * 4}
    for own, stacks in zip(
        *(plan(workers=4, workload=workload, stack=each).directions for each in (None, "gloo")), strict=True
    ):
        assert stacks.expected_bytes == own.expected_bytes
        assert stacks.split_bytes == own.split_bytes + 12 * (48 + 66 + 66)
    (first, *_) = plan(workers=4, stack="gloo").directions
    assert first.expected_bytes is not None
    assert first.split_bytes < 3e-3 * first.expected_bytes, "long ones hardly matter"


@pytest.mark.parametrize("compression", ["none", "top_k", "powersgd"])
def test_a_bucket_of_each_layer_is_allowed_where_time_decides_what_is_joined(compression: str) -> None:
    """One bucket is planned; each further one costs an agreement and messages of its own: 3.6 % with top_k."""
    workload = {"kind": "synthetic", "layers": ["192KiB"] * 8, "warmup": 2}
    joined, apart = (
        plan(workers=2, workload=workload, compression=compression, fusion=fusion).directions
        for fusion in ("horovod_5ms", {"kind": "priority", "bytes": "192KiB"})
    )
    for each, alone in zip(joined, apart, strict=True):
        assert each.expected_bytes is not None
        assert alone.expected_bytes is not None
        assert each.expected_bytes < alone.expected_bytes
        assert each.expected_bytes + each.split_bytes == alone.expected_bytes + alone.split_bytes


def test_spread_workers_all_cross_the_dumbbell() -> None:
    made = plan(workers=4, topology="dumbbell", placement="spread")
    assert made.paths["w0", "w1"].text == "w0 > s0 > s1 > w1"
    assert directions(made)["s0", "s1"].expected_bytes == made.traffic["w0", "w1"] + made.traffic["w2", "w3"]
    assert made.prediction.bottleneck in {"s0 -> s1", "s1 -> s0"}
    assert made.prediction.schedule_bound_s == pytest.approx(2 * plan(workers=4).prediction.bound_s, rel=2e-3)
    assert made.prediction.predicted_s == pytest.approx(made.prediction.schedule_bound_s, rel=1e-3)


def test_bytes_are_unknown_exactly_where_hashes_decide() -> None:
    made = plan(workers=6, topology={"kind": "leaf_spine", "leaves": 3, "spines": 2})
    workers = {f"w{rank}" for rank in range(6)}
    for direction in made.directions:
        assert (direction.expected_bytes is None) == workers.isdisjoint(direction.hop)
    assert directions(made)["s0", "s3"].balanced_bytes == made.traffic["w1", "w2"] / 2


def test_bytes_are_known_where_acknowledgements_have_one_path_too() -> None:
    made = plan(workers=4, topology={"kind": "leaf_spine", "leaves": 2, "spines": 1})
    assert all(direction.expected_bytes is not None for direction in made.directions)
    assert not made.needs_multipath


def test_a_physical_ring_carries_one_flow_of_the_ring_collective_on_every_link_one_way() -> None:
    made = plan(workers=5, topology="ring")
    found = directions(made)
    for number in range(5):
        here, there = f"s{number}", f"s{(number + 1) % 5}"
        assert found[here, there].expected_bytes == made.traffic[f"w{number}", f"w{(number + 1) % 5}"]
        assert found[there, here].expected_bytes == 0


def test_a_hierarchical_all_reduce_sends_one_gradient_between_the_racks_each_way() -> None:
    made = plan(topology="dumbbell", collective="hierarchical", fusion={"bytes": "64MiB"})
    across = next(each for each in made.directions if each.hop == ("s0", "s1"))
    assert across.expected_bytes == pytest.approx(made.prediction.gradient_bytes * 1514 / 1448, rel=0.01)


def test_a_baseline_s_bytes_are_those_of_its_own_schedule_if_it_has_one() -> None:
    tree = {"kind": "leaf_spine", "leaves": 2, "spines": 1}
    ring, gloo, free, declared = (
        [direction.expected_bytes for direction in plan(topology=tree, stack=stack).directions]
        for stack in (None, "gloo", "openmpi", {"kind": "openmpi", "algorithm": "ring"})
    )
    assert ring == gloo == declared
    assert set(free) == {None}
