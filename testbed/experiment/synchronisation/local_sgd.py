"""Workers step by themselves and average their parameters after every so many iterations, and after the last one (Stich
2019, "Local SGD Converges Fast and Communicates Little")."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from testbed.experiment.synchronisation.base import SYNCHRONISATIONS, Synchronisation, parameters_incompatibility

if TYPE_CHECKING:
    from testbed.experiment.experiment import Experiment


@SYNCHRONISATIONS.register
class LocalSgd(Synchronisation):
    """Models that drift apart and are averaged."""

    worker: ClassVar[str] = "testbed.worker.synchronisers:by_averaging"

    every: int = Field(8, ge=1, le=100_000)
    """Iterations from one averaging to the next."""

    @property
    def interval(self) -> int | None:
        """See :class:`Synchronisation`."""
        return self.every

    @property
    def text(self) -> str | None:
        """See :class:`Synchronisation`."""
        return f"local_sgd, every {self.every} iterations"

    def incompatibility(self, experiment: "Experiment") -> str | None:
        """See :class:`Synchronisation`."""
        if experiment.fusion.by_engine:
            return parameters_incompatibility(experiment) or (
                f"averages parameters when the optimizer has stepped, so that fusion {experiment.fusion.kind} has "
                "nothing to order; allowed: size, layers, none"
            )
        return parameters_incompatibility(experiment)
