"""Where the aggregating switch is, and what each link then carries."""

from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.plan.aggregators import assignments_of, exchange_delay_s, workers_below
from testbed.plan.plan import Plan, make_plan


def plan(**keys: Any) -> Plan:
    return make_plan(validate({"name": "x", "collective": "in_network", **keys}))


def reference(**options: Any) -> dict[str, Any]:
    return {"collective": {"kind": "in_network", "dataplane": "reference", **options}}


X: dict[str, Any] = {"hosts": {"x0": {"at": "s0"}, "x1": {"at": "s0"}}}


@pytest.mark.parametrize("workers", [2, 8])
def test_each_link_carries_each_chunk_once_each_way_whatever_the_number_of_workers(workers: int) -> None:
    made = plan(workers=workers)
    chunks = sum(-(-count // 256) for count in made.buckets)
    for direction in made.directions:
        assert direction.expected_bytes == (0 if "a0" in direction.hop else chunks * 1080)


def test_a_process_beside_the_switch_gets_them_over_its_own_link() -> None:
    made = plan(workers=4, **reference())
    expected = {direction.name: direction.expected_bytes for direction in made.directions}
    assert expected["s0 -> a0"] == 4 * (expected["w0 -> s0"] or 0) > 0
    assert all(direction.requested.unshaped for direction in made.directions if "a0" in direction.hop)


def test_the_prediction_is_the_frames_at_the_link_s_rate() -> None:
    made = plan(workers=4, link={"rate": "100mbit"})
    least_s = sum(-(-count // 256) for count in made.buckets) * 1080 * 8 / 100e6
    assert made.prediction.schedule_bound_s == pytest.approx(least_s, rel=0.01)
    assert made.prediction.predicted_s == pytest.approx(least_s, rel=0.02)


def test_it_is_at_the_switch_nearest_to_all_workers_or_where_the_spec_says() -> None:
    tree = {"kind": "leaf_spine", "leaves": 2, "spines": 2}
    (nearest,) = plan(workers=4, topology=tree, placement="spread").aggregators
    (requested,) = plan(workers=4, topology=tree, **reference(at="s1")).aggregators
    assert (nearest.switch_port.node, requested.switch_port.node) == ("s2", "s1")
    assert nearest.workers == tuple(plan(workers=4, topology=tree).worker_port(rank).address for rank in range(4))


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        (reference(at="s9"), "collective.at"),
        (reference(num_elements=512), "collective.num_elements"),
        (reference(aggregator="10.0.0.1"), "collective.aggregator"),
        ({"workers": 33}, "workers"),
        ({"collective": {"kind": "in_network", "partial_after": "50ms"}}, "collective.partial_after"),
        ({"topology": "leaf_spine", **reference(at="tree", partial_after="50ms")}, "collective.partial_after"),
        ({"topology": "leaf_spine", **reference(at="tree", payload="int8")}, "collective.payload"),
        (reference(payload="fp16", tenants=[{"workers": ["x0"]}]) | X, "collective.payload"),
        (
            {"mtu": 9000, "collective": {"kind": "in_network", "num_elements": 1024, "payload": "int8"}},
            "collective.num_elements",
        ),
        ({"switch": "bridged"}, "switch"),
        (reference(tenants=[{"workers": ["w0"]}]), "collective.tenants.0.workers"),
        (reference(tenants=[{"workers": ["x0"]}, {"workers": ["x0"]}]) | X, "collective.tenants.1.workers"),
        (reference(num_slots=1 << 14, tenants=[{"workers": ["x0"]}]) | X, "collective.tenants.0.num_slots"),
        (
            {"topology": "leaf_spine", **reference(at="tree", tenants=[{"workers": ["x0"]}]), **X},
            "collective.tenants",
        ),
        ({"stack": "gloo"}, "stack"),
    ],
)
def test_what_cannot_be_had_is_refused_with_its_key(keys: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError, match=f"^{path}: "):
        plan(**keys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"payload": "fp16"}, "payload: fp16 rounds sums"),
        ({"payload": "int8"}, "payload: int8 rounds sums"),
        ({"partial_after": "50ms"}, "partial_after: a sum may lack a straggler's gradients"),
    ],
)
def test_sums_that_cannot_be_verified_are_refused_before_a_run(options: dict[str, str], message: str) -> None:
    """The first iteration ended a run that did what its spec says, after links had been made and calibrated."""
    verified = {"workload": {"kind": "training", "verify_gradients": True}}
    with pytest.raises(SpecError, match=rf"^collective\.{message}.*workload\.verify_gradients"):
        plan(**reference(**options), **verified)
    assert plan(**reference(**options)).aggregators, "without it they may be had"
    assert plan(**reference(), **verified).aggregators, "and verified where sums are everybody's, in 32 bits"


