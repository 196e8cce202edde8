"""What training and its replays have in common: iterations that end with everybody's gradients.

A worker goes through five phases, with barriers of the control plane between them:

- compute_alone: the same iterations without communication, one worker at a time; the model is a copy that is dropped
  afterwards. The scaling factor compares with it. A replay has none: computing that is time that passes needs no core,
  and lasts as long beside others.
- compute_only: the same, all workers at once and so under the same contention for cores. Network efficiency compares
  with it.
- set-up of DistributedDataParallel (it broadcasts the model), then warmup.
- measured.

What needs torch is in `testbed/worker/trainer.py`.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import ClassVar

from pydantic import Field

from testbed.experiment.fusion.base import Fusion
from testbed.experiment.workloads.base import AgentWorkload, Steps
from testbed.traces.schedule import ComputeSchedule
from testbed.traces.table import LayerTable
from transports.collectives.in_network import InNetwork
from transports.compression.base import Compressor
from transports.torch_backend.ordering import layers_of


class Iterative(AgentWorkload):
    """Synchronous by nature: workers exchange the gradients of each iteration, unless the spec says otherwise."""

    compute_only: int = Field(8, ge=1, le=100_000)
    """Iterations without communication, before the others: of one worker after the other, so many of all together, then
    of all workers at once. With fewer than 8 there is no scaling factor."""
    warmup: int = Field(3, ge=2, le=100_000)
    """Iterations before the measured ones. At least 2: DistributedDataParallel forms its buckets anew in the
    second."""
    iterations: int = Field(30, ge=1, le=1_000_000)
    """Measured iterations."""
    verify_gradients: bool = False
    """After each synchronisation compare with the float64 mean of all local gradients and fail the run when
    they differ by more than 1e-6 (relative, L2). It gathers all gradients over the same links: times mean
    nothing then."""

    preload: ClassVar[Sequence[str]] = (
        "torch",
        "torch.distributed",
        "torch.nn.parallel",
        # DistributedDataParallel's constructor would import it in every worker.
        "torch._dynamo",
        "transports.torch_backend.process_group",
        "testbed.worker.trainer",
    )

    reads_data: ClassVar[bool] = True
    contends: ClassVar[bool] = True
    """Whether workers that compute at once may hold each other up, so that each has to be seen alone."""

    @abstractmethod
    def parameter_shapes(self) -> Sequence[tuple[int, ...]]:
        """Of each float32 parameter, in the order the model registers them."""

    @abstractmethod
    def layer_table(self) -> LayerTable:
        """The layers, with the tensors of `parameter_shapes` in that order, and how long their parts of computing last,
        or are taken to last where nobody has said it."""

    @abstractmethod
    def paced(self) -> bool:
        """Whether computing is made to last as long as `layer_table` says; if not, it lasts as long as it takes."""

    @abstractmethod
    def computing(self) -> str:
        """What of computing is real and what is paced or replayed, in a line for a reader of the numbers."""

    def batch_samples(self) -> int | None:
        """Those that the table of layers is of."""
        return self.layer_table().batch_size

    def timed_layers(self) -> LayerTable | None:
        """The table of layers' times, where computing is paced or replayed; else None."""
        return self.layer_table() if self.paced() else None

    def parameter_counts(self) -> Sequence[int]:
        """Elements of each."""
        return [prod(shape) for shape in self.parameter_shapes()]

    def layer_shapes(self) -> Sequence[Sequence[tuple[int, ...]]]:
        """A matrix and the vectors behind it are a layer."""
        shapes = self.parameter_shapes()
        return [shapes[start:stop] for start, stop in layers_of(shapes)]

    def layer_backward_s(self) -> Sequence[float]:
        """How long each layer's backward pass takes: from one layer's gradients to the next ones'."""
        ready_s = ComputeSchedule.of(self.layer_table()).ready_s
        layers_s = [max(ready_s[start:stop]) for start, stop in layers_of(self.parameter_shapes())]
        return [later_s - earlier_s for later_s, earlier_s in pairwise([*layers_s, 0.0])]

    def unsupported_fusion(self, fusion: Fusion) -> str | None:
        """What leaves nothing to compare."""
        if self.verify_gradients and fusion.steps_in_forward:
            return (
                f"{fusion.kind} steps each layer in the next forward pass, and workload.verify_gradients compares all "
                "of them after backward; leave one of them out"
            )
        return None

    def unsupported_synchronisation(self) -> str | None:
        """What compares gradients after every backward pass."""
        if self.verify_gradients:
            return "leaves no mean gradient to compare with; leave workload.verify_gradients out"
        return None

    def unsupported_compression(self, compressor: Compressor) -> str | None:
        """What would be compared with what it cannot equal."""
        if self.verify_gradients and compressor.compresses:
            return (
                f"{compressor.kind} changes gradients and workload.verify_gradients allows 1e-6; leave one of them out"
            )
        return None

    def unsupported_aggregation(self, aggregation: InNetwork) -> str | None:
        """What would be compared with a mean that it cannot equal."""
        if self.verify_gradients and aggregation.payload != "int32":
            return (
                f"payload: {aggregation.payload} rounds sums and workload.verify_gradients allows 1e-6; say payload: "
                "int32, or leave workload.verify_gradients out"
            )
        if self.verify_gradients and aggregation.partial_after_s is not None:
            return (
                "partial_after: a sum may lack a straggler's gradients, and workload.verify_gradients compares with "
                "everybody's; leave one of them out"
            )
        return None

    def undilatable(self) -> str | None:
        """Computing that takes as long as it takes."""
        return None if self.paced() else super().undilatable()

    def num_iterations(self) -> int:
        """Measured iterations."""
        return self.iterations

    def num_alone(self, num_workers: int) -> int:
        """Iterations that each worker computes by itself: its share of `compute_only`, so that all of them in turn take
        about as long as that does; two at least, where there are as many."""
        return min(self.compute_only, max(2, -(-self.compute_only // num_workers)))

    def phase_lengths(self) -> Mapping[str, int]:
        """The number of iterations in each phase, in the order in which the worker goes through them."""
        return {"compute_only": self.compute_only, "warmup": self.warmup, "measured": self.iterations}

    def sends_only_gradients(self) -> bool:
        """Verifying gradients gathers them over the same links."""
        return not self.verifies_gradients()

    def verifies_gradients(self) -> bool:
        """See :class:`Workload`."""
        return self.verify_gradients


class Replayed(Iterative):
    """Training whose computing is replayed: layers of any sizes, whose gradients are ready when a device would have
    made them.

    Everything else is real: autograd, hooks, buckets, compressors, the bytes of gradients, the links. Because nobody
    needs a core to wait, more workers fit a machine, and how much communication hides behind computing depends on the
    network and not on who got the cores. Gradients are random numbers from the run's seed, other ones for each worker
    and iteration; there is no loss.
    """

    entry: ClassVar[str] = "testbed.worker.replay:work"
    contends: ClassVar[bool] = False
    preload: ClassVar[Sequence[str]] = (*Iterative.preload, "testbed.worker.replay")

    @abstractmethod
    def origin(self) -> str:
        """Where the table is from, for a reader of the numbers."""

    def paced(self) -> bool:
        """True: nothing else would take time."""
        return True

    def parameter_shapes(self) -> Sequence[tuple[int, ...]]:
        """The shapes of all layers' parameters."""
        return [shape for layer in self.layer_table().layers for shape in layer.tensors]

    def gradient_shapes(self) -> Sequence[tuple[int, ...]]:
        """The last layer's first."""
        return [shape for layer in reversed(self.layer_table().layers) for shape in layer.tensors]

    def computing(self) -> str:
        """Replayed."""
        table = self.layer_table()
        forward, backward, update = map(milliseconds, (table.forward_s, table.backward_s, table.update_s))
        return (
            f"replayed, {self.origin()}: forward {forward}, backward {backward}, optimizer {update}; gradients are "
            "random numbers, their bytes are real"
        )

    def steps(self) -> Steps:
        """Nowhere: parameters mean nothing."""
        return Steps(0.0, 0.0, self.warmup + self.iterations)


def milliseconds(time_s: float) -> str:
    """The duration in milliseconds, for a reader."""
    return f"{1e3 * time_s:.4g} ms"
