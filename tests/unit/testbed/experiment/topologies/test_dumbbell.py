from testbed.experiment.topologies.base import TOPOLOGIES


def test_half_of_the_places_are_on_each_side_of_one_link() -> None:
    fabric = TOPOLOGIES.parse({"kind": "dumbbell", "bottleneck": 0.5}).fabric(5)
    assert fabric.places == ("s0", "s0", "s0", "s1", "s1", "s1")
    assert [(edge.name, edge.rate_factor) for edge in fabric.trunks] == [("s0-s1", 0.5)]
