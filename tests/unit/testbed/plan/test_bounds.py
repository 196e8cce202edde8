"""The least time of an exchange, calculated manually and beside collectives."""

import pytest

from testbed.experiment.experiment import validate
from testbed.plan.bounds import task_bound_s
from testbed.plan.plan import Plan, make_plan
from transports.collectives.base import Operation
from transports.collectives.cost import bus_factor
from transports.compression.base import Exchange


def planned(**spec: object) -> Plan:
    return make_plan(validate({"name": "x", "workers": 4, "link": {"rate": "100mbit"}, **spec}))


def bound_s(operation: Operation, *rates_bps: float) -> float:
    rates = {f"w{rank}": rate_bps for rank, rate_bps in enumerate(rates_bps)}
    return task_bound_s([Exchange(operation, 1000, 1)], rates, rates)


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
    assert task_bound_s([Exchange("all_reduce", 1000, 4)], {"w0": 8.0}, {"w0": 8.0}) == 0


def test_workers_that_share_hosts_have_the_hosts_links() -> None:
    shared = planned(workers=8, workers_per_host=2).prediction
    assert shared.bound_s == pytest.approx(planned(workers=4).prediction.bound_s, rel=1e-6)
