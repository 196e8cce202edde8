"""As far from each other as can be: neighbours in rank sit on different switches."""

from collections import Counter
from collections.abc import Sequence

from testbed.experiment.placements.base import PLACEMENTS, Placement


@PLACEMENTS.register
class Spread(Placement):
    """Round-robin over the switches that have places; the workers of a round that does not fill them all are evenly
    spaced."""

    def attach(self, places: Sequence[str], num_workers: int, *, seed: int) -> Sequence[str]:  # noqa: ARG002
        """Attach one worker to each switch with free places, round after round."""
        free = Counter(places)
        attached: list[str] = []
        while len(attached) < num_workers:
            offered = [switch for switch, count in free.items() if count]
            taken = min(num_workers - len(attached), len(offered))
            chosen = [offered[index * len(offered) // taken] for index in range(taken)]
            free.subtract(chosen)
            attached += chosen
        return attached
