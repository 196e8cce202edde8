"""What theory says of plans whose links are alike, and of those whose links differ."""

from typing import Any

import pytest

from testbed.experiment.experiment import validate
from testbed.plan.plan import Plan, make_plan
from testbed.plan.prediction import path_delay_s, plan_links
from transports.collectives.costs import Costs


def plan(**keys: Any) -> Plan:
    return make_plan(validate({"name": "x", **keys}))


def test_one_slow_direction_is_what_the_ring_waits_for() -> None:
    alike, slow = plan().prediction, plan(links={"w2->s0": {"rate": "10mbit"}}).prediction
    assert slow.schedule_bound_s == pytest.approx(10 * alike.schedule_bound_s, rel=2e-3)
    every_s = plan(link={"rate": "10mbit"}).prediction.predicted_s
    assert slow.predicted_s == pytest.approx(every_s, rel=1e-3)
    assert slow.predicted_s <= every_s, "the last message of an exchange goes on over fast links"
    assert slow.goodput_bps == pytest.approx(alike.goodput_bps / 10)


def test_a_link_of_the_same_rate_changes_nothing() -> None:
    assert plan(links={"w2-s0": {"queue": "200kB"}}).prediction == plan().prediction


def test_a_slow_direction_that_carries_nothing_costs_nothing() -> None:
    made = plan(workers=5, topology="ring", links={"s1->s0": {"rate": "1mbit"}})
    assert made.prediction == plan(workers=5, topology="ring").prediction


def test_delay_counts_every_link_of_the_longest_path_that_is_used() -> None:
    link = {"rate": "100mbit", "delay": "10ms"}
    for topology, num_links in (("star", 2), ("dumbbell", 3), ({"kind": "leaf_spine", "leaves": 2}, 4)):
        made = plan(workers=4, link=link, topology=topology)
        delays_s = {direction.hop: direction.delay_s for direction in made.directions}
        assert path_delay_s(made.paths, made.traffic, delays_s) == pytest.approx(num_links * 0.01)


def test_what_holds_messages_longer_than_requested_is_in_delays_that_were_measured() -> None:
    costs = Costs(late_s=1e-3)

    def latency_s(delay: str, measured_s: float | None = None) -> float:
        made = plan(workers=4, link={"rate": "100mbit", "delay": delay})
        measured = {each.hop: measured_s for each in made.directions} if measured_s is not None else None
        links = plan_links(
            made.directions, made.paths, made.participants, experiment=made.experiment, costs=costs, delays_s=measured
        )
        return links.latency_s((0, 3))

    assert latency_s("10ms") == pytest.approx(2 * 11e-3)
    assert latency_s("10ms", 10.5e-3) == pytest.approx(2 * 10.5e-3)
    assert latency_s("0s") == 0.0


def test_links_have_the_bursts_and_superframes_that_shapers_let_pass() -> None:
    made = plan(workers=4, link={"rate": "200mbit"})
    links = plan_links(made.directions, made.paths, made.participants, experiment=made.experiment, costs=Costs())
    assert set(links.frame_bytes) == {16 * 1448}, "a millisecond"
    assert list(links.burst_bytes) == pytest.approx([2500 * 1448 / 1514] * len(made.directions))
    fast = plan(workers=4, link={"rate": "10gbit"})
    links = plan_links(fast.directions, fast.paths, fast.participants, experiment=fast.experiment, costs=Costs())
    assert set(links.frame_bytes) == {45 * 1448}, "the kernel's limit"


@pytest.mark.parametrize("backend", ["netem", "tap"])
def test_collectives_choose_by_the_bursts_that_the_cost_model_takes(backend: str) -> None:
    """A relay that shapes what it delays lets no burst pass."""
    made = plan(workers=4, link={"rate": "200mbit", "delay": "1ms", "backend": backend})
    links = plan_links(made.directions, made.paths, made.participants, experiment=made.experiment, costs=Costs())
    chosen = made.network_info
    assert (chosen.burst_bytes, chosen.frame_bytes) == (round(links.burst_bytes[0]), links.frame_bytes[0])
    assert (chosen.burst_bytes == 0) == (backend == "tap")


@pytest.mark.parametrize(("num_servers", "busiest"), [(1, 8.0), (2, 4.0), (8, 1.0)])
def test_servers_links_bind_where_they_carry_more_than_workers_do(num_servers: int, busiest: float) -> None:
    servers = {"kind": "parameter_server", "servers": num_servers}
    ring = plan(workers=8).prediction
    found = plan(workers=8, collective=servers).prediction
    assert found.schedule_bound_s == pytest.approx(busiest / (2 * 7 / 8) * ring.bound_s, rel=5e-3)
    assert found.schedule_bound_s <= found.predicted_s
    pipelined = plan(workers=8, collective=servers | {"pipelined": True}).prediction
    assert found.schedule_bound_s <= pipelined.predicted_s * 1.001


