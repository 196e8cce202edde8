"""What a collective gets that has no schedule of its own for an operation."""

from typing import get_args

import pytest

from transports.collectives.base import Operation
from transports.collectives.cost import sent_bytes
from transports.collectives.recursive_doubling import RecursiveDoubling
from transports.collectives.ring import Ring
from transports.collectives.schedules.expanded import schedules


@pytest.mark.parametrize("operation", get_args(Operation))
def test_alone_there_is_nothing_to_do(operation: Operation) -> None:
    for collective in (Ring(), RecursiveDoubling()):
        assert schedules(collective, operation, collective.world(1), 100, 4) == ((),)


def test_a_collective_s_own_way_comes_first() -> None:
    ring, world = Ring(), Ring().world(4)
    pairs = sent_bytes(ring, "broadcast", world, 8, 4)
    assert set(pairs) == {(0, 1), (1, 2), (2, 3)}


def test_a_broadcast_goes_along_a_binomial_tree() -> None:
    collective = RecursiveDoubling()
    pairs = sent_bytes(collective, "broadcast", collective.world(7), 8, 4, root=1)
    assert {(sender - 1) % 7: set() for sender, _ in pairs}.keys() == {0, 2, 4}
    assert len(pairs) == 6


def test_a_barrier_takes_the_logarithm_of_messages() -> None:
    collective = RecursiveDoubling()
    counts = sent_bytes(collective, "barrier", collective.world(9), 1, 1)
    assert sum(count.num_messages for count in counts.values()) == 4 * 9


def test_parts_that_move_are_sent_once() -> None:
    collective = RecursiveDoubling()
    operations: tuple[Operation, ...] = ("all_gather", "reduce_scatter", "all_to_all")
    for operation in operations:
        counts = sent_bytes(collective, operation, collective.world(4), 4000, 4)
        assert {count.payload_bytes for count in counts.values()} == {4000}
        assert len(counts) == 12
