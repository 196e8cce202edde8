"""Which links a tree of aggregators loads, and how much."""

from collections import Counter
from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.plan.placement import place
from testbed.plan.plan import make_plan
from testbed.theory.simulation.aggregation import AggregationTree, aggregation_tree
from testbed.theory.simulation.network import SimulatedNetwork
from tests.unit.testbed.theory.simulation.networks import link


def simulated(spec: dict[str, Any], workers: int) -> tuple[SimulatedNetwork, AggregationTree]:
    nodes = place(validate(spec))
    hops = [hop for edge in nodes.edges for hop in ((edge.first, edge.second), (edge.second, edge.first))]
    made = SimulatedNetwork(nodes, dict.fromkeys(hops, link()))
    return made, aggregation_tree(made, [f"w{rank}" for rank in range(workers)], spec["collective"]["at"])


@pytest.mark.parametrize("workers_per_host", [1, 2])
@pytest.mark.parametrize("at", ["leaf", "spine", "tree", None, "s0"])
@pytest.mark.parametrize(
    ("leaves", "workers"), [(4, 8), (4, 16), (1, 4)], ids=["one or two of a leaf", "two or four", "one leaf"]
)
def test_each_link_carries_as_many_sums_as_in_a_run(
    leaves: int, workers: int, at: str | None, workers_per_host: int
) -> None:
    topology = {"kind": "leaf_spine", "leaves": leaves, "spines": 1}
    collective = {"kind": "in_network", "at": at}
    spec: dict[str, Any] = {"name": "x", "workers": workers, "topology": topology, "collective": collective}
    spec["workers_per_host"] = workers_per_host
    plan = make_plan(validate(spec))
    network, tree = simulated(spec, workers)
    assert tree.root == plan.aggregators[0].switch_port.node
    one = next(each.balanced_bytes for each in plan.directions if each.sender.node == "w0")
    aggregators = {each.name for each in plan.aggregators}
    expected = {each.hop: each.balanced_bytes / one for each in plan.directions if not aggregators & set(each.hop)}
    found = Counter(network.hops[number] for number in tree.links)
    assert {hop: found[hop] for hop in expected} == pytest.approx(expected)


@pytest.mark.parametrize(("at", "word"), [("spine", "without workers"), ("tree", "without workers"), ("h0", "h0")])
def test_a_place_that_a_run_refuses_is_refused(at: str, word: str) -> None:
    collective = {"kind": "in_network", "at": at}
    spec: dict[str, Any] = {"name": "x", "topology": "dumbbell", "workers_per_host": 2, "collective": collective}
    with pytest.raises(SpecError, match=word):
        make_plan(validate(spec))
    with pytest.raises(SpecError, match=word):
        simulated(spec, 4)
