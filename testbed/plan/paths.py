"""Shortest paths through a network, all of them where several are equally short. Pure.

What a switch does with them is equal-cost multipath routing (RFC 2992): each flow takes one of the equal next hops, by
a hash of its addresses and ports.
"""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

from testbed.experiment.topologies.base import END_HOSTS, Network

Hop = tuple[str, str]
"""From one node to the next."""
NextHops = Mapping[str, Mapping[str, tuple[str, ...]]]
"""By target host, then by node: the neighbours that are one link nearer to the target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Path:
    """How packets get from one worker to another: every shortest path at once."""

    source: str
    target: str
    stages: tuple[tuple[str, ...], ...]
    """The nodes after 0, 1, 2, ... links. Several nodes in a stage are alternatives."""
    shares: Mapping[Hop, Fraction]
    """The part of many flows that takes each hop, when every node splits them evenly; 1 where all must."""

    @property
    def text(self) -> str:
        """`w0 > s0 > s2|s3 > s1 > w2`."""
        return " > ".join("|".join(stage) for stage in self.stages)


def next_hops(network: Network, targets: Collection[str] | None = None) -> NextHops:
    """For every target (None: every host of workers or traffic) and every other node, the next hops of all shortest
    paths, in the order of the links."""
    neighbours: dict[str, list[str]] = {node.name: [] for node in network.nodes}
    for edge in network.edges:
        neighbours[edge.first].append(edge.second)
        neighbours[edge.second].append(edge.first)
    if targets is None:
        targets = [node.name for node in network.nodes if node.role in END_HOSTS]
    return {target: _towards(target, neighbours) for target in targets}


def _towards(target: str, neighbours: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    """Breadth-first from the target."""
    distance = {target: 0}
    waiting = deque([target])
    while waiting:
        node = waiting.popleft()
        for neighbour in neighbours[node]:
            if neighbour not in distance:
                distance[neighbour] = distance[node] + 1
                waiting.append(neighbour)
    return {
        node: tuple(neighbour for neighbour in neighbours[node] if distance.get(neighbour) == steps - 1)
        for node, steps in distance.items()
        if steps
    }


def paths(hops: NextHops) -> dict[Hop, Path]:
    """The path of every ordered pair of hosts."""
    return {
        (source, target): _path(source, target, hops[target]) for source in hops for target in hops if source != target
    }


def _path(source: str, target: str, towards: Mapping[str, tuple[str, ...]]) -> Path:
    stages: list[tuple[str, ...]] = [(source,)]
    shares: dict[Hop, Fraction] = {}
    arriving = {source: Fraction(1)}
    while target not in arriving:
        leaving: dict[str, Fraction] = {}
        for node, share in arriving.items():
            for following in towards[node]:
                part = share / len(towards[node])
                shares[node, following] = part
                leaving[following] = leaving.get(following, Fraction(0)) + part
        arriving = leaving
        stages.append(tuple(arriving))
    return Path(source=source, target=target, stages=tuple(stages), shares=shares)
