"""When workers synchronise what they have learned: in every iteration, now and then, or without waiting. Pure."""

from typing import TYPE_CHECKING, ClassVar, Final

from transports.registry import Options, Registry

if TYPE_CHECKING:
    from testbed.experiment.experiment import Experiment


class Synchronisation(Options):
    """A value on the synchronisation axis: how far workers' models may drift apart."""

    worker: ClassVar[str]
    """`module:function` that makes the worker's side of it, called as testbed.worker.synchronisers.Maker; only in a
    worker is the module imported."""
    in_step: ClassVar[bool] = True
    """Whether workers exchange at the same times, and with each other. If not, each pushes gradients to parameter
    servers, which step at once, and pulls parameters, by itself."""
    gradients_in_every_iteration: ClassVar[bool] = False
    """Whether it is the mean gradient of every iteration that is exchanged, as everything else takes for granted."""

    @property
    def interval(self) -> int | None:
        """Iterations from one averaging of parameters to the next; None where nothing is averaged."""
        return None

    @property
    def text(self) -> str | None:
        """In a few words, for whoever reads what was run; None: as everybody expects."""
        return self.kind

    @property
    def advice(self) -> str | None:
        """What a reader of the plan should know, `{workers}` standing for how many there are; None: nothing."""
        return None

    def num_exchanges(self, num_iterations: int) -> int:
        """In a phase of so many iterations, at whose end workers agree once more."""
        return -(-num_iterations // (self.interval or 1))

    def incompatibility(self, experiment: "Experiment") -> str | None:  # noqa: ARG002 (others have some)
        """What of the rest of the spec does not go with it, and the fix, as said after its name; None: all does."""
        return None


def parameters_incompatibility(experiment: "Experiment") -> str | None:
    """Of whatever exchanges parameters, and not gradients: see :meth:`Synchronisation.incompatibility`."""
    if reason := experiment.workload.unsupported_synchronisation():
        return reason
    if experiment.compression.compresses:
        return (
            f"exchanges parameters, and compression {experiment.compression.kind} is made for gradients; leave one of "
            "them out"
        )
    return None


SYNCHRONISATIONS: Final[Registry[Synchronisation]] = Registry(
    "synchronisation", "testbed.experiment.synchronisation", default="every_iteration"
)