def test_jumbo_frames_carry_larger_chunks_and_fewer_bytes() -> None:
    made = plan(workers=2, mtu=9000, collective={"kind": "in_network", "num_elements": 2048})
    chunks = sum(-(-count // 2048) for count in made.buckets)
    assert made.directions[0].expected_bytes == chunks * 8248
    for port in made.links[0]:
        (command,) = (line for line in made.node(port.node).ip_commands if f"dev {port.interface} mtu " in line)
        assert command.startswith(f"link set dev {port.interface} mtu 9000")
    with pytest.raises(SpecError, match=r"^collective.num_elements: .* allowed: at most 256, or a larger `mtu`"):
        plan(collective={"kind": "in_network", "num_elements": 2048})


@pytest.mark.parametrize(("payload", "num_values"), [("fp16", 512), ("int8", 1024)])
def test_fewer_bits_are_fewer_chunks_on_every_link(payload: str, num_values: int) -> None:
    made = plan(workers=2, collective={"kind": "in_network", "payload": payload})
    chunks = sum(-(-count // num_values) for count in made.buckets)
    assert [each.expected_bytes for each in made.directions[:4]] == [chunks * 1080] * 4
    assert made.aggregators[0].text == f"aggregator a0 at s0 (ebpf) adds w0, w1 in {payload}"


def test_every_stack_of_the_benchmark_has_an_aggregator_of_its_own() -> None:
    stacks = ["ring/tcp", "in_network/ebpf", "in_network:num_elements=64/reference"]
    made = make_plan(validate({"name": "x", "workload": {"kind": "allreduce", "stacks": stacks}}))
    found = [(each.name, each.collective.dataplane, each.job.num_elements) for each in made.aggregators]
    assert found == [("a0", "ebpf", 256), ("a1", "reference", 64)]
    assert len(assignments_of(made.aggregators, 1)) == 2


RACKS: dict[str, Any] = {"workers": 8, "topology": {"kind": "leaf_spine", "leaves": 2, "spines": 2}}


def test_a_tree_has_each_chunk_once_on_every_link_of_it() -> None:
    made = plan(**RACKS, collective={"kind": "in_network", "at": "tree"})
    root, first, second = made.aggregators
    assert [each.children for each in made.aggregators] == [
        ("a1", "a2"),
        ("w0", "w1", "w2", "w3"),
        ("w4", "w5", "w6", "w7"),
    ]
    assert (root.parent, first.parent, second.parent) == (None, root.port, root.port)
    assert (first.job.parent, second.job.parent_index) == (root.port.address, 1)
    assert second.text == "aggregator a2 at s1 (ebpf) adds w4, w5, w6, w7 for a0"
    once = sum(-(-count // 256) for count in made.buckets) * 1080
    expected = {direction.name: direction.expected_bytes for direction in made.directions}
    for hop in ("w0 -> s0", "s1 -> w7", "s0 -> s2", "s2 -> s0", "s1 -> s2", "s2 -> s1"):
        assert expected[hop] == once
    for hop in ("s0 -> s3", "s1 -> a2", "a0 -> s2"):
        assert expected[hop] == 0


def test_one_switch_above_gets_what_a_tree_keeps_from_it() -> None:
    once = plan(**RACKS, collective={"kind": "in_network", "at": "tree"})
    all_of_them = plan(**RACKS, collective={"kind": "in_network", "at": "spine"})
    loads = [
        {direction.name: direction.expected_bytes for direction in made.directions}["s0 -> s2"]
        for made in (once, all_of_them)
    ]
    assert loads[1] == 4 * (loads[0] or 0)
    assert (
        all_of_them.prediction.schedule_bound_s > 1.9 * once.prediction.schedule_bound_s
    )  # 4 workers share an uplink of twice the rate


def test_the_way_up_a_tree_is_as_long_as_its_parts_together() -> None:
    delayed = RACKS | {"link": {"rate": "100mbit", "delay": "10ms"}}
    tree, spine = (
        plan(**delayed, collective={"kind": "in_network", "at": at, "num_slots": 1024}) for at in ("tree", "spine")
    )
    delays_s = {direction.hop: direction.delay_s for direction in tree.directions}
    found = [exchange_delay_s(made.paths, made.traffic, made.aggregators, delays_s) for made in (tree, spine)]
    assert found == [pytest.approx(0.02), pytest.approx(0.02)]


@pytest.mark.parametrize("fusion", ["layers", "priority", {"kind": "time", "cycle": "5ms"}])
@pytest.mark.parametrize(("at", "to_root_s"), [("s0", 0.03), ("spine", 0.02), ("tree", 0.02)])
def test_sums_are_as_far_away_as_their_aggregator_however_far_workers_are_who_agree(
    at: str, to_root_s: float, fusion: Any
) -> None:
    keys = RACKS | {"fusion": fusion, "link": {"rate": "100mbit", "delay": "10ms"}}
    made = plan(**keys, collective={"kind": "in_network", "at": at, "num_slots": 1024})
    assert made.prediction.latency_s == pytest.approx(to_root_s)
    ring = plan(**keys, collective="ring")
    assert ring.prediction.latency_s == pytest.approx(0.04)


def test_what_no_aggregator_adds_goes_from_worker_to_worker() -> None:
    made = plan(workers=4, compression="top_k", link={"rate": "100mbit", "delay": "10ms"})
    assert made.prediction.latency_s == pytest.approx(0.02)


def test_each_worker_knows_its_own_aggregator_and_its_number_there() -> None:
    made = plan(**RACKS, collective={"kind": "in_network", "at": "tree"})
    root, first, second = made.aggregators
    identity = first.collective.identity
    assert assignments_of(made.aggregators, 0) == {identity: (first.port.address, 0)}
    assert assignments_of(made.aggregators, 6) == {identity: (second.port.address, 2)}
    assert workers_below(made.aggregators, root) == tuple(range(8))
    assert workers_below(made.aggregators, second) == (4, 5, 6, 7)


def test_jobs_share_a_switch_and_no_slots_and_leave_the_workers_links_alone() -> None:
    tenants = [{"workers": ["x0"], "num_slots": 64}, {"workers": ["x1"], "num_slots": 32, "size": "64KiB"}]
    made = plan(collective={"kind": "in_network", "tenants": tenants}, **X)
    (aggregator,) = made.aggregators
    jobs = [aggregator.job, *(each.job for each in aggregator.tenants)]
    assert [(job.number, job.first_slot, job.num_slots) for job in jobs] == [(0, 0, 128), (1, 128, 64), (2, 192, 32)]
    assert aggregator.tenants[1].text == "job 2 of x1: 64KiB at a time in slots 192 to 223"
    expected = {direction.name: direction.expected_bytes for direction in made.directions}
    assert expected["x0 -> s0"] is None
    assert expected["w0 -> s0"] == expected["s0 -> w3"] == sum(-(-count // 256) for count in made.buckets) * 1080
