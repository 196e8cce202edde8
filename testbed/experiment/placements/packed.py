"""As near to each other as can be: what a scheduler tries first."""

from collections.abc import Sequence

from testbed.experiment.placements.base import PLACEMENTS, Placement


@PLACEMENTS.register
class Packed(Placement):
    """Worker i takes place i."""

    def attach(self, places: Sequence[str], num_workers: int, *, seed: int) -> Sequence[str]:  # noqa: ARG002
        """The first places."""
        return places[:num_workers]
