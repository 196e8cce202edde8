"""Data-parallel training of a real model with torch's own DistributedDataParallel.

A worker goes through five phases, with barriers of the control plane between them:

- compute_alone: the same iterations without communication, one worker at a time; the model is a copy that is dropped
  afterwards. The scaling factor compares with it.
- compute_only: the same, all workers at once and so under the same contention for cores. Network efficiency compares
  with it.
- set-up of DistributedDataParallel (it broadcasts the model), then warmup.
- measured.

What this file leaves to `trainer.py` is everything that needs torch.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, ClassVar, Final, Literal, get_args

from pydantic import Field, field_validator

from testbed.experiment.fusion import Fusion
from testbed.experiment.workloads._models import MODELS
from testbed.experiment.workloads.base import (
    ASSUMED_OPERATIONS_PER_S,
    WORKLOADS,
    AgentWorkload,
)
from testbed.traces.networks import NetworkName
from transports.compression.base import Compressor
from transports.torch_backend.ordering import layers_of

if TYPE_CHECKING:
    from torch import nn

_ALONE_WORKERS: Final = 8


@WORKLOADS.register
class Training(AgentWorkload):
    """Stochastic gradient descent with momentum; every worker has its own part of each batch."""

    model: Literal["cnn"] = "cnn"
    dataset: Literal["digits"] = "digits"
    batch_size: int = Field(64, ge=1, le=65536)
    """Images per worker and iteration."""
    compute_only: int = Field(8, ge=1, le=100_000)
    """Iterations without communication, before the others: of each worker alone, then of all at once. With fewer than 8
    there is no scaling factor."""
    warmup: int = Field(3, ge=2, le=100_000)
    """Iterations before the measured ones. At least 2: DistributedDataParallel forms its buckets anew in the
    second."""
    iterations: int = Field(30, ge=1, le=1_000_000)
    """Measured iterations."""
    learning_rate: float = Field(0.1, gt=0, le=10)
    momentum: float = Field(0.5, ge=0, lt=1)
    """With more of it the loss first overshoots: there is no schedule that would warm the learning rate up."""
    verify_gradients: bool = False
    """After each synchronisation compare with the float64 mean of all local gradients and fail the run when
    they differ by more than 1e-6 (relative, L2). It gathers all gradients over the same links: times mean
    nothing then."""

    entry: ClassVar[str] = "testbed.worker.trainer:work"
    preload: ClassVar[Sequence[str]] = (
        "torch",
        "torch.distributed",
        "torch.nn.parallel",
        # DistributedDataParallel's constructor would import it in every worker.
        "torch._dynamo",
        "sklearn.datasets",
        "transports.torch_backend.process_group",
        "testbed.worker.trainer",
    )

    @field_validator("model", mode="before")
    @classmethod
    def _computed(cls, model: object) -> object:
        if model in get_args(NetworkName):
            raise ValueError(
                f"allowed: 'cnn', which is computed here; the tensors of {model}, and computing as time that passes: "
                f"`workload: {{kind: synthetic, layers: {model}, forward: ..., backward: ...}}`"
            )
        return model

    def parameter_shapes(self) -> Sequence[tuple[int, ...]]:
        """Of each float32 parameter, in the order the model registers them."""
        return MODELS[self.model].parameter_shapes()

    def build(self) -> "nn.Module":
        """The model, its weights drawn from torch's global generator."""
        return MODELS[self.model].build()

    def parameter_counts(self) -> Sequence[int]:
        """Elements of each."""
        return [prod(shape) for shape in self.parameter_shapes()]

    def gradient_shapes(self) -> Sequence[tuple[int, ...]]:
        """In the order in which they become ready."""
        return MODELS[self.model].gradient_shapes()

    def layer_shapes(self) -> Sequence[Sequence[tuple[int, ...]]]:
        """The model's."""
        shapes = self.parameter_shapes()
        return [shapes[start:stop] for start, stop in layers_of(shapes)]

    def layer_backward_s(self) -> Sequence[float]:
        """For the gradients of the weights, and those of the layer's input."""
        operations = 4.0 * self.batch_size
        return [operations * count / ASSUMED_OPERATIONS_PER_S for count in MODELS[self.model].layer_multiplications()]

    def fusion_refusal(self, fusion: Fusion) -> str | None:
        """What leaves nothing to compare."""
        if self.verify_gradients and fusion.kind == "priority":
            return (
                "priority steps each layer in the next forward pass, and workload.verify_gradients compares all of "
                "them after backward; leave one of them out"
            )
        return None

    def synchronisation_refusal(self) -> str | None:
        """What compares gradients after every backward pass."""
        if self.verify_gradients:
            return "leaves no mean gradient to compare with; leave workload.verify_gradients out"
        return None

    def refusal(self, compressor: Compressor) -> str | None:
        """What would be applied twice, or compared with what it cannot equal."""
        if self.verify_gradients and compressor.kind != "none":
            return (
                f"{compressor.kind} changes gradients and workload.verify_gradients allows 1e-6; leave one of them out"
            )
        if self.momentum and compressor.own_momentum:
            return (
                f"{compressor.kind} applies the momentum itself, before it selects; set workload.momentum to 0 and "
                f"compression.momentum to what you want (now {self.momentum:g})"
            )
        return None

    def num_iterations(self) -> int:
        """Measured iterations."""
        return self.iterations

    def num_alone(self, num_workers: int) -> int:
        """Iterations that each worker computes by itself: `compute_only`, or fewer where many workers take turns, so
        that all of them together take no longer than eight do."""
        return min(self.compute_only, max(2, -(-_ALONE_WORKERS * self.compute_only // num_workers)))

    def phase_lengths(self) -> Mapping[str, int]:
        """As the worker goes through them."""
        return {"compute_only": self.compute_only, "warmup": self.warmup, "measured": self.iterations}

    def sends_only_gradients(self) -> bool:
        """Verifying gradients gathers them over the same links."""
        return not self.verify_gradients
