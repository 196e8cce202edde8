"""What the page of metrics says of aggregating switches."""

import pytest

from switch_agg.aggregator import Counters, Stragglers
from switch_agg.status import JobStatus, Status
from testbed.experiment.experiment import validate
from testbed.metrics.aggregators import bound_elements_per_s, scraped_aggregators
from testbed.plan.plan import Plan, make_plan


def plan(**keys: object) -> Plan:
    collective = {"kind": "in_network", "num_elements": 256}
    return make_plan(validate({"name": "x", "link": {"rate": "200mbit"}, "collective": collective, **keys}))


LEAF_SPINE = {"kind": "leaf_spine", "leaves": 2, "spines": 1, "oversubscription": 2}


@pytest.mark.parametrize(
    ("keys", "rate_bps"),
    [
        ({}, 200e6),
        ({"links": {"s0->w2": {"rate": "50mbit"}}}, 50e6),
        ({"topology": LEAF_SPINE}, 200e6 / 2),
        ({"workers_per_host": 2}, 200e6 / 2),
    ],
    ids=["alike", "one slow", "trunks that two chunks cross for each sum", "shared hosts' links"],
)
def test_the_bound_is_that_of_the_link_that_is_full_first(keys: dict[str, object], rate_bps: float) -> None:
    """In chunks of 256 elements, rate x 4N / (56 + 4N) bytes of which are elements."""
    made = plan(**keys)
    (aggregator,) = made.aggregators
    assert bound_elements_per_s(made, aggregator) == pytest.approx(rate_bps / 8 / (56 + 4 * 256) * 256, rel=0.01)


def test_each_aggregator_that_answers_is_scraped_with_its_workers_names() -> None:
    made = plan()
    (aggregator,) = made.aggregators
    job = JobStatus(job=aggregator.job, epoch=0, stragglers=Stragglers(gaps=(0,) * 32, last=(0,) * 4))
    status = Status(
        dataplane="ebpf",
        address="10.0.0.1:48864",
        jobs=(job,),
        counters=dict.fromkeys(Counters.__slots__, 0),
        in_flight=0,
        violations=(),
        uptime_s=1.0,
    )
    (found,) = scraped_aggregators(made, lambda: {"a0": status}, run_id="r")()
    assert found.labels == {"run": "r", "aggregator": "a0"}
    assert [found.names[address] for address in aggregator.workers] == ["w0", "w1", "w2", "w3"]
    assert scraped_aggregators(made, dict, run_id="r")() == []
