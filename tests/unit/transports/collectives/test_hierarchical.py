"""Hierarchical's own promises; what every collective promises is in `tests/contract/test_collectives.py`."""

from transports.collectives.cost import sent_bytes
from transports.collectives.hierarchical import Hierarchical, members_by_rack


def test_one_share_crosses_between_racks_whatever_the_number_of_workers() -> None:
    collective = Hierarchical()
    for num_workers in (4, 8, 16):
        racks = tuple(rank * 2 // num_workers for rank in range(num_workers))
        counts = sent_bytes(collective, "all_reduce", collective.world(num_workers, racks=racks), 3200, 4)
        across = sum(count.payload_bytes for (a, b), count in counts.items() if racks[a] < racks[b])
        assert across == 3200 * 4


def test_racks_of_different_sizes_share_as_many_parts_as_the_smallest_has_workers() -> None:
    collective = Hierarchical()
    world = collective.world(5, racks=(0, 0, 1, 1, 1))
    counts = sent_bytes(collective, "all_reduce", world, 1000, 4)
    assert {pair for pair in counts if (pair[0] < 2) != (pair[1] < 2)} == {(0, 2), (2, 0), (1, 3), (3, 1)}


def test_without_racks_all_workers_are_in_one() -> None:
    assert members_by_rack(Hierarchical().world(3)) == [[0, 1, 2]]
    assert members_by_rack(Hierarchical().world(4, racks=(1, 0, 1, 0))) == [[1, 3], [0, 2]]
