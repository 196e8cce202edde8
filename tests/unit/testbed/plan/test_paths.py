"""Shortest paths, all of them."""

from fractions import Fraction

from testbed.experiment.topologies.base import TOPOLOGIES
from testbed.plan.paths import next_hops, paths


def test_next_hops_are_the_neighbours_nearer_to_the_target() -> None:
    fabric = TOPOLOGIES.parse({"kind": "leaf_spine", "leaves": 2, "spines": 3}).fabric(2)
    hops = next_hops(fabric.network(fabric.places))
    assert hops["w1"]["s0"] == ("s2", "s3", "s4")
    assert hops["w1"]["s2"] == ("s1",)
    assert hops["w1"]["s1"] == ("w1",)
    assert hops["w1"]["w0"] == ("s0",)


def test_shares_are_split_evenly_at_every_node() -> None:
    fabric = TOPOLOGIES.parse({"kind": "leaf_spine", "leaves": 2, "spines": 3}).fabric(2)
    path = paths(next_hops(fabric.network(fabric.places)))["w0", "w1"]
    assert path.shares["w0", "s0"] == path.shares["s1", "w1"] == 1
    assert path.shares["s0", "s3"] == path.shares["s3", "s1"] == Fraction(1, 3)
    assert ("s1", "s3") not in path.shares
    assert path.text == "w0 > s0 > s2|s3|s4 > s1 > w1"
