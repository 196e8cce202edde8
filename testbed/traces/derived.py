"""Traces that nobody recorded: a device's time for a whole network, shared among its layers by their multiplications.

Good enough to ask what a network of links costs, and marked as what it is: layers that are bound by memory (normalised
or depthwise convolutions) take longer than their share, and large matrices less.
"""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from testbed.traces.networks import NetworkLayer, NetworkName, network
from testbed.traces.table import ELEMENT_BYTES, Layer, LayerTable

DerivedDevice = Literal["v100"]

_BACKWARD_MULTIPLICATIONS: Final = 2
"""For each of forward: backward multiplies for the gradients of the weights, and for those of the layer's input."""


class Total(NamedTuple):
    """What one pass of a network was seen to take."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """How fast something computes, and who says so."""

    multiplications_per_s: float
    """Of networks without a total of their own."""
    batch_size: int
    """Of the totals."""
    totals: dict[NetworkName, Total]
    source: str


DEVICES: Final[dict[DerivedDevice, Device]] = {
    "v100": Device(
        # ResNet-50's: 32 samples, three times its forward pass of 4.09e9 multiplications, in 97 ms.
        multiplications_per_s=4.05e12,
        batch_size=32,
        totals={
            "resnet50": Total(0.0322, 0.0648),
            "resnet101": Total(0.0526, 0.1064),
            "vgg16": Total(0.0494, 0.1116),
        },
        source="Zhang et al. 2020 (arXiv:2006.10103): V100, float32, 32 images; forward and backward read off figure 2 "
        "(one point is about 2 ms), backward from the authors' public logs; other networks at ResNet-50's rate",
    )
}


def derived_table(name: NetworkName, *, device: DerivedDevice = "v100", batch_size: int = 32) -> LayerTable:
    """One iteration of a network on a device.

    Times grow with the batch as multiplications do: in proportion. Devices are less busy with small batches, so that
    times of batches much smaller than those of the totals come out too short. The optimizer's step is not counted.
    """
    layers = network(name)
    measured = DEVICES[device]
    total = measured.totals.get(name)
    if total is None:
        forward_s = batch_size * _multiplications(layers) / measured.multiplications_per_s
        total = Total(forward_s, _BACKWARD_MULTIPLICATIONS * forward_s)
    else:
        scale = batch_size / measured.batch_size
        total = Total(total.forward_s * scale, total.backward_s * scale)
    whole = _multiplications(layers)
    return LayerTable(
        layers=tuple(
            Layer(
                name=layer.name,
                forward_s=total.forward_s * layer.num_multiplications / whole,
                backward_s=total.backward_s * layer.num_multiplications / whole,
                size_bytes=layer.num_parameters * ELEMENT_BYTES,
                shapes=layer.shapes,
            )
            for layer in layers
        ),
        batch_size=batch_size,
    )


def _multiplications(layers: tuple[NetworkLayer, ...]) -> int:
    return sum(layer.num_multiplications for layer in layers)
