"""The mean of all gradients, before each step."""

from typing import ClassVar

from testbed.experiment.synchronisation.base import SYNCHRONISATIONS, Synchronisation


@SYNCHRONISATIONS.register
class EveryIteration(Synchronisation):
    """Models that are always alike."""

    worker: ClassVar[str] = "testbed.worker.synchronisers:by_gradients"
    gradients_in_every_iteration: ClassVar[bool] = True

    @property
    def text(self) -> str | None:
        """None: it is what a reader expects."""
        return None
