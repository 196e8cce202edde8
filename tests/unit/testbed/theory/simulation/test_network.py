from collections import Counter
from itertools import pairwise

import pytest

from testbed.errors import SpecError
from testbed.experiment.topologies.base import Edge, Network, Node
from testbed.theory.simulation.network import SimulatedNetwork
from tests.unit.testbed.theory.simulation.networks import link, network


def test_a_path_is_a_shortest_one() -> None:
    fat, names = network(16, {"kind": "fat_tree", "k": 4})
    for source, target, length in ((0, 1, 2), (0, 2, 4), (0, 15, 6)):
        path = [fat.hops[each] for each in fat.path(names[source], names[target])]
        assert len(path) == length
        assert path[0][0] == names[source]
        assert path[-1][1] == names[target]
        assert all(before[1] == after[0] for before, after in pairwise(path))


def test_flows_spread_over_equal_paths_and_stay_where_they_are() -> None:
    leaf_spine, names = network(64, {"kind": "leaf_spine", "leaves": 2, "spines": 4})
    uplinks = Counter(leaf_spine.path(names[i], names[32 + j])[1] for i in range(32) for j in range(32))
    assert len(uplinks) == 4
    assert max(uplinks.values()) < 1.3 * 256
    again, _ = network(64, {"kind": "leaf_spine", "leaves": 2, "spines": 4})
    other, _ = network(64, {"kind": "leaf_spine", "leaves": 2, "spines": 4}, seed=2)
    paths = [[each.path(names[i], names[32 + i]) for i in range(32)] for each in (leaf_spine, again, other)]
    assert paths[0] == paths[1] != paths[2]


def test_distances_that_grow_are_found_anew() -> None:
    ring, names = network(9, "ring")
    assert len(ring.path(names[1], names[0])) == 3
    assert len(ring.path(names[4], names[0])) == 6
    assert len(ring.path(names[8], names[0])) == 3


def test_what_has_no_path_or_no_rate_is_refused() -> None:
    nodes = tuple(Node(name=name, role="worker" if name[0] == "w" else "switch") for name in ("w0", "w1", "s0", "s1"))
    edges = (Edge(first="w0", second="s0"), Edge(first="w1", second="s1"))
    hops = [hop for edge in edges for hop in ((edge.first, edge.second), (edge.second, edge.first))]
    apart = SimulatedNetwork(Network(nodes=nodes, edges=edges), dict.fromkeys(hops, link()))
    with pytest.raises(SpecError, match="no path from s0 to s1"):
        apart.path("w0", "w1")
    with pytest.raises(SpecError, match="no path"):
        apart.nearest(apart.switches, {"s0": 1, "s1": 1})
    with pytest.raises(SpecError, match=r"w0 -> s0: a rate of 0 bit/s"):
        SimulatedNetwork(Network(nodes=nodes, edges=edges), dict.fromkeys(hops, link(rate_bps=0.0)))


def test_the_nearest_switch_has_the_nearest_farthest_leaf() -> None:
    fat, _ = network(16, {"kind": "fat_tree", "k": 4})
    assert fat.nearest(fat.switches, {"s0": 2, "s1": 2}) == "s8"
    assert fat.nearest(fat.switches, {f"s{number}": 2 for number in range(8)}) == "s16"
