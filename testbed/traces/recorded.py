"""Networks as a device was seen to compute them: recordings that come with the testbed, at several batch sizes.

`tools/record_networks.py` makes them: models of torchvision, timm and transformers, each batch size timed as `testbed
trace record` times a model. Small batches of networks with many small layers are bound by the host that launches their
kernels, so a time may hardly depend on the batch there: it is what was seen, not a property of the device alone.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import prod
from typing import Final, Literal, NamedTuple

from testbed.traces.networks import NetworkName
from testbed.traces.table import ELEMENT_BYTES, Layer, LayerTable, Shape

RecordedDevice = Literal["h100", "h100_bf16"]


class _LayerTimes(NamedTuple):
    name: str
    shapes: tuple[Shape, ...]
    forward_us: Sequence[float]
    backward_us: Sequence[float]
    """Of each batch size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Recording:
    recorded_on: str
    batch_sizes: Sequence[int]
    """Ascending."""
    host_to_device_us: Sequence[float]
    update_us: Sequence[float]
    layers: Sequence[_LayerTimes]


class _Between(NamedTuple):
    """A place among the batch sizes."""

    before: int
    after: int
    share: float
    """Of the way from one to the other."""

    def seconds(self, values_us: Sequence[float]) -> float:
        low_us, high_us = values_us[self.before], values_us[self.after]
        return 1e-6 * (low_us + self.share * (high_us - low_us))


def recorded_table(name: NetworkName, *, device: RecordedDevice, batch_size: int) -> LayerTable:
    """One iteration of a network on a device as it was recorded; between two batch sizes of the recording, on the
    straight line from one to the other.

    Raises ValueError for a batch smaller or larger than all that were recorded.
    """
    found = _recording(device, name)
    sizes = found.batch_sizes
    if not sizes[0] <= batch_size <= sizes[-1]:
        raise ValueError(
            f"batch_size: {name} was recorded on {device} with {sizes[0]} to {sizes[-1]} samples (got {batch_size}); "
            "allowed: these, or `testbed trace record` on a device of yours"
        )
    after = bisect_left(sizes, batch_size)
    before = after if sizes[after] == batch_size else after - 1
    share = (batch_size - sizes[before]) / (sizes[after] - sizes[before]) if after > before else 0.0
    at = _Between(before, after, share)
    between = f", between batches of {sizes[before]} and {sizes[after]}" if after > before else ""
    return LayerTable(
        layers=tuple(
            Layer(
                name=layer.name,
                forward_s=at.seconds(layer.forward_us),
                backward_s=at.seconds(layer.backward_us),
                size_bytes=ELEMENT_BYTES * sum(map(prod, layer.shapes)),
                shapes=layer.shapes,
            )
            for layer in found.layers
        ),
        host_to_device_s=at.seconds(found.host_to_device_us),
        update_s=at.seconds(found.update_us),
        batch_size=batch_size,
        recorded_on=f"{found.recorded_on}{between}",
    )


_FOLDER: Final = "recordings"


@cache
def _recording(device: RecordedDevice, name: NetworkName) -> _Recording:
    text = (resources.files(__package__) / _FOLDER / f"{device}-{name}.json").read_text(encoding="utf-8")
    document = json.loads(text)
    return _Recording(
        recorded_on=document["recorded_on"],
        batch_sizes=document["batch_sizes"],
        host_to_device_us=document["host_to_device_us"],
        update_us=document["update_us"],
        layers=[
            _LayerTimes(each["name"], tuple(map(tuple, each["shapes"])), each["forward_us"], each["backward_us"])
            for each in document["layers"]
        ],
    )
