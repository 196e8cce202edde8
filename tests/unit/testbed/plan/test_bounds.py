"""The least time of an exchange, calculated manually and beside collectives."""

import pytest

from testbed.experiment.experiment import validate
from testbed.plan.bounds import End, fully_used_s, task_bound_s, worker_ends
from testbed.plan.plan import Plan, make_plan
from transports.collectives.base import Operation
from transports.collectives.cost import bus_factor
from transports.compression.base import Exchange

SYNTHETIC = {"kind": "synthetic", "layers": ["1MB"], "forward": "10ms", "backward": "10ms"}


def planned(**spec: object) -> Plan:
    return make_plan(validate({"name": "x", "workers": 4, "link": {"rate": "100mbit"}, **spec}))


def bound_s(operation: Operation, *rates_bps: float) -> float:
    return task_bound_s([Exchange(operation, 1000, 1)], [[End(1, rate_bps, rate_bps) for rate_bps in rates_bps]])


@pytest.mark.parametrize("operation", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"])
@pytest.mark.parametrize("num_workers", [2, 3, 8])
def test_on_links_alike_it_is_the_known_one(operation: Operation, num_workers: int) -> None:
    expected = bus_factor(operation, num_workers)
    assert bound_s(operation, *[8000.0] * num_workers) == pytest.approx(expected)


def test_a_slow_link_must_carry_each_worker_s_values_and_results_but_no_more() -> None:
    assert bound_s("all_reduce", 8000.0, 8000.0, 8000.0, 4000.0) == pytest.approx(2.0), (
        "its 1000 bytes at half the rate"
    )
    assert bound_s("all_reduce", 8000.0, 8000.0, 8000.0, 7000.0) == pytest.approx(6000 / 3875), "all links together"


def test_a_host_sends_and_receives_what_its_own_workers_must() -> None:
    """Of 1000 bytes that five gather, the one behind the slow link has 200; of those that are scattered it gets 200,
    and sends the others' 800."""
    hosts = [End(2, 80_000.0, 80_000.0), End(2, 80_000.0, 80_000.0), End(1, 800.0, 80_000.0)]

    def at_least_s(operation: Operation) -> float:
        return task_bound_s([Exchange(operation, 1000, 1)], [hosts])

    assert at_least_s("all_gather") == pytest.approx(2.0)
    assert at_least_s("reduce_scatter") == pytest.approx(8.0)
    assert at_least_s("all_to_all") == pytest.approx(8.0)
    assert at_least_s("gather") == pytest.approx(8 * 600 / 160_800), "the root may be where two of them are"


def test_one_bound_for_every_collective_on_the_same_links_and_one_of_its_own_for_each() -> None:
    ring, tree = planned().prediction, planned(collective="tree").prediction
    servers = planned(collective={"kind": "parameter_server", "servers": 4}).prediction
    switch = planned(collective="in_network").prediction
    assert ring.bound_s == tree.bound_s == servers.bound_s
    assert switch.bound_s == pytest.approx(ring.bound_s, rel=0.05), "the channel's headers differ"
    assert ring.schedule_bound_s == pytest.approx(ring.bound_s, rel=2e-3)
    assert tree.schedule_bound_s > 1.3 * ring.bound_s, "its root sends to two"
    assert servers.schedule_bound_s < 0.7 * ring.bound_s, "four servers bring four links"
    assert switch.schedule_bound_s < 0.75 * ring.bound_s, "each value goes up once and comes down once"


def test_a_worker_alone_needs_no_time() -> None:
    assert bound_s("all_reduce", 8.0) == 0


def test_workers_that_share_hosts_have_the_hosts_links() -> None:
    shared = planned(workers=8, workers_per_host=2).prediction
    assert shared.bound_s == pytest.approx(planned(workers=4).prediction.bound_s, rel=1e-6)


@pytest.mark.parametrize(("rate", "as_many"), [("1gbit", 4), ("10mbit", 8)], ids=["hosts", "intra_host"])
def test_links_between_workers_and_their_host_and_those_of_hosts_bound_both(rate: str, as_many: int) -> None:
    """Where both have a rate, those of hosts were left out."""
    shared = planned(workers=8, workers_per_host={"count": 2, "link": {"rate": rate}}).prediction
    slower = "100mbit" if as_many == 4 else rate
    alike = planned(workers=as_many, link={"rate": slower}).prediction
    assert shared.bound_s == pytest.approx(alike.bound_s, rel=1e-6)


def test_workers_on_a_host_send_an_aggregator_as_much_each() -> None:
    plan = planned(workers=8, workers_per_host=2, collective="in_network", workload=SYNTHETIC)
    (exchange,) = plan.exchanges
    ends = worker_ends(plan.directions, 8, 1.0)
    assert fully_used_s(exchange, plan.collective, ends) == pytest.approx(2 * 8 * 1_000_000 / 100e6, rel=0.01)


@pytest.mark.parametrize("collective", ["ring", "tree", "halving_doubling"])
def test_links_fully_used_are_as_fast_as_any_schedule_on_links_that_differ(collective: str) -> None:
    """Of one slow link among four it was as if all were slow, and a tree was faster."""
    plan = planned(links={"w3-s0": {"rate": "20mbit"}}, collective=collective, workload=SYNTHETIC)
    (exchange,) = plan.exchanges
    least_s = fully_used_s(exchange, plan.collective, worker_ends(plan.directions, 4, 1.0))
    assert least_s == pytest.approx(8 * 1_000_000 / 20e6, rel=1e-3)
    assert least_s < plan.prediction.schedule_bound_s
