"""Parents and children of a binomial tree."""

from tests.over_all import over_all
from transports.collectives.schedules.binomial import children, parent


@over_all("size", range(1, 20))
def test_everybody_but_the_root_is_one_child(size: int) -> None:
    for root in (0, size // 2, size - 1):
        for participant in range(size):
            above = parent(participant, size, root)
            assert (above is None) == (participant == root)
            assert all(parent(child, size, root) == participant for child in children(participant, size, root))
        below = [child for participant in range(size) for child in children(participant, size, root)]
        assert sorted(below) == sorted(set(range(size)) - {root})


def test_a_tree_of_eight() -> None:
    assert children(0, 8, 0) == [4, 2, 1]
    assert children(4, 8, 0) == [6, 5]
    assert parent(7, 8, 0) == 6
