"""A generated trace: layers of any sizes that share forward and backward passes of any length equally."""

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Final

from pydantic import Field

from testbed.experiment.iterative import Replayed
from testbed.experiment.workloads.base import WORKLOADS
from testbed.traces.networks import NetworkName, parameter_shapes
from testbed.traces.table import ELEMENT_BYTES, Layer, LayerTable, Shape
from transports.torch_backend.ordering import layers_of
from transports.units import Size, Time

_COLUMNS: Final = 64


@WORKLOADS.register
class Synthetic(Replayed):
    """Computing that takes a configured time, as in `replay`; the table of layers is in the spec."""

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

    def layer_table(self) -> LayerTable:
        """Layers all alike."""
        shapes = _shapes(self.layers, self.scale)
        borders = layers_of(shapes)
        return LayerTable(
            layers=tuple(
                Layer(
                    name=f"layer{number}",
                    forward_s=self.forward_s / len(borders),
                    backward_s=self.backward_s / len(borders),
                    size_bytes=ELEMENT_BYTES * sum(map(prod, shapes[start:stop])),
                    shapes=shapes[start:stop],
                )
                for number, (start, stop) in enumerate(borders)
            )
        )

    def origin(self) -> str:
        """Nobody has recorded it."""
        return f"the tensors of {self.layers}" if isinstance(self.layers, str) else f"{len(self.layers)} layers alike"


@cache
def _shapes(layers: NetworkName | tuple[int, ...], scale: float) -> tuple[Shape, ...]:
    """Of a named network its own, else a matrix for each layer."""
    if isinstance(layers, str):
        shapes: Sequence[Shape] = parameter_shapes(layers)
    else:
        shapes = [(max(1, -(-size_bytes // (ELEMENT_BYTES * _COLUMNS))), _COLUMNS) for size_bytes in layers]
    return tuple((max(1, round(shape[0] * scale)), *shape[1:]) for shape in shapes)
