"""A placement chooses, for every worker, one of the fabric's places."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from transports.registry import Options, Registry


class Placement(Options):
    """A value on the placement axis."""

    @abstractmethod
    def attach(self, places: Sequence[str], num_workers: int, *, seed: int) -> Sequence[str]:
        """The switch of each worker, by rank, given the switch of each place (at least `num_workers`). Every place is
        taken at most once. Pure."""


PLACEMENTS: Final[Registry[Placement]] = Registry("placement", "testbed.experiment.placements")
