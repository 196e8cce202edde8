"""Where flows go, and what they put on which link."""

from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.plan.background import FlowBytes, FlowCounters, TrafficCounters, flow_bytes, on_hop
from testbed.plan.plan import Plan, make_plan

BULK = {"kind": "bulk", "from": "w0", "to": "w3"}
CONSTANT = {"kind": "constant", "from": "w1", "to": "w3", "rate": "20mbit", "start": "1s", "stop": "2.5s"}


def planned(*flows: dict[str, Any], **keys: Any) -> Plan:
    return make_plan(validate({"name": "x", "background": list(flows), **keys}))


def counters(**values: int) -> TrafficCounters:
    return TrafficCounters(**(dict.fromkeys(TrafficCounters.__dataclass_fields__, 0) | values))


def test_flows_have_ends_paths_and_ports_of_their_own() -> None:
    plan = planned(BULK, CONSTANT)
    first, second = plan.background
    assert first.path.text == "w0 > s0 > w3"
    assert first.sink_arguments() == ("sink", "tcp", plan.worker_port(3).address, "5201")
    assert second.sink_arguments() == ("sink", "udp", plan.worker_port(3).address, "5202")
    addresses = (plan.worker_port(1).address, plan.worker_port(3).address)
    moments = ("1000000000", "2500000000")
    assert second.source_arguments(seed=1) == (
        *("udp", *addresses, "5202", *moments),
        *("20000000", "1500", "0", "0", "0", "65538"),
    )
    assert plan.to_json()["background"][1]["text"] == ("20mbit of 1500 B packets, from 1s until 2.5s of training")


def test_flows_of_neighbouring_seeds_draw_otherwise() -> None:
    flows = planned(CONSTANT, CONSTANT).background
    assert len({flow.source_arguments(seed=seed)[-1] for seed in range(4) for flow in flows}) == 8


@pytest.mark.parametrize("key", ["from", "to"])
def test_an_end_that_is_no_worker_is_named(key: str) -> None:
    with pytest.raises(SpecError, match=rf"background\.1\.{key}: 'w9' is no host; there are w0, w1, w2, w3"):
        planned(BULK, {**BULK, key: "w9"})


def test_bytes_of_links_that_background_may_cross_by_a_hash_are_not_expected() -> None:
    topology = {"kind": "leaf_spine", "leaves": 2, "spines": 2}
    # In rings of four, w0 and w2 do not send to each other.
    plan = planned({"kind": "bulk", "from": "w0", "to": "w2"}, topology=topology)
    unknown = {direction.hop for direction in plan.directions if direction.expected_bytes is None}
    assert {("s0", "s2"), ("s2", "s1"), ("s1", "s2"), ("s2", "s0")} <= unknown
    assert not any("w" in node for hop in unknown for node in hop)


def test_udp_counts_at_both_ends() -> None:
    _, flow = planned(BULK, CONSTANT).background
    before = FlowCounters(
        source=counters(due=10, sent=10, sent_bytes=15140), sink=counters(received=10, received_bytes=15140)
    )
    after = FlowCounters(
        source=counters(due=110, sent=105, blocked=3, late=2, sent_bytes=158970), sink=counters(received_bytes=143830)
    )
    counted = flow_bytes(flow, before, after, tcp_payload_bytes=0, tcp_segments=0)
    assert (counted.sent_bytes, counted.received_bytes, counted.lost_bytes) == (143830, 128690, 15140)
    assert (counted.due, counted.blocked, counted.late) == (100, 3, 2)
    assert on_hop([counted], ("s0", "w3")) == (128690, 15140)
    assert on_hop([counted], ("s0", "w2")) == (0, 0)


def test_tcp_counts_by_the_kernels_counters_of_its_connections() -> None:
    flow, _ = planned(BULK, CONSTANT).background
    start = FlowCounters(source=counters(), sink=counters(received_bytes=1448))
    end = FlowCounters(source=counters(), sink=counters(received_bytes=1448 * 91))
    counted = flow_bytes(flow, start, end, tcp_payload_bytes=1448 * 100, tcp_segments=100)
    assert counted.sent_bytes == 1514 * 100
    assert counted.received_bytes == 1514 * 90
    silent = flow_bytes(flow, start, start, tcp_payload_bytes=0, tcp_segments=0)
    assert silent == FlowBytes(flow=flow, sent_bytes=0, received_bytes=0)


def test_counters_are_read_as_the_program_writes_them() -> None:
    data = b"".join(number.to_bytes(8, "little") for number in range(1, 9))
    parsed = TrafficCounters.parse(data)
    assert (parsed.origin_ns, parsed.due, parsed.received_bytes) == (1, 2, 8)
