"""What workers do. A workload is an option set in the spec (read by the plan) and mostly an entry point in each worker.

The plan reads it without torch: how big the gradients are, in which buckets, how many iterations. The worker calls
function that :attr:`AgentWorkload.entry` names, in a process forked from the fork server, which has imported `preload`
already.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from testbed.experiment.fusion.base import Fusion
from testbed.traces.graph import Graph
from testbed.traces.table import LayerTable
from transports.baselines.base import Stack
from transports.channels.base import CHANNELS, Channel
from transports.collectives.base import COLLECTIVES, Collective
from transports.collectives.in_network import InNetwork
from transports.compression.base import Compressor
from transports.registry import Options, Registry

if TYPE_CHECKING:
    from testbed.experiment.experiment import Experiment
    from testbed.experiment.workloads.command import Command

ASSUMED_OPERATIONS_PER_S: Final = 50e9
"""Of a worker in a backward pass that nobody has said the time of."""
GRADIENTS_GROUP: Final = "gradients"
"""The name under which parameter servers know the group that exchanges gradients."""


class ServedGroup(BaseModel):
    """A process group of the workers that parameter servers take part in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    collective: Annotated[Collective, *COLLECTIVES.field()]
    channel: Annotated[Channel, *CHANNELS.field()]


class Steps(NamedTuple):
    """Stochastic gradient descent."""

    learning_rate: float
    momentum: float
    num_steps: int
    """Of each worker, from the first that communicates."""


def changed_options(value: Options, standard: Options) -> list[str]:
    """Names of what differs from the standard of the same axis, as a spec writes them; `kind` where that does."""
    if value.kind != standard.kind:
        return ["kind"]
    fields = type(value).model_fields
    return [fields[name].alias or name for name in fields if getattr(value, name) != getattr(standard, name)]


def unread(experiment: "Experiment", standard: "Experiment", names: Sequence[str], why: str) -> list[str]:
    """Of these keys of a spec those that differ from the standard and that nobody would read, each as an error. Of
    channels `congestion` is the route's, and so every TCP connection's."""
    found = []
    for name in names:
        value, usual = getattr(experiment, name), getattr(standard, name)
        if value == usual:
            continue
        if name == "channel" and set(changed_options(value, usual)) <= {"congestion"}:
            continue
        found.append(f"{name}: {why}")
    return found


