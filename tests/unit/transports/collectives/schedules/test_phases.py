"""Phases say what messages say: held to the schedules of the same all-reduce."""

import pytest

from transports.collectives.base import COLLECTIVES, World
from transports.collectives.cost import sent_bytes
from transports.collectives.schedules.phases import Phase, Rings

RACKS = tuple(rank // 4 for rank in range(12))
NUM_ELEMENTS = 12 * 4 * 3 * 1000
"""Divides evenly among workers, a rack's workers and racks."""


def phase_bytes(phase: Phase) -> dict[tuple[int, int], int]:
    """What each pair carries."""
    if not isinstance(phase, Rings):
        return dict.fromkeys(phase.pairs, sum(phase.message_bytes))
    found = {}
    for ring in phase.members:
        for number, member in enumerate(ring):
            num_steps = 2 * (len(ring) - 1)
            found[member, ring[(number + 1) % len(ring)]] = num_steps * sum(phase.message_bytes)
    return found


@pytest.mark.parametrize("racks", [(), RACKS, tuple(rank % 3 for rank in range(12))])
@pytest.mark.parametrize("kind", ["ring", "hierarchical"])
def test_phases_move_what_the_schedule_moves(kind: str, racks: tuple[int, ...]) -> None:
    collective, world = COLLECTIVES.parse(kind), World(num_workers=12, racks=racks)
    phases = collective.phases(world, NUM_ELEMENTS, 4)
    assert phases is not None
    moved: dict[tuple[int, int], int] = {}
    for phase in phases:
        for pair, num_bytes in phase_bytes(phase).items():
            moved[pair] = moved.get(pair, 0) + num_bytes
    counts = sent_bytes(collective, "all_reduce", world, NUM_ELEMENTS, 4)
    assert moved == {pair: count.payload_bytes for pair, count in counts.items()}


def test_others_have_none() -> None:
    for kind in ("tree", "halving_doubling", "all_to_all", "auto"):
        collective = COLLECTIVES.parse(kind)
        assert collective.phases(collective.world(4), 1000, 4) is None
