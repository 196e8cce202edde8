"""How gradients are joined into buckets before they are exchanged: as the spec says it, and what comes of it.

Backward makes gradients from the last layer to the first. A bucket goes out as soon as its last gradient is there,
while backward goes on; so buckets decide how much of communication hides behind computation, and how often its fixed
costs are paid. What torch's DistributedDataParallel can do it does; what it cannot is a :class:`EngineFusion`, whose
gradients go out through an engine of our own (`transports/torch_backend/engine.py`).
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import ClassVar, Final, NamedTuple

from transports.compression.base import Shape
from transports.registry import Options, Registry
from transports.torch_backend.ordering import Order

GRADIENT_ELEMENT_BYTES: Final = 4
"""Gradients are float32."""


class Gradients(NamedTuple):
    """What a backward pass makes."""

    tensors: Sequence[Shape]
    """In the order in which they become ready."""
    layers: Sequence[Sequence[Shape]]
    """The tensors of each layer, the last layer first."""
    backward_s: Sequence[float]
    """Of each layer's part of the pass, the last layer first."""

    @property
    def layer_counts(self) -> list[int]:
        """Elements of each layer, the last one first."""
        return [sum(map(prod, shapes)) for shapes in self.layers]


class Fusion(Options):
    """A value on the fusion axis: how gradients are joined into buckets, and in which order they go."""

    by_engine: ClassVar[bool] = False
    """Whether DistributedDataParallel cannot do it."""
    steps_in_forward: ClassVar[bool] = False
    """Whether layers are stepped only in the next forward pass."""
    in_turn: ClassVar[bool] = True
    """Whether buckets go out in the order of backward, and hold whole tensors."""
    joins_ready: ClassVar[bool] = False
    """Whether a bucket is what is ready when its engine looks, so that the plan's are none that a run has."""
    goes_by_costs: ClassVar[bool] = False
    """Whether its buckets go by how long an all-reduce takes, which is another time on another machine."""
    whole_gradient: ClassVar[bool] = False
    """Whether all gradients go out together, when backward has ended."""

    @property
    def limit_bytes(self) -> int:
        """The size at which DistributedDataParallel closes a bucket, or the most that an engine sends at once. Raises
        ValueError where sizes decide nothing."""
        raise ValueError(f"{self.kind} joins nothing by size")

    @property
    @abstractmethod
    def text(self) -> str:
        """The fusion in a few words, for whoever reads what was run."""

    def order(self, buckets: Sequence[int]) -> Order:
        """Of the engine, given the plan's buckets. Raises ValueError where DistributedDataParallel does it."""
        raise ValueError(f"{self.kind} is DistributedDataParallel's, and gave {len(buckets)} buckets")

    def buckets(self, gradients: Gradients, all_reduce_s: Callable[[int], float]) -> tuple[int, ...]:  # noqa: ARG002
        """Elements in each bucket, in the order they become ready, when an all-reduce of n elements takes
        `all_reduce_s(n)`; where buckets depend on when gradients become ready, as if all were ready at once."""
        return fuse([prod(shape) for shape in gradients.tensors], self.limit_bytes)

    def bucket_shapes(self, gradients: Gradients, buckets: Sequence[int]) -> Iterator[list[Shape]]:
        """The tensors in each bucket."""
        return shapes_of(gradients.tensors, buckets)


class EngineFusion(Fusion):
    """One that goes through our own engine: what goes out when is its `order`'s to say."""

    by_engine: ClassVar[bool] = True

    @abstractmethod
    def order(self, buckets: Sequence[int]) -> Order:
        """See :class:`Fusion`."""

    def buckets(self, gradients: Gradients, all_reduce_s: Callable[[int], float]) -> tuple[int, ...]:  # noqa: ARG002
        """What the order chooses when everything is ready."""
        if not gradients.layers:
            return ()
        order = self.order(())
        items = order.items(gradients.layer_counts)
        return tuple(items[run[-1]].stop - items[run[0]].start for run in order.choose(range(len(items)), items))

    def bucket_shapes(self, gradients: Gradients, buckets: Sequence[int]) -> Iterator[list[Shape]]:
        """The shapes of the tensors in each bucket, which holds whole layers."""
        return shapes_of([shape for shapes in gradients.layers for shape in shapes], buckets)


def fuse(gradient_counts: Sequence[int], limit_bytes: int) -> tuple[int, ...]:
    """Elements per bucket as DistributedDataParallel forms them: gradients join in the order they become ready,
    and a bucket closes when it has reached the limit (torch's `_compute_bucket_assignment_by_size`)."""
    buckets: list[int] = []
    filled = 0
    for count in gradient_counts:
        filled += count
        if filled * GRADIENT_ELEMENT_BYTES >= limit_bytes:
            buckets.append(filled)
            filled = 0
    return tuple([*buckets, filled] if filled else buckets)


def shapes_of(gradients: Sequence[Shape], buckets: Sequence[int]) -> Iterator[list[Shape]]:
    """The gradients in each bucket, by its number of elements."""
    waiting = iter(gradients)
    for num_elements in buckets:
        shapes: list[Shape] = []
        while sum(map(prod, shapes)) < num_elements:
            shapes.append(next(waiting))
        yield shapes


FUSIONS: Final[Registry[Fusion]] = Registry("fusion", "testbed.experiment.fusion", default="size")
