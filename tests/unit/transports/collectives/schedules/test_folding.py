"""Who takes part when workers are no power of two."""

from tests.over_all import over_all
from transports.collectives.schedules.folding import fold


@over_all("num_workers", range(2, 40))
def test_members_are_a_power_of_two_and_everybody_else_has_a_partner_among_them(num_workers: int) -> None:
    foldings = [fold(num_workers, worker) for worker in range(num_workers)]
    (members,) = {folding.members for folding in foldings}
    assert len(members) & (len(members) - 1) == 0
    assert num_workers < 2 * len(members)
    for worker, folding in enumerate(foldings):
        if folding.position is None:
            assert folding.partner in members
        else:
            assert members[folding.position] == worker
        if folding.partner is not None:
            assert foldings[folding.partner].partner == worker
