import math
from collections import Counter
from itertools import pairwise

import pytest

from testbed.experiment.topologies.base import TOPOLOGIES
from testbed.plan.paths import next_hops, paths


def test_a_ring_has_as_many_links_as_switches_two_at_each() -> None:
    fabric = TOPOLOGIES.parse("ring").fabric(5)
    assert [edge.name for edge in fabric.trunks] == ["s0-s1", "s1-s2", "s2-s3", "s3-s4", "s4-s0"]
    assert set(Counter(name for edge in fabric.trunks for name in (edge.first, edge.second)).values()) == {2}


def test_it_has_at_least_three_switches() -> None:
    assert TOPOLOGIES.parse("ring").fabric(1).switches == ("s0", "s1", "s2")


def test_the_way_round_is_the_shorter_one_and_both_where_they_are_equal() -> None:
    fabric = TOPOLOGIES.parse("ring").fabric(4)
    found = paths(next_hops(fabric.network(fabric.places)))
    assert found["w0", "w3"].text == "w0 > s0 > s3 > w3"
    assert found["w0", "w2"].text == "w0 > s0 > s1|s3 > s2 > w2"


def test_it_is_drawn_as_a_circle_with_neighbours_one_apart() -> None:
    outline = TOPOLOGIES.parse("ring").outline(5)
    places = [outline[f"s{number}"] for number in range(5)]
    for before, after in pairwise([*places, places[0]]):
        assert math.dist(before, after) == pytest.approx(1)
    assert len({round(math.hypot(*place), 6) for place in places}) == 1
    assert places[0][1] == min(y for _, y in places), "the first is on top"
