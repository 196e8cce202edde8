"""In which pieces, and in which order, gradients go out when an engine of our own sends them. Pure.

Gradients lie in one flat buffer, the last layer's first: in the order in which backward makes them. An order cuts that
buffer into items, the least that becomes ready by itself, and says which of those that are ready are reduced next. All
ranks must reduce the same items in the same order, and are at different places of backward when they decide: they
tell each other what is ready, and then follow the same rule (`transports/torch_backend/engine.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import ClassVar, Final, NamedTuple

ELEMENT_BYTES: Final = 4
"""Sizes are of float32 gradients."""


class Item(NamedTuple):
    """A run of elements of the flat buffer."""

    start: int
    stop: int

    @property
    def num_elements(self) -> int:
        """Its length."""
        return self.stop - self.start


def layers_of(shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, int], ...]:
    """Start and stop, among parameters of these shapes in the order of registration, of each layer: a tensor of two
    dimensions or more, and the vectors after it (its bias, the normalisation behind it)."""
    starts = [number for number, shape in enumerate(shapes) if len(shape) > 1 or number == 0]
    return tuple(zip(starts, [*starts[1:], len(shapes)], strict=True)) if shapes else ()


def layer_counts(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Elements of each layer, the first one first."""
    return tuple(sum(prod(shape) for shape in shapes[start:stop]) for start, stop in layers_of(shapes))


class Order(ABC):
    """What goes out when."""

    agrees: ClassVar[bool]
    """Whether ranks tell each other what is ready; if not, items go out in the order of the buffer."""
    hides_behind_forward: ClassVar[bool] = False
    """Whether it pays to wait for a layer's gradient only where the next forward pass comes to that layer."""
    cycle_s: float = 0.0
    """The least time from one decision to the next."""

    @abstractmethod
    def items(self, layers: Sequence[int]) -> list[Item]:
        """Given the elements of each layer, the last layer first. Neighbours, and all of the buffer."""

    @abstractmethod
    def choose(self, ready: Sequence[int], items: Sequence[Item]) -> list[Sequence[int]]:
        """What is reduced now, given the numbers of the items that are ready everywhere, ascending and at least one:
        runs of neighbours, each one reduction."""


def _whole_layers(layers: Sequence[int]) -> list[Item]:
    items: list[Item] = []
    for count in layers:
        start = items[-1].stop if items else 0
        items.append(Item(start, start + count))
    return items


@dataclass(frozen=True, kw_only=True, slots=True)
class Priority(Order):
    """The layer first that the next forward pass needs first; large layers in parts, so that none keeps it waiting.

    Peng et al. 2019, "A Generic Communication Scheduler for Distributed DNN Training Acceleration" (ByteScheduler,
    SOSP); Jayarajan et al. 2019, "Priority-based Parameter Propagation for Distributed DNN Training" (P3, MLSys).
    """

    agrees: ClassVar[bool] = True
    hides_behind_forward: ClassVar[bool] = True

    partition_bytes: int

    def items(self, layers: Sequence[int]) -> list[Item]:
        """Parts of nearly equal size, none above the limit."""
        most = max(1, self.partition_bytes // ELEMENT_BYTES)
        items = []
        for layer in _whole_layers(layers):
            num_parts = max(1, -(-layer.num_elements // most))
            borders = [layer.start + layer.num_elements * part // num_parts for part in range(num_parts + 1)]
            items += [Item(*border) for border in pairwise(borders)]
        return items

    def choose(self, ready: Sequence[int], items: Sequence[Item]) -> list[Sequence[int]]:  # noqa: ARG002
        """One: the nearest to the front."""
        return [[ready[-1]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed(Order):
    """Whatever has become ready since the last cycle, joined up to a size.

    Sergeev, Del Balso 2018, "Horovod: fast and easy distributed deep learning in TensorFlow": HOROVOD_CYCLE_TIME and
    HOROVOD_FUSION_THRESHOLD; what is ready everywhere is found as its response cache does, from a bit for each.
    """

    agrees: ClassVar[bool] = True

    bucket_bytes: int
    cycle_s: float

    def items(self, layers: Sequence[int]) -> list[Item]:
        """Layers."""
        return _whole_layers(layers)

    def choose(self, ready: Sequence[int], items: Sequence[Item]) -> list[Sequence[int]]:
        """All that are ready, neighbours together unless they would exceed the size."""
        runs: list[list[int]] = []
        for number in ready:
            joins = runs and runs[-1][-1] == number - 1
            if joins and ELEMENT_BYTES * (items[number].stop - items[runs[-1][0]].start) <= self.bucket_bytes:
                runs[-1].append(number)
            else:
                runs.append([number])
        return list(runs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grouped(Order):
    """Groups of neighbouring layers that somebody has decided on, each when its last gradient is there."""

    agrees: ClassVar[bool] = False

    counts: tuple[int, ...]
    """Elements of each, the last layers first."""

    def items(self, layers: Sequence[int]) -> list[Item]:
        """The groups. Raises ValueError where they end inside a layer, or are not all of the gradient."""
        ends = {layer.stop for layer in _whole_layers(layers)}
        items = _whole_layers(self.counts)
        if not {item.stop for item in items} <= ends or sum(self.counts) != sum(layers):
            raise ValueError(f"groups of {self.counts} elements do not consist of layers of {tuple(layers)}")
        return items

    def choose(self, ready: Sequence[int], items: Sequence[Item]) -> list[Sequence[int]]:  # noqa: ARG002
        """The first."""
        return [[ready[0]]]
