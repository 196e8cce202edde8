"""Where the switch that adds is, and what each link then carries."""

from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.plan import Plan, make_plan
from testbed.spec.experiment import validate


def plan(**keys: Any) -> Plan:
    return make_plan(validate({"name": "x", "collective": "in_network", **keys}))


def reference(**options: Any) -> dict[str, Any]:
    return {"collective": {"kind": "in_network", "dataplane": "reference", **options}}


@pytest.mark.parametrize("workers", [2, 8])
def test_each_link_carries_each_chunk_once_each_way_whatever_the_number_of_workers(workers: int) -> None:
    made = plan(workers=workers)
    chunks = sum(-(-count // 256) for count in made.buckets)
    for direction in made.directions:
        assert direction.expected_bytes == (0 if "a0" in direction.hop else chunks * 1076)


def test_a_process_beside_the_switch_gets_them_over_its_own_link() -> None:
    made = plan(workers=4, **reference())
    expected = {direction.name: direction.expected_bytes for direction in made.directions}
    assert expected["s0 -> a0"] == 4 * (expected["w0 -> s0"] or 0) > 0
    assert all(direction.asked.unshaped for direction in made.directions if "a0" in direction.hop)


def test_the_prediction_is_the_frames_at_the_link_s_rate() -> None:
    made = plan(workers=4, link={"rate": "100mbit"})
    least_s = sum(-(-count // 256) for count in made.buckets) * 1076 * 8 / 100e6
    assert made.prediction.bound_s == pytest.approx(least_s, rel=0.01)
    assert made.prediction.alpha_beta_s == pytest.approx(least_s, rel=0.02)


def test_it_is_at_the_switch_nearest_to_all_workers_or_where_the_spec_says() -> None:
    tree = {"kind": "leaf_spine", "leaves": 2, "spines": 2}
    (nearest,) = plan(workers=4, topology=tree, placement="spread").aggregators
    (asked,) = plan(workers=4, topology=tree, **reference(at="s1")).aggregators
    assert (nearest.switch_port.node, asked.switch_port.node) == ("s2", "s1")
    assert nearest.workers == tuple(plan(workers=4, topology=tree).worker_port(rank).address for rank in range(4))


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        (reference(at="s9"), "collective.at"),
        (reference(num_elements=512), "collective.num_elements"),
        (reference(aggregator="10.0.0.1"), "collective.aggregator"),
        ({"workers": 33}, "workers"),
        ({"switch": "bridged"}, "switch"),
        ({"stack": "gloo"}, "stack"),
    ],
)
def test_what_cannot_be_had_is_refused_with_its_key(keys: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError, match=f"^{path}: "):
        plan(**keys)


def test_every_stack_of_the_benchmark_has_an_aggregator_of_its_own() -> None:
    stacks = ["ring/tcp", "in_network/ebpf", "in_network:num_elements=64/reference"]
    made = make_plan(validate({"name": "x", "workload": {"kind": "allreduce", "stacks": stacks}}))
    found = [(each.name, each.collective.dataplane, each.job.num_elements) for each in made.aggregators]
    assert found == [("a0", "ebpf", 256), ("a1", "reference", 64)]
    assert len(made.aggregator_addresses) == 2
