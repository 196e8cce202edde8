"""Training whose computing is time that passes: layers of any sizes, forward and backward passes of any length.

Everything else is real: autograd, hooks, buckets, the optimizer, the bytes of gradients, the links. Because nobody
needs a core to wait, more workers fit a machine, and how much communication hides behind computation depends on the
network and not on who got the cores. The gradients are drawn once, and the loss means nothing.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pydantic import Field

from testbed.experiment.workloads.base import WORKLOADS
from testbed.experiment.workloads.training import Training
from testbed.traces.networks import NetworkName, Shape, parameter_shapes
from transports.units import Size, Time

if TYPE_CHECKING:
    from torch import nn

_COLUMNS: Final = 64
_ELEMENT_BYTES: Final = 4


@WORKLOADS.register
class Synthetic(Training):
    """As `training`, but for the model."""

    layers: NetworkName | tuple[Size, ...] = Field((2**20,) * 8, min_length=1, max_length=1000)
    """Gradients of each layer, the first one first, rounded up to whole rows of 256 bytes: `[1MiB, 64KiB]`. Or the
    tensors of `resnet50` (102 MB in 161 tensors), `resnet101` (178 MB in 314), `vgg16` (553 MB in 58), `alexnet`
    (244 MB in 16), `googlenet` (26 MB in 173), `mobilenet` (17 MB in 83), `bert_base` (438 MB in 151) or `gpt2` (498 MB
    in 148)."""
    scale: float = Field(1, gt=0, le=1)
    """The share of each tensor's rows that is left, for slower links: a tenth of ResNet-50 at 100 Mbit/s takes as long
    as all of it at 1 Gbit/s, in as many messages."""
    forward_s: Time = Field(0.1, alias="forward", ge=0, le=3600)
    """Of the whole pass; each layer has the same part."""
    backward_s: Time = Field(0.2, alias="backward", ge=0, le=3600)
    """The same."""

    def parameter_shapes(self) -> Sequence[tuple[int, ...]]:
        """Of a named network its own, else a matrix for each layer."""
        if isinstance(self.layers, str):
            shapes: Sequence[Shape] = parameter_shapes(self.layers)
        else:
            shapes = [(max(1, -(-size_bytes // (_ELEMENT_BYTES * _COLUMNS))), _COLUMNS) for size_bytes in self.layers]
        return [_shrunk(shape, self.scale) for shape in shapes]

    def gradient_shapes(self) -> Sequence[tuple[int, ...]]:
        """The last layer's first."""
        return [shape for layer in reversed(self.layer_shapes()) for shape in layer]

    def layer_backward_s(self) -> Sequence[float]:
        """All alike."""
        num_layers = len(self.layer_shapes())
        return [self.backward_s / num_layers] * num_layers

    def passes_s(self) -> tuple[float, Sequence[float]] | None:
        """As the spec says."""
        return self.forward_s, self.layer_backward_s()

    def build(self) -> "nn.Module":
        """The module."""
        from torch import nn

        from testbed.experiment.workloads._waiting_layer import WaitingLayer

        layers = self.layer_shapes()
        forward_s, backward_s = self.forward_s / len(layers), self.backward_s / len(layers)
        return nn.Sequential(
            nn.Flatten(), *(WaitingLayer(shapes, forward_s=forward_s, backward_s=backward_s) for shapes in layers)
        )


def _shrunk(shape: Shape, scale: float) -> Shape:
    """With that share of its rows, at least one."""
    return (max(1, round(shape[0] * scale)), *shape[1:])