class Workload(Options):
    """A value on the workload axis."""

    preload: ClassVar[Sequence[str]] = ()
    """Modules the fork server imports before it forks workers of this kind."""
    fewest_workers: ClassVar[int] = 2
    """Without a peer there is nobody to exchange gradients with, and nothing to measure."""

    reads_data: ClassVar[bool] = False
    """Whether it can be given a storage that its workers read from."""
    across_machines: ClassVar[bool] = False
    """Whether nodes of one run may be on several machines with it: it has been made to work there, and tried."""

    def batch_samples(self) -> int | None:
        """Samples of a worker in an iteration; None: nobody says how many."""
        return None

    @abstractmethod
    def parameter_counts(self) -> Sequence[int]:
        """Elements of each float32 parameter tensor, in the order the model registers them. Pure, without torch."""

    def gradient_shapes(self) -> Sequence[tuple[int, ...]]:
        """Of the same tensors' gradients, in the order in which they become ready: DistributedDataParallel forms its
        buckets so from the second iteration on. Where a workload does not say, it is the reverse, in one dimension."""
        return [(count,) for count in reversed(self.parameter_counts())]

    @property
    def command(self) -> "Command | None":
        """The program of the user's that it is; None: it is a function of ours."""
        return None

    def steps(self) -> "Steps | None":
        """How a server is to step in the workers' place; None: it has no optimizer."""
        return None

    def computing(self) -> str:
        """What of its computing is real and what is paced or replayed, in a line for a reader of the numbers; empty
        where it computes nothing that is known."""
        return ""

    def judged_by_links_alone(self) -> bool:
        """Whether a run of it has a verdict though it reports no iterations."""
        return False

    def layer_shapes(self) -> Sequence[Sequence[tuple[int, ...]]]:
        """Of the tensors of each layer, the first layer first. Where a workload does not say, tensors are layers."""
        return [((count,),) for count in self.parameter_counts()]

    def layer_backward_s(self) -> Sequence[float]:
        """How long each layer's part of a backward pass is taken to last, the first layer first. Where a workload does
        not say, two multiplications and two additions for each element."""
        return [4.0 * sum(map(prod, shapes)) / ASSUMED_OPERATIONS_PER_S for shapes in self.layer_shapes()]

    def timed_layers(self) -> LayerTable | None:
        """The layers, and how long their parts of computing last, where the spec says it; None: computing takes as long
        as it takes."""
        return None

    def graph(self) -> Graph | None:
        """What each worker computes and exchanges in an iteration, where that is not layers and their gradients."""
        return None

    def lone_exchanges(self) -> Sequence[tuple[str, int]]:
        """The stack and the bytes of each all-reduce that it measures by itself; none where it has iterations."""
        return ()

    def unsupported_fusion(self, fusion: Fusion) -> str | None:  # noqa: ARG002 (others depend on it)
        """Why gradients fused so would be wrong here, and the fix; None: they may."""
        return None

    def undilatable(self) -> str | None:
        """Why time cannot be dilated for it, and the fix; None: all of its computing takes a
        configured time, which is stretched k times. A workload that does not say computes at this machine's speed."""
        return (
            f"{self.kind} computes as fast as this machine does, in time that nothing stretches; allowed: a workload "
            "whose computing takes a configured time (synthetic), or dilation: 1"
        )

    def unsupported_synchronisation(self) -> str | None:
        """Why workers must agree in every iteration here, and the fix; None: they need not."""
        return f"is for training; workload {self.kind} has no parameters"

    def unsupported_compression(self, compressor: Compressor) -> str | None:  # noqa: ARG002 (others depend on it)
        """Why gradients compressed so would be wrong here, and the fix; None: they may."""
        return None

    def unsupported_aggregation(self, aggregation: InNetwork) -> str | None:  # noqa: ARG002 (others depend on it)
        """Why sums by such a switch would be wrong here: the option, the reason and the fix; None: they may."""
        return None

    @abstractmethod
    def num_iterations(self) -> int:
        """Measured iterations."""

    @abstractmethod
    def phase_lengths(self) -> Mapping[str, int]:
        """Iterations in each phase that the worker reports; a run is judged by those of `measured`."""

    def sends_only_gradients(self) -> bool:
        """Whether the links carry the gradients' all-reduces and nothing else while iterations are measured, so that
        their bytes can be expected."""
        return True

    def verifies_gradients(self) -> bool:
        """Whether all gradients are gathered over the same links after each iteration, whose times are not its own
        then."""
        return False

    def incompatibilities(self, experiment: "Experiment") -> Sequence[str]:  # noqa: ARG002 (others have some)
        """What else the spec says that would mean nothing here: each with its key, the reason and the fix."""
        return ()

    def served_groups(self, collective: Collective, channel: Channel) -> Sequence[ServedGroup]:
        """The groups that need servers, given what the spec exchanges gradients with."""
        if not collective.num_servers:
            return ()
        return (ServedGroup(name=GRADIENTS_GROUP, collective=collective, channel=channel),)

    def collectives(self, collective: Collective) -> Sequence[Collective]:
        """All that are used, given the one with which the spec exchanges gradients."""
        return (collective,)

    def channels(self, channel: Channel) -> Sequence[Channel]:
        """All that are used, given the one over which the spec exchanges gradients."""
        return (channel,)

    def compressors(self, compressor: Compressor) -> Sequence[Compressor]:
        """All that are used, given the one with which the spec exchanges gradients."""
        return (compressor,)

    def transports(self, experiment: "Experiment") -> Sequence[Channel | Compressor]:
        """What of ours its workers are sure to exchange with."""
        # A baseline library has connections of its own.
        channels = self.channels(experiment.channel) if experiment.stack is None else ()
        return (*channels, *self.compressors(experiment.compression))

    def baselines(self, stack: Stack | None) -> Sequence[Stack]:
        """All that are used, given the one that the spec exchanges gradients with instead of a collective."""
        return () if stack is None else (stack,)


class AgentWorkload(Workload):
    """One that is a function of ours, called in each worker; the control plane keeps the workers in step."""

    entry: ClassVar[str]
    """`module:function`, called as function(workload, WorkerConfiguration, WorkerControl) in each worker's process: the
    worker's whole life between registration and exit. Only there is the module imported."""
    across_machines: ClassVar[bool] = True


WORKLOADS: Final[Registry[Workload]] = Registry("workload", "testbed.experiment.workloads")
