"""Nodes and links as pure data: a topology is a function from the number of workers to a network."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Final, Literal

from transports.registry import Options, Registry


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A host that runs a worker, or a switch."""

    name: str
    """`w0`, `s0`: short, because interface names are at most 15 characters."""
    role: Literal["worker", "switch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """A full-duplex link between two nodes."""

    first: str
    second: str

    @property
    def name(self) -> str:
        """`w0-s0`."""
        return f"{self.first}-{self.second}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """What a topology makes."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


class Topology(Options):
    """A value on the topology axis."""

    @abstractmethod
    def network(self, num_workers: int) -> Network:
        """The network for that many workers `w0`, `w1`, ... Pure and deterministic."""


TOPOLOGIES: Final[Registry[Topology]] = Registry("topology", "testbed.topologies")