def test_a_slow_server_is_what_its_workers_wait_for() -> None:
    servers = {"kind": "parameter_server", "servers": 2}
    alike = plan(collective=servers).prediction
    slow = plan(collective=servers, links={"ps1-s0": {"rate": "10mbit"}}).prediction
    assert slow.schedule_bound_s == pytest.approx(10 * alike.schedule_bound_s, rel=5e-3)
    slow_worker = plan(collective=servers, links={"w0-s0": {"rate": "50mbit"}}).prediction
    assert slow_worker.bound_s == pytest.approx(
        alike.schedule_bound_s, rel=5e-3
    )  # half as fast, with half as many bytes


def pushing(num_workers: int, num_servers: int, **keys: Any) -> Plan:
    servers = {"kind": "parameter_server", "servers": num_servers}
    return plan(workers=num_workers, synchronisation="asynchronous", fusion="none", collective=servers, **keys)


def test_an_asynchronous_push_and_pull_is_bounded_by_what_one_worker_alone_needs() -> None:
    """Its own link carries the whole, each of four servers' links a quarter."""
    alike, slow_servers, slow_worker = (
        pushing(2, 4, links=links).prediction
        for links in ({}, {"ps*": {"rate": "10mbit"}}, {"w0-s0": {"rate": "10mbit"}})
    )
    assert slow_worker.bound_s == pytest.approx(10 * alike.bound_s)
    assert slow_servers.bound_s == pytest.approx(10 / 4 * alike.bound_s)


@pytest.mark.parametrize(
    ("shared", "bottleneck"),
    [
        ({}, None),
        ({"topology": {"kind": "leaf_spine", "leaves": 2, "oversubscription": 4}}, "s2 -> s0"),
        ({"workers_per_host": 4}, "s0 -> h0"),
        ({"workers_per_host": 4, "links": {"h*-s*": {"rate": "10mbit"}}}, "s0 -> h0"),
    ],
)
def test_pushes_and_pulls_take_what_links_need_that_workers_share(
    shared: dict[str, Any], bottleneck: str | None
) -> None:
    made = pushing(8, 4, **shared)
    found = made.prediction
    assert found.predicted_s == pytest.approx(max(direction.balanced_s for direction in made.directions), rel=1e-3)
    assert found.bottleneck == bottleneck


def test_a_worker_that_shares_a_host_pushes_over_the_host_s_link_alone_too() -> None:
    slow, alike, fast = (
        pushing(8, 4, workers_per_host=4, links={"h*-s*": {"rate": rate}}).prediction
        for rate in ("10mbit", "100mbit", "1gbit")
    )
    assert slow.bound_s == pytest.approx(10 * alike.bound_s)
    assert fast.bound_s == pytest.approx(alike.bound_s / 4), "each of four servers' links carries a quarter"


@pytest.mark.parametrize(
    "slow", [{"links": {"w0-s0": {"rate": "50mbit"}}}, {"workers_per_host": 2, "links": {"h*-s*": {"rate": "50mbit"}}}]
)
def test_servers_links_are_no_slower_for_slow_links_of_workers(slow: dict[str, Any]) -> None:
    """Sixteen gradients at 100 Mbit/s, where a slow link carries one, or two."""
    alike = pushing(16, 1).prediction
    assert pushing(16, 1, **slow).prediction.predicted_s == pytest.approx(alike.predicted_s)


@pytest.mark.parametrize(("workers", "leaves"), [(8, 2), (8, 4), (16, 4)])
@pytest.mark.parametrize("placement", ["packed", "spread"])
@pytest.mark.parametrize("collective", ["ring", "halving_doubling", "recursive_doubling"])
def test_flows_take_turns_on_equal_paths(placement: str, collective: str, workers: int, leaves: int) -> None:
    """Two spines whose links are as fast as all workers' of a leaf together are no bottleneck."""
    keys = {"workers": workers, "collective": collective, "workload": {"kind": "synthetic", "layers": ["10MB"]}}
    spine = {"topology": {"kind": "leaf_spine", "leaves": leaves, "spines": 2}, "placement": placement}
    assert plan(**keys, **spine).prediction.predicted_s == pytest.approx(plan(**keys).prediction.predicted_s, rel=0.02)
