"""Data-parallel training of a real model with torch's own DistributedDataParallel.

Computing is real in any case. It takes as long as it takes here, or, with a `pace`, as long as it would on a device of
that speed: a worker waits where the device would still compute, so that a machine with few cores does not decide how
much of communication is hidden.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

from testbed.experiment.iterative import Iterative, milliseconds
from testbed.experiment.workloads._models import MODELS
from testbed.experiment.workloads.base import ASSUMED_OPERATIONS_PER_S, WORKLOADS, Steps
from testbed.traces.networks import NetworkName
from testbed.traces.table import ELEMENT_BYTES, Layer, LayerTable
from transports.compression.base import Compressor
from transports.torch_backend.ordering import layer_counts
from transports.units import Time

if TYPE_CHECKING:
    from torch import nn


class Pace(BaseModel):
    """How long the device takes for the parts of an iteration, which share them by their multiplications."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    forward_s: Time = Field(alias="forward", gt=0, le=3600)
    """The whole forward pass."""
    backward_s: Time = Field(alias="backward", gt=0, le=3600)
    """The whole backward pass."""
    update_s: Time = Field(0.0, alias="update", ge=0, le=3600)
    """The optimizer's step; 0s where nothing is said: this machine's own lies in the next forward pass then."""


@WORKLOADS.register
class Training(Iterative):
    """Stochastic gradient descent with momentum; every worker has its own part of each batch."""

    model: Literal["cnn"] = "cnn"
    dataset: Literal["digits"] = "digits"
    batch_size: int = Field(64, ge=1, le=65536)
    """Images per worker and iteration."""
    learning_rate: float = Field(0.1, gt=0, le=10)
    momentum: float = Field(0.5, ge=0, lt=1)
    """With more of it the loss first overshoots: there is no schedule that would warm the learning rate up."""
    pace: Pace | None = None
    """`{forward: 40ms, backward: 80ms}`: computing is made to last as long as on a device of that speed. It must be
    slower than this machine; where it is not, iterations overrun, which is counted and judged. null: as fast as this
    machine computes."""

    entry: ClassVar[str] = "testbed.worker.training:work"
    preload: ClassVar[Sequence[str]] = (*Iterative.preload, "testbed.worker.training")

    @field_validator("model", mode="before")
    @classmethod
    def _computed(cls, model: object) -> object:
        if model in get_args(NetworkName):
            raise ValueError(
                f"allowed: 'cnn', which is computed here; the gradients of {model}, when a device would make them: "
                f"`workload: {{kind: replay, trace: {model}}}`"
            )
        return model

    def parameter_shapes(self) -> Sequence[tuple[int, ...]]:
        """Of each float32 parameter, in the order the model registers them."""
        return MODELS[self.model].parameter_shapes()

    def build(self) -> "nn.Module":
        """The model, its weights drawn from torch's global generator."""
        return MODELS[self.model].build()

    def sample_shape(self) -> tuple[int, ...]:
        """Of one input of the model."""
        side = MODELS[self.model].image_side
        return (1, side, side)

    def gradient_shapes(self) -> Sequence[tuple[int, ...]]:
        """The shapes of gradients in the order in which they become ready."""
        return MODELS[self.model].gradient_shapes()

    def paced(self) -> bool:
        """If there is a pace."""
        return self.pace is not None

    def layer_table(self) -> LayerTable:
        """Layers have their share of both passes by multiplications. Without a pace, a multiplication and an addition
        for each of forward, twice as many of backward."""
        multiplications = MODELS[self.model].layer_multiplications()
        whole = sum(multiplications)
        assumed_s = 2.0 * self.batch_size * whole / ASSUMED_OPERATIONS_PER_S
        forward_s, backward_s, update_s = assumed_s, 2 * assumed_s, 0.0
        if self.pace is not None:
            forward_s, backward_s, update_s = self.pace.forward_s, self.pace.backward_s, self.pace.update_s
        sizes = layer_counts(self.parameter_shapes())
        return LayerTable(
            layers=tuple(
                Layer(
                    name=f"layer{number}",
                    forward_s=forward_s * count / whole,
                    backward_s=backward_s * count / whole,
                    size_bytes=ELEMENT_BYTES * size,
                    shapes=tuple(shapes),
                )
                for number, (count, size, shapes) in enumerate(
                    zip(multiplications, sizes, self.layer_shapes(), strict=True)
                )
            ),
            update_s=update_s,
            batch_size=self.batch_size,
        )

    def computing(self) -> str:
        """Real, paced or not."""
        if self.pace is None:
            return "real: forward, backward and optimizer as fast as this machine computes"
        forward, backward, update = map(milliseconds, (self.pace.forward_s, self.pace.backward_s, self.pace.update_s))
        return (
            f"real, and paced: forward made to last {forward}, backward {backward}, the optimizer {update}; gradients, "
            "parameters and bytes are real"
        )

    def steps(self) -> Steps:
        """The optimizer steps of parameter servers, the same as workers would do."""
        return Steps(self.learning_rate, self.momentum, self.warmup + self.iterations)

    def unsupported_compression(self, compressor: Compressor) -> str | None:
        """What would be applied twice, besides what is refused anywhere."""
        if reason := super().unsupported_compression(compressor):
            return reason
        if self.momentum and compressor.own_momentum:
            return (
                f"{compressor.kind} applies the momentum itself, before it selects; set workload.momentum to 0 and "
                f"compression.momentum to what you want (now {self.momentum:g})"
            )
        return None
