from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.machine.budget import requested_bps
from testbed.plan.plan import Plan, make_plan
from testbed.plan.storage import StoragePlan
from testbed.theory.predict import predict_run
from testbed.theory.simulation.simulate import simulate

SEGMENT = 1448
"""Payload of a full segment at MTU 1500."""
FULL: dict[str, Any] = {"kind": "full_read", "data": f"{1000 * SEGMENT}B"}
BATCHES: dict[str, Any] = {"kind": "batch_read", "sample": f"{SEGMENT}B"}
REPLAY = {"kind": "replay", "trace": "resnet50", "batch_size": 8}


def planned(**keys: Any) -> Plan:
    return make_plan(validate({"name": "x", "workers": 2, **keys}))


def storage_of(plan: Plan) -> StoragePlan:
    assert plan.storage is not None
    return plan.storage


def test_nobody_gets_a_storage_node_without_requesting_one() -> None:
    plan = planned()
    assert plan.storage is None
    assert {node.role for node in plan.nodes} == {"worker", "switch"}
    assert {direction.input_bytes for direction in plan.directions} == {0}


def test_its_link_is_planned_shaped_and_counted_as_every_other() -> None:
    plan = planned(storage=FULL, links={"d0-s0": {"rate": "50mbit"}, "d0->s0": {"delay": "2ms"}})
    there, back = (next(each for each in plan.directions if each.hop == hop) for hop in (("d0", "s0"), ("s0", "d0")))
    assert (there.rate_bps, there.delay_s, back.delay_s) == (50e6, 2e-3, 0)
    assert there.shaper is not None
    assert there.shaper.interface == "d0-eth0"
    assert "10.0.2" not in storage_of(plan).port.address
    assert "d0" in plan.host_names()


def test_what_is_read_is_on_every_hop_of_its_way_with_headers() -> None:
    storage = storage_of(planned(storage=FULL))
    one_worker = 1000 * (SEGMENT + 66)
    assert storage.start.payload_bytes == (1000 * SEGMENT, 1000 * SEGMENT)
    assert storage.start.wire_bytes["s0", "w0"] == storage.start.wire_bytes["s0", "w1"] == one_worker
    assert storage.start.wire_bytes["d0", "s0"] == 2 * one_worker
    assert storage.start.wire_bytes["w0", "s0"] == 8 + 66, "a request"
    assert storage.reads_at_start
    assert not any(storage.batch.payload_bytes)


def test_parts_are_on_the_link_once() -> None:
    storage = storage_of(planned(storage={**FULL, "kind": "partitioned_read"}))
    assert storage.start.wire_bytes["d0", "s0"] == 1000 * (SEGMENT + 66)


def test_batches_are_counted_beside_the_gradients() -> None:
    plan, without = planned(storage=BATCHES, workload=REPLAY), planned(workload=REPLAY)
    found = {direction.hop: direction for direction in plan.directions}
    assert found["s0", "w0"].input_bytes == 8 * (SEGMENT + 66)
    assert found["d0", "s0"].input_bytes == 16 * (SEGMENT + 66)
    assert found["d0", "s0"].expected_bytes == 0
    for direction in without.directions:
        assert found[direction.hop].expected_bytes == direction.expected_bytes
    assert requested_bps(plan) > requested_bps(without)


@pytest.mark.parametrize(
    ("storage", "links", "least_s"),
    [
        ({**FULL, "disk": "100mbit"}, {}, 2 * 1000 * SEGMENT * 8 / 100e6),
        (FULL, {"d0-s0": {"rate": "50mbit"}}, 2 * 1000 * (SEGMENT + 66) * 8 / 50e6),
        (FULL, {"w1-s0": {"rate": "10mbit"}}, 1000 * (SEGMENT + 66) * 8 / 10e6),
    ],
)
def test_the_disk_or_the_most_loaded_link_says_how_long_it_takes(
    storage: dict[str, Any], links: dict[str, Any], least_s: float
) -> None:
    plan = planned(storage=storage, links=links, link={"rate": "1gbit"})
    assert storage_of(plan).start.least_s == pytest.approx(least_s, rel=1e-3)


def test_equal_paths_leave_the_bytes_open() -> None:
    plan = planned(
        workers=4,
        topology={"kind": "leaf_spine", "leaves": 2, "spines": 2},
        placement="spread",
        storage=BATCHES,
        workload=REPLAY,
    )
    found = {direction.hop: direction.input_bytes for direction in plan.directions}
    assert found["d0", "s0"] is not None
    assert None in found.values()


def test_a_slow_or_distant_storage_changes_nothing_for_the_gradients() -> None:
    near, far = planned(storage=FULL), planned(storage=FULL, links={"d0-s0": {"rate": "1mbit", "delay": "50ms"}})
    assert far.prediction == near.prediction == planned().prediction
    assert (far.latency_s, far.propagation_s) == (near.latency_s, near.propagation_s)


def test_buffers_fill_the_path_to_a_distant_storage() -> None:
    far = planned(storage=FULL, link={"rate": "1gbit"}, links={"d0-s0": {"delay": "50ms"}})
    assert "net.ipv4.tcp_rmem" in far.node("w0").sysctls


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"storage": FULL, "workload": "allreduce"}, "storage: a workload allreduce"),
        ({"storage": FULL, "workload": {"kind": "command", "argv": ["true"]}}, "storage: a workload command"),
        ({"storage": {**FULL, "at": "s7"}}, "storage.at: 's7' is no switch; there are s0"),
        ({"storage": BATCHES, "workload": {"kind": "synthetic", "layers": ["1MiB"]}}, "nobody says how many"),
    ],
)
def test_what_has_no_effect_is_refused_by_name(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        planned(**keys)


def test_a_trace_that_says_how_long_reading_takes_reads_from_nowhere_else(tmp_path: Any) -> None:
    path = tmp_path / "layers.txt"
    path.write_text("# input_us=5\n# batch_size=4\nId\tName\tForward\tBackward\tComm\tSize\n0\ta\t1\t2\t0\t4096\n")
    workload = {"kind": "replay", "trace": str(path)}
    with pytest.raises(SpecError, match="input_us"):
        planned(storage=BATCHES, workload=workload)
    assert storage_of(planned(storage=FULL, workload=workload)).reads_at_start


def test_models_know_reading_before_the_first_iteration_alone() -> None:
    full = validate(
        {"name": "x", "workers": 2, "workload": REPLAY, "storage": FULL, "links": {"d0-s0": {"rate": "1mbit"}}}
    )
    without = validate({"name": "x", "workers": 2, "workload": REPLAY})
    assert simulate(full).iteration_time_s == simulate(without).iteration_time_s
    batches = planned(storage=BATCHES, workload=REPLAY)
    predicted = predict_run(batches, None)
    assert predicted is not None
    assert predicted.iteration_time_s is None
    assert "storage" in (predicted.missing or "")
    with pytest.raises(SpecError, match="storage"):
        simulate(batches.experiment)


def test_the_plan_says_it_as_json() -> None:
    found = planned(storage={**FULL, "disk": "1gbit"}).to_json()
    assert found["storage"]["text"].startswith("d0 with a disk of 1gbit: every worker reads all")
    assert {"name": "d0", "host": "d0", "entry": "testbed.worker.storage_node:main"} in found["processes"]
