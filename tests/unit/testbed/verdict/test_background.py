"""What the counters at the borders of the window say of background flows and of the links they cross."""

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import pytest

from testbed.experiment.experiment import validate
from testbed.measure.connections import Connection
from testbed.measure.snapshot import Snapshot
from testbed.plan.background import FlowCounters, TrafficCounters
from testbed.plan.plan import Plan, make_plan
from testbed.verdict.background import background_ends, crossed, flows_between, on_direction, summaries
from transports.channels.tcp_info import TcpInfo

FLOWS: list[dict[str, Any]] = [
    {"kind": "bulk", "from": "w0", "to": "w1"},
    {"kind": "constant", "from": "w2", "to": "w1", "rate": "10mbit"},
]


def planned(**keys: Any) -> Plan:
    return make_plan(validate({"name": "x", "background": FLOWS, **keys}))


def counters(**values: int) -> TrafficCounters:
    return TrafficCounters(**({field.name: 0 for field in fields(TrafficCounters)} | values))


def snapshot(plan: Plan, times: int) -> Snapshot:
    """After so many units of traffic: 100 segments of TCP, 10 packets of UDP of which 1 is lost and 1 is late."""
    there = (plan.worker_port(1).address, 5201)
    info = TcpInfo(
        segments_out=101 * times,
        data_segments_out=100 * times,
        data_segments_in=0,
        bytes_sent=144800 * times,
        bytes_retransmitted=0,
    )
    own = (plan.worker_port(0).address, 40000)
    training = Connection(local=own, remote=(there[0], 40001), counted=info)
    # Only what these functions read: the rest of a snapshot is others' to test.
    window = SimpleNamespace(
        connections={"w0": {(own, there): Connection(local=own, remote=there, counted=info), (own, own): training}},
        background=[
            FlowCounters(source=counters(), sink=counters(received_bytes=144800 * times)),
            FlowCounters(
                source=counters(due=11 * times, sent=10 * times, late=times, sent_bytes=15140 * times),
                sink=counters(received=9 * times, received_bytes=13626 * times),
            ),
        ],
        took_s=0.001,
    )
    return cast("Snapshot", window)


def test_flows_and_links_over_the_window() -> None:
    plan = planned()
    start, end = snapshot(plan, 1), snapshot(plan, 3)
    bulk, constant = flows = flows_between(plan, start, end)
    assert (bulk.sent_bytes, bulk.received_bytes) == (2 * 151400, 2 * 151400)
    assert (constant.sent_bytes, constant.received_bytes) == (30280, 27252)
    by_hop = {direction.hop: on_direction(plan, flows, direction, start, end) for direction in plan.directions}
    skew_bytes = round(0.002 * 100e6 / 8)
    assert by_hop["w0", "s0"] == (302800, skew_bytes)
    assert by_hop["s0", "w1"] == (302800 + 27252, skew_bytes + 3028)
    assert by_hop["w3", "s0"] == (0, 0)
    first, second = summaries(flows, window_s=2.0)
    assert second.late_share == pytest.approx(1 / 11)
    assert first.sent_bps == 151400 * 8
    assert (second.kind, second.offered_bps, second.received_bps) == ("constant", 10e6, 27252 * 4)


def test_what_may_come_while_counters_are_read_is_less_in_slower_time() -> None:
    """The counters take as long as ever to read, and the link sends less meanwhile."""
    plan = planned(workload="synthetic", dilation=4)
    start, end = snapshot(plan, 1), snapshot(plan, 3)
    flows = flows_between(plan, start, end)
    by_hop = {direction.hop: on_direction(plan, flows, direction, start, end) for direction in plan.directions}
    assert by_hop["w0", "s0"] == (302800, round(0.002 * 25e6 / 8))


def test_a_link_without_a_rate_carries_no_more_background_than_its_path_does() -> None:
    plan = planned(workers_per_host=2)
    start, end = snapshot(plan, 1), snapshot(plan, 3)
    flows = [each for each in flows_between(plan, start, end) if each.flow.source.node == "w2"]
    inside = next(direction for direction in plan.directions if direction.hop == ("w2", "h1"))
    assert inside.rate_bps > 100e6
    assert on_direction(plan, flows, inside, start, end)[1] == round(0.002 * 100e6 / 8) + 3028


def test_links_that_are_shared_and_connections_that_are_not_the_experiments() -> None:
    plan = planned()
    assert crossed(plan) == {("w0-s0", "w0"), ("w1-s0", "s0"), ("w2-s0", "w2")}
    assert background_ends(plan) == {(plan.worker_port(1).address, port) for port in (5201, 5202)}


def test_equal_paths_leave_open_what_crossed() -> None:
    plan = planned(topology={"kind": "leaf_spine", "leaves": 2, "spines": 2}, placement="spread")
    start, end = snapshot(plan, 1), snapshot(plan, 2)
    flows = flows_between(plan, start, end)
    found = {direction.hop: on_direction(plan, flows, direction, start, end)[0] for direction in plan.directions}
    assert found["s0", "s2"] is None
    assert found["w0", "s0"] == 151400
