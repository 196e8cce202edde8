"""Training whose computing is time that passes: layers of any sizes, forward and backward passes of any length.

Everything else is real: autograd, hooks, buckets, the optimizer, the bytes of gradients, the links. Because nobody
needs a core to wait, more workers fit a machine, and how much communication hides behind computation depends on the
network and not on who got the cores. The gradients are constant, and the loss means nothing.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pydantic import Field

from testbed.workloads.base import WORKLOADS
from testbed.workloads.training import Training
from transports.units import Size, Time

if TYPE_CHECKING:
    from torch import nn

_COLUMNS: Final = 64
_ELEMENT_BYTES: Final = 4


@WORKLOADS.register
class Synthetic(Training):
    """As `training`, but for the model."""

    layers_bytes: tuple[Size, ...] = Field((2**20,) * 8, alias="layers", min_length=1, max_length=1000)
    """Gradients of each layer, the first one first; rounded up to whole rows of 256 bytes."""
    forward_s: Time = Field(0.1, alias="forward", ge=0, le=3600)
    """Of the whole pass; each layer has the same part."""
    backward_s: Time = Field(0.2, alias="backward", ge=0, le=3600)
    """The same."""

    def parameter_shapes(self) -> Sequence[tuple[int, ...]]:
        """A matrix for each layer."""
        return [(max(1, -(-size_bytes // (_ELEMENT_BYTES * _COLUMNS))), _COLUMNS) for size_bytes in self.layers_bytes]

    def gradient_shapes(self) -> Sequence[tuple[int, ...]]:
        """The last layer's first."""
        return list(reversed(self.parameter_shapes()))

    def layer_operations(self) -> Sequence[float]:
        """All alike."""
        return [1.0] * len(self.layers_bytes)

    def build(self) -> "nn.Module":
        """The module."""
        from torch import nn

        from testbed.workloads._waiting_layer import WaitingLayer

        num_layers = len(self.layers_bytes)
        forward_s, backward_s = self.forward_s / num_layers, self.backward_s / num_layers
        return nn.Sequential(
            nn.Flatten(),
            *(WaitingLayer(shape, forward_s=forward_s, backward_s=backward_s) for shape in self.parameter_shapes()),
        )
