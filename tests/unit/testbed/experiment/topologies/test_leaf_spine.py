import pytest

from testbed.experiment.topologies.base import TOPOLOGIES


@pytest.mark.parametrize("oversubscription", [0.5, 1, 2, 3])
def test_a_leafs_hosts_can_send_so_much_more_than_its_uplinks(oversubscription: float) -> None:
    options = {"leaves": 4, "spines": 3, "hosts_per_leaf": 6, "oversubscription": oversubscription}
    fabric = TOPOLOGIES.parse({"kind": "leaf_spine", **options}).fabric(24)
    assert len(fabric.switches) == 7
    assert len(fabric.trunks) == 12
    assert len(fabric.places) == 24
    for leaf in ("s0", "s1", "s2", "s3"):
        uplinks = [edge for edge in fabric.trunks if edge.first == leaf]
        assert {edge.second for edge in uplinks} == {"s4", "s5", "s6"}
        assert fabric.places.count(leaf) / sum(edge.rate_factor for edge in uplinks) == pytest.approx(oversubscription)


def test_leaves_have_as_many_places_as_the_workers_need() -> None:
    assert len(TOPOLOGIES.parse({"kind": "leaf_spine", "leaves": 3}).fabric(7).places) == 9
