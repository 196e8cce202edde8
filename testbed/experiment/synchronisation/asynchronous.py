"""Workers push gradients to parameter servers, which step at once, and pull parameters, without waiting for each other
(Dean et al. 2012, Downpour SGD)."""

from typing import TYPE_CHECKING, ClassVar

from testbed.experiment.synchronisation.base import SYNCHRONISATIONS, Synchronisation, parameters_incompatibility

if TYPE_CHECKING:
    from testbed.experiment.experiment import Experiment


@SYNCHRONISATIONS.register
class Asynchronous(Synchronisation):
    """Needs `collective: parameter_server`. Each gradient is applied at the whole learning rate: where training
    diverges, divide it by the number of workers."""

    worker: ClassVar[str] = "testbed.worker.synchronisers:by_servers"
    in_step: ClassVar[bool] = False

    @property
    def advice(self) -> str | None:
        """See :class:`Synchronisation`."""
        return (
            "servers apply each worker's gradient at the whole learning rate, {workers} steps where others make one; "
            "where training diverges, divide workload.learning_rate by {workers}"
        )

    def incompatibility(self, experiment: "Experiment") -> str | None:
        """See :class:`Synchronisation`."""
        if reason := parameters_incompatibility(experiment):
            return reason
        if experiment.stack is not None:
            return "needs servers of its own: write `collective: parameter_server`, and no stack"
        if reason := experiment.collective.pushes_incompatibility():
            return reason
        if not experiment.fusion.whole_gradient:
            return "pushes a gradient when backward has ended; write `fusion: none`"
        return None
