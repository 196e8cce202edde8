"""How a training is divided among ranks: the axis of generators. Pure."""

import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Final, Literal, NamedTuple

from pydantic import Field

from testbed.errors import SpecError
from testbed.traces.graph import ELEMENT_BYTES, Collective, Compute, Exchange, Graph, Node
from testbed.traces.table import ELEMENT_BYTES as GRADIENT_BYTES
from testbed.traces.table import Layer, LayerTable
from transports.registry import Options, Registry

WORLD: Final = "world"
"""The group of all ranks."""
FloatType = Literal["float32", "float16", "bfloat16", "float64"]


class Unit(NamedTuple):
    """Layers that are sent, or wait, together."""

    name: str
    layers: tuple[Layer, ...]

    @property
    def forward_s(self) -> float:
        """Of all its layers."""
        return sum(layer.forward_s for layer in self.layers)

    @property
    def backward_s(self) -> float:
        """Of all its layers."""
        return sum(layer.backward_s for layer in self.layers)

    @property
    def num_parameters(self) -> int:
        """Of all its layers."""
        return sum(layer.size_bytes for layer in self.layers) // GRADIENT_BYTES


class Generator(Options):
    """A value on the axis of generators."""

    element_type: FloatType = Field("float32", alias="type")
    """Of what is exchanged."""

    @abstractmethod
    def generate(self, table: LayerTable, num_ranks: int) -> Graph:
        """The graph of one iteration of so many ranks, 2 or more. Raises SpecError where the table does not go with
        the options."""

    def elements(self, size_bytes: int) -> int:
        """As many of the type as fill so many bytes, at least."""
        return -(-size_bytes // ELEMENT_BYTES[self.element_type])

    def all_ranks(self, operation: Literal["all_reduce", "all_gather", "reduce_scatter"], count: int) -> Collective:
        """That operation of the group of all."""
        return Collective(operation, count, self.element_type, WORLD)


GENERATORS: Final[Registry[Generator]] = Registry("generator", "testbed.traces.generators")


_NUMBERED: Final = re.compile(r"(?:[^.]*[^.0-9]\.)*[^.]*[0-9](?=\.|$)")
"""The parts of a name up to the first that ends in a digit."""


class RankBuilder:
    """The list of one rank as it grows."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def compute(self, name: str, duration_s: float, after: Iterable[int | None] = ()) -> int:
        """Appends it; returns its number."""
        return self._append(Compute(duration_s), name, after)

    def exchange(self, name: str, node: Exchange, after: Iterable[int | None] = ()) -> int:
        """Appends it; returns its number."""
        return self._append(node, name, after)

    def _append(self, node: Node, name: str, after: Iterable[int | None]) -> int:
        waits = tuple(sorted({number for number in after if number is not None}))
        self.nodes.append(node._replace(name=name, after=waits))
        return len(self.nodes) - 1


def alike(builder: RankBuilder, num_ranks: int) -> Graph:
    """The graph of ranks that all do the same."""
    return whole([tuple(builder.nodes)] * num_ranks)


def whole(ranks: Sequence[tuple[Node, ...]]) -> Graph:
    """The graph of these ranks, with the group of all if they exchange anything in it."""
    used = any(isinstance(node, Collective) for node in ranks[0])
    return Graph(ranks=tuple(ranks), groups={WORLD: tuple(range(len(ranks)))} if used else {})


def require_whole(table: LayerTable, num_ranks: int) -> None:
    """Raises SpecError for one rank, which has nobody to exchange anything with, and for gradients that are no number
    of elements."""
    if num_ranks < 2:
        raise SpecError(f"{num_ranks} ranks exchange nothing; allowed: 2 or more")
    for layer in table.layers:
        if layer.size_bytes % GRADIENT_BYTES:
            raise SpecError(
                f"layer {layer.name} has {layer.size_bytes} bytes of gradients, which are float32; allowed: multiples "
                f"of {GRADIENT_BYTES}"
            )


def blocks(layers: Sequence[Layer]) -> list[Unit]:
    """Neighbours whose names are alike up to the first number, as the layers of a block of a network are (`h0`, `h.0`,
    `encoder.layer.0`), or up to the first dot where there is none."""
    return [Unit(name, tuple(members)) for name, members in groupby(layers, lambda layer: _block(layer.name))]


def _block(name: str) -> str:
    found = _NUMBERED.match(name)
    return found[0] if found else name.partition(".")[0]


def matching(layer: Layer, patterns: str) -> bool:
    """Whether the layer's name is one of these patterns, separated by commas."""
    return any(fnmatchcase(layer.name, pattern.strip()) for pattern in patterns.split(","))


def require_any(table: LayerTable, option: str, patterns: str) -> None:
    """Raises SpecError where no layer has a name like that."""
    if not any(matching(layer, patterns) for layer in table.layers):
        names = ", ".join(layer.name for layer in table.layers[:6])
        raise SpecError(f"{option}: no layer is called {patterns}; layers are {names}, ...")


def in_parts(count: int, num_ranks: int) -> int:
    """The least number of elements, `count` or more, that has equal parts for all."""
    return -(-count // num_ranks) * num_ranks
