"""What a trace says of one training iteration, layer by layer, whatever file it came from. Pure."""

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final, NamedTuple

Shape = tuple[int, ...]

ELEMENT_BYTES: Final = 4
"""Gradients are float32."""
_MAX_COLUMNS: Final = 64


class Layer(NamedTuple):
    """One layer of a model, or one parameter tensor where the trace tells those apart."""

    name: str
    forward_s: float
    backward_s: float
    size_bytes: int
    """Of its gradients; 0 for a layer without parameters."""
    communication_s: float | None = None
    """How long the exchange of its gradients took where the trace was recorded; None if the trace does not say."""
    shapes: tuple[Shape, ...] | None = None
    """Of its parameter tensors, in the order in which a module registers them: `size_bytes` in all, as float32. None if
    the trace does not say: they count as one tensor."""

    @property
    def tensors(self) -> tuple[Shape, ...]:
        """Shapes of its parameters. What a trace only says the size of becomes one matrix, of at most 64 columns.

        Raises ValueError for a size that no number of float32 elements has.
        """
        if self.shapes is not None:
            return self.shapes
        if self.size_bytes % ELEMENT_BYTES:
            raise ValueError(
                f"layer {self.name} has {self.size_bytes} bytes of gradients; they are replayed as float32, in "
                f"multiples of {ELEMENT_BYTES} bytes"
            )
        count = self.size_bytes // ELEMENT_BYTES
        columns = next(number for number in range(_MAX_COLUMNS, 0, -1) if count % number == 0)
        return ((count // columns, columns),) if count else ()


class Gradient(NamedTuple):
    """The gradients of one layer, as backward makes them."""

    ready_s: float
    """Since the beginning of backward."""
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTable:
    """The compact form of a trace: every worker computes the same layers, and communicates nothing but gradients."""

    layers: tuple[Layer, ...]
    """In the order of the forward pass."""
    input_s: float = 0.0
    """Reading a batch."""
    host_to_device_s: float = 0.0
    """Copying it to where it is computed with."""
    update_s: float = 0.0
    """The optimizer's step."""
    undivided_s: float = 0.0
    """Computing of the forward pass that the trace does not assign to layers."""
    batch_size: int | None = None
    """Samples of a worker in an iteration; None if the trace does not say."""
    recorded_on: str = ""
    """The device that its times were recorded on, in words; empty where they are derived, or nobody says."""

    @property
    def forward_s(self) -> float:
        """The whole forward pass."""
        return self.undivided_s + sum(layer.forward_s for layer in self.layers)

    @property
    def backward_s(self) -> float:
        """The whole backward pass."""
        return sum(layer.backward_s for layer in self.layers)

    @property
    def compute_s(self) -> float:
        """Forward, backward and update: an iteration of a single worker whose input is there in time."""
        return self.forward_s + self.backward_s + self.update_s

    @property
    def input_and_copy_s(self) -> float:
        """Reading a batch and copying it, both while the batch before is computed with."""
        return self.input_s + self.host_to_device_s

    @property
    def size_bytes(self) -> int:
        """The size of all gradients."""
        return sum(layer.size_bytes for layer in self.layers)

    def lengthened(self, factor: float) -> "LayerTable":
        """With all computing, and the input, that many times as long, and the same gradients: a batch so many times as
        large."""
        layers = tuple(
            layer._replace(forward_s=layer.forward_s * factor, backward_s=layer.backward_s * factor)
            for layer in self.layers
        )
        return replace(
            self,
            layers=layers,
            undivided_s=self.undivided_s * factor,
            input_s=self.input_s * factor,
            host_to_device_s=self.host_to_device_s * factor,
            batch_size=None,
            recorded_on=f"{self.recorded_on}, times multiplied by {factor:g}" if self.recorded_on else "",
        )

    def for_batch(self, batch_size: int) -> "LayerTable":
        """The same for batches of that size: times of passes, and of the input, are in proportion to the batch, the
        optimizer's step and the gradients do not depend on it.

        Raises ValueError where the trace does not say its own batch size.
        """
        if self.batch_size is None:
            raise ValueError("the trace does not say of how many samples it is")
        return replace(self.lengthened(batch_size / self.batch_size), batch_size=batch_size)

    def with_iteration(self, iteration_s: float) -> "LayerTable":
        """Of a trace without a forward pass: it takes what is left of such an iteration beside the other parts.

        Raises ValueError where the trace has a forward pass, or the other parts alone take longer.
        """
        if self.forward_s:
            raise ValueError("the trace says how long forward takes, and with it how long an iteration does")
        if iteration_s < self.compute_s:
            raise ValueError(f"backward alone takes {self.compute_s:g} s, an iteration cannot take {iteration_s:g} s")
        return replace(self, undivided_s=iteration_s - self.compute_s)

    def updating_in_forward(self) -> "LayerTable":
        """With the optimizer's step taken layer by layer, by their sizes, each before the layer's part of the forward
        pass."""
        layers = tuple(
            layer._replace(forward_s=layer.forward_s + self.update_s * layer.size_bytes / self.size_bytes)
            for layer in self.layers
        )
        return replace(self, layers=layers, update_s=0.0)

    def gradients(self) -> tuple[Gradient, ...]:
        """Those of layers that have any, in the order in which backward makes them: the last layer's first."""
        backward = self.layers[::-1]
        ready_s = accumulate(layer.backward_s for layer in backward)
        return tuple(
            Gradient(ready_s=at_s, size_bytes=layer.size_bytes)
            for at_s, layer in zip(ready_s, backward, strict=True)
            if layer.size_bytes
        )
