"""Wherever there was room: what a busy cluster's scheduler gives."""

from collections.abc import Sequence
from random import Random

from testbed.experiment.placements.base import PLACEMENTS, Placement


@PLACEMENTS.register
class RandomPlaces(Placement):
    """Any of the places with the same probability, by the run's seed."""

    def attach(self, places: Sequence[str], num_workers: int, *, seed: int) -> Sequence[str]:
        """Draws places without replacement; the same seed gives the same places."""
        return Random(f"placement {seed}").sample(list(places), num_workers)
