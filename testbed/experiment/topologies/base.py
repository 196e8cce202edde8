"""Nodes and links as pure data: a topology is a function from the number of workers to switches, the links between
them, and the places where hosts may be attached. Which worker takes which place is the placement's to say."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, Self

from testbed.experiment.link import LinkOverride
from transports.registry import Options, Registry

PARTICIPANTS: Final = ("worker", "server")
"""Roles of nodes that exchange gradients."""
END_HOSTS: Final = (*PARTICIPANTS, "traffic", "aggregator", "storage")
"""Roles of nodes at which flows begin and end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """What runs a worker or a parameter server, a switch, a host that several workers share (a switch inside it), or
    one that only makes or takes background traffic, what adds gradients beside a switch, or what data are read from."""

    name: str
    """`w0`, `ps0`, `s0`: short, because interface names are at most 15 characters."""
    role: Literal["worker", "server", "host", "traffic", "aggregator", "storage", "switch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """A full-duplex link between two nodes; at most one between the same two."""

    first: str
    second: str
    rate_factor: float = 1.0
    """Its rate over the rate of a host's link, which the spec gives."""
    intra_host: bool = False
    """Between a worker and the host that it shares with others."""
    colocated: bool = False
    """Between a switch and what is part of it: as fast as the machine, whatever the spec says."""
    settings: LinkOverride = field(default_factory=LinkOverride)
    """What the topology itself says of it, in both directions; the spec's `links` come after."""

    @property
    def name(self) -> str:
        """`w0-s0`."""
        return f"{self.first}-{self.second}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """Nodes and links of a run. Every host has exactly one link."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def with_traffic_hosts(self, attached: Mapping[str, str]) -> "Network":
        """The fabric with these hosts besides, each on its switch."""
        return Network(
            nodes=(*self.nodes, *(Node(name=name, role="traffic") for name in attached)),
            edges=(*self.edges, *(Edge(first=name, second=switch) for name, switch in attached.items())),
        )

    def with_storage(self, name: str, switch: str) -> "Network":
        """The network with a storage node besides, on that switch."""
        return Network(
            nodes=(*self.nodes, Node(name=name, role="storage")),
            edges=(*self.edges, Edge(first=name, second=switch)),
        )

    def with_aggregators(self, attached: Mapping[str, str]) -> "Network":
        """The network with these aggregators besides, each at its switch."""
        return Network(
            nodes=(*self.nodes, *(Node(name=name, role="aggregator") for name in attached)),
            edges=(*self.edges, *(Edge(first=name, second=at, colocated=True) for name, at in attached.items())),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """What a topology makes: everything but the hosts."""

    switches: tuple[str, ...]
    trunks: tuple[Edge, ...]
    """The links between switches."""
    places: tuple[str, ...]
    """The switch of each place for a host, in order: places next to each other are near each other."""
    place_links: tuple[LinkOverride, ...] = ()
    """What the topology itself says of the link of the host on each place; empty: nothing of any. Of several places on
    a switch hosts take the first ones first."""

    def network(
        self,
        attached: Sequence[str],
        *,
        workers_per_host: int = 1,
        num_workers: int | None = None,
        num_servers: int = 0,
    ) -> Network:
        """The fabric with host i on the switch `attached[i]`: worker i itself, or `h<i>` with the next workers on it;
        the last ones are parameter servers.

        `num_workers` is given where the last host has fewer than the others.
        """
        num_hosts = len(attached) - num_servers
        count = num_workers or num_hosts * workers_per_host
        workers = tuple(Node(name=f"w{rank}", role="worker") for rank in range(count))
        shared = tuple(Node(name=f"h{i}", role="host") for i in range(num_hosts)) if workers_per_host > 1 else ()
        intra_host = (
            Edge(first=worker.name, second=shared[rank // workers_per_host].name, intra_host=True)
            for rank, worker in enumerate(workers if shared else ())
        )
        servers = tuple(Node(name=f"ps{number}", role="server") for number in range(num_servers))
        hosts = (*(shared or workers), *servers)
        settings = self._links_by_switch()
        links = (
            Edge(first=host.name, second=switch, settings=next(settings[switch], LinkOverride()))
            for host, switch in zip(hosts, attached, strict=True)
        )
        return Network(
            nodes=(*workers, *servers, *shared, *(Node(name=switch, role="switch") for switch in self.switches)),
            edges=(*intra_host, *links, *self.trunks),
        )

    def _links_by_switch(self) -> dict[str, Iterator[LinkOverride]]:
        found: dict[str, list[LinkOverride]] = {switch: [] for switch in self.switches}
        for switch, settings in zip(self.places if self.place_links else (), self.place_links, strict=True):
            found[switch].append(settings)
        return {switch: iter(settings) for switch, settings in found.items()}


def participant_names(num_workers: int, num_servers: int = 0) -> tuple[str, ...]:
    """The nodes of a collective's participants, by number: workers come first."""
    return (*(f"w{rank}" for rank in range(num_workers)), *(f"ps{number}" for number in range(num_servers)))


class Topology(Options):
    """A value on the topology axis."""

    larger: ClassVar[str] = ""
    """Which options give more places; empty where there are always enough."""
    sets_rates: ClassVar[bool] = False
    """Whether it says the rate of every worker's link, so that the spec's `link.rate` is of none."""

    def grown(self, num_places: int) -> Self:  # noqa: ARG002 (for those that do not grow with the workers)
        """The same kind of topology with at least so many places, beyond what can be emulated, for models alone."""
        return self

    def outline(self, num_workers: int) -> Mapping[str, tuple[float, float]]:  # noqa: ARG002 (for those that have one)
        """Where its switches stand when it is drawn: x to the right and y down, neighbours about 1 apart. Empty: in
        tiers above the hosts."""
        return {}

    def assumptions(self) -> Sequence[str]:
        """What was taken for what, and what was left out, when somebody else's description became this topology: for
        whoever reads its numbers."""
        return ()

    @abstractmethod
    def fabric(self, num_workers: int) -> Fabric:
        """The fabric for that many workers; it may have more places, or too few. Pure and deterministic."""


def switch_names(count: int, *, start: int = 0) -> tuple[str, ...]:
    """`s<start>`, `s<start + 1>`, ..."""
    return tuple(f"s{number}" for number in range(start, start + count))


TOPOLOGIES: Final[Registry[Topology]] = Registry("topology", "testbed.experiment.topologies")
