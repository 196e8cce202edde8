import math
from functools import cache
from itertools import combinations
from typing import Any

import pytest

from testbed.live.layout import MARGIN, Drawing, drawing
from testbed.plan.placement import place
from tests.live import experiment

NETWORKS: dict[str, dict[str, Any]] = {
    "star": {"workers": 4},
    "star of two": {"workers": 2},
    "large star": {"workers": 64},
    "hosts unlike each other": {"workers": 5, "workers_per_host": 4},
    "one leaf": {"workers": 4, "topology": {"kind": "leaf_spine", "leaves": 1, "spines": 3}},
    "dumbbell": {"workers": 6, "topology": "dumbbell"},
    "leaf_spine": {"workers": 16, "topology": {"kind": "leaf_spine", "leaves": 4, "spines": 2}},
    "wide leaf_spine": {"workers": 64, "topology": {"kind": "leaf_spine", "leaves": 4, "spines": 4}},
    "fat_tree": {"workers": 16, "topology": "fat_tree"},
    "ring": {"workers": 8, "topology": "ring"},
    "torus": {"workers": 16, "topology": {"kind": "torus", "dims": [4, 4]}},
    "torus of three": {"workers": 27, "topology": {"kind": "torus", "dims": [3, 3, 3]}},
    "shared hosts": {"workers": 8, "workers_per_host": 2},
    "shared hosts of a dumbbell": {"workers": 8, "workers_per_host": 2, "topology": "dumbbell"},
    "servers": {"workers": 4, "collective": {"kind": "parameter_server", "servers": 2}},
    "aggregators": {"workers": 4, "collective": "in_network"},
    "storage": {"workers": 4, "storage": {"kind": "batch_read", "sample": "100kB"}},
    "circle of a file": {
        "workers": 4,
        "topology": {
            "kind": "file",
            "switches": {"s0": 1, "s1": 1, "s2": 1, "s3": 1},
            "links": [{"between": pair} for pair in (["s0", "s1"], ["s1", "s2"], ["s2", "s3"], ["s0", "s3"])],
        },
    },
}


@cache
def network(name: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]], dict[str, Any]]:
    """Nodes, directions and spec."""
    given = experiment(**NETWORKS[name])
    placed = place(given)
    pairs = ((edge.first, edge.second) for edge in placed.edges)
    hops = [hop for one, other in pairs for hop in ((one, other), (other, one))]
    return [(node.name, node.role) for node in placed.nodes], hops, given.dump()


def drawn(name: str) -> Drawing:
    nodes, hops, spec = network(name)
    return drawing(nodes, hops, topology=spec["topology"], num_workers=spec["workers"])


@pytest.mark.parametrize("name", NETWORKS)
def test_nodes_keep_apart_within_the_drawing_and_it_is_always_the_same(name: str) -> None:
    found = drawn(name)
    for (one, a), (other, b) in combinations(found.places.items(), 2):
        assert math.dist(a, b) > 28, (one, other)
    for x, y in found.places.values():
        assert MARGIN / 2 <= x <= found.width - MARGIN / 2
        assert MARGIN / 2 <= y <= found.height - MARGIN / 2
    assert drawn(name) == found


@pytest.mark.parametrize("name", NETWORKS)
def test_both_directions_of_a_link_bend_alike(name: str) -> None:
    found = drawn(name)
    assert found.bends
    for (sender, receiver), bend in found.bends.items():
        assert found.bends[receiver, sender] == -bend


def test_a_switch_stands_in_the_middle_of_its_star() -> None:
    places = drawn("star").places
    hosts = [places[f"w{rank}"] for rank in range(4)]
    assert places["s0"] == pytest.approx([sum(host[axis] for host in hosts) / 4 for axis in (0, 1)], abs=0.2)


def test_tiers_stand_above_each_other() -> None:
    places = drawn("fat_tree").places
    heights = [
        {places[name][1] for name in names} for names in (["w0", "w15"], ["s0", "s7"], ["s8", "s15"], ["s16", "s19"])
    ]
    assert all(len(height) == 1 for height in heights), "a tier is level"
    levels = [height.pop() for height in heights]
    assert levels == sorted(levels, reverse=True)


def test_links_that_close_a_row_of_a_torus_go_around_what_is_between() -> None:
    found = drawn("torus")
    assert found.bends["s0", "s3"] != 0
    assert found.bends["s0", "s1"] == 0


def test_links_within_a_tier_that_would_hide_each_other_make_a_circle() -> None:
    places = drawn("circle of a file").places
    middle = [sum(places[f"s{number}"][axis] for number in range(4)) / 4 for axis in (0, 1)]
    radii = [math.dist(middle, places[f"s{number}"]) for number in range(4)]
    assert max(radii) - min(radii) < 1


@pytest.mark.parametrize("topology", [None, "of_another_version", {"kind": "ring", "colour": "red"}])
def test_a_topology_that_nobody_knows_is_drawn_by_its_links(topology: object) -> None:
    nodes, hops, _ = network("ring")
    found = drawing(nodes, hops, topology=topology, num_workers=8)
    assert set(found.places) == {name for name, _ in nodes}
