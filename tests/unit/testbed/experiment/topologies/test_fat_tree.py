from collections import Counter

import pytest
from pydantic import ValidationError

from testbed.experiment.topologies.base import TOPOLOGIES
from testbed.plan.paths import next_hops, paths


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_every_switch_uses_its_k_ports_when_every_place_is_taken(k: int) -> None:
    fabric = TOPOLOGIES.parse({"kind": "fat_tree", "k": k}).fabric(1)
    assert len(fabric.places) == k**3 // 4
    assert len(fabric.switches) == 5 * k**2 // 4
    assert len(fabric.trunks) == k**3 // 2
    ports = Counter(fabric.places)
    ports.update(name for edge in fabric.trunks for name in (edge.first, edge.second))
    assert set(ports.values()) == {k}


def test_between_pods_there_are_as_many_paths_as_core_switches() -> None:
    fabric = TOPOLOGIES.parse({"kind": "fat_tree", "k": 4}).fabric(16)
    found = paths(next_hops(fabric.network(fabric.places)))
    assert found["w0", "w1"].text == "w0 > s0 > w1"
    assert found["w0", "w2"].text == "w0 > s0 > s8|s9 > s1 > w2"
    assert found["w0", "w15"].text == "w0 > s0 > s8|s9 > s16|s17|s18|s19 > s14|s15 > s7 > w15"


@pytest.mark.parametrize("k", [3, 0, 10])
def test_other_sizes_are_refused(k: int) -> None:
    with pytest.raises(ValidationError):
        TOPOLOGIES.parse({"kind": "fat_tree", "k": k})
