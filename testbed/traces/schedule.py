"""When a device would be through with each part of an iteration's computing: what paced and replayed computing is held
to. Pure.

Virtual seconds or seconds of the wall clock, as the table that it is made from.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

from testbed.traces.table import Layer, LayerTable


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeSchedule:
    """Of one iteration that waits for nothing. Tensors are numbered in the order of their registration."""

    forward_s: float
    backward_s: float
    update_s: float
    """The optimizer's step."""
    input_s: float
    """Reading a batch, while the one before is computed with."""
    host_to_device_s: float
    """Copying it to the device, behind that."""
    needed_s: tuple[float, ...]
    """For each tensor, since the beginning of the forward pass, when its layer begins."""
    ready_s: tuple[float, ...]
    """For each tensor, since the beginning of the backward pass, when its gradient is there."""

    @classmethod
    def of(cls, table: LayerTable) -> Self:
        """What the table says. Raises ValueError for a layer whose gradients are not float32."""
        begins_s = accumulate((layer.forward_s for layer in table.layers), initial=table.undivided_s)
        ends_s = [*accumulate(layer.backward_s for layer in reversed(table.layers))][::-1]
        return cls(
            forward_s=table.forward_s,
            backward_s=table.backward_s,
            update_s=table.update_s,
            input_s=table.input_s,
            host_to_device_s=table.host_to_device_s,
            needed_s=tuple(_each_tensor(table.layers, begins_s)),
            ready_s=tuple(_each_tensor(table.layers, iter(ends_s))),
        )

    @property
    def compute_s(self) -> float:
        """The whole."""
        return self.forward_s + self.backward_s + self.update_s

    def scaled(self, factor: float) -> "ComputeSchedule":
        """The schedule with all times multiplied by `factor`."""
        return ComputeSchedule(
            forward_s=factor * self.forward_s,
            backward_s=factor * self.backward_s,
            update_s=factor * self.update_s,
            input_s=factor * self.input_s,
            host_to_device_s=factor * self.host_to_device_s,
            needed_s=tuple(factor * at_s for at_s in self.needed_s),
            ready_s=tuple(factor * at_s for at_s in self.ready_s),
        )


def _each_tensor(layers: tuple[Layer, ...], moments_s: Iterator[float]) -> Iterator[float]:
    """A layer's moment for each of its tensors."""
    for layer, at_s in zip(layers, moments_s, strict=False):
        yield from [at_s] * len(layer.tensors)
