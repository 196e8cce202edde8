"""A network as the simulation sees it: directed links with rates and delays, and the path of each pair of hosts.

Of several equally short paths a flow takes one by a hash of its two ends and a seed, at every switch anew, as ECMP does
(RFC 2992). The hash is ours, not the kernel's: which path a flow takes differs from a run, how often paths collide does
not.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from testbed.errors import SpecError
from testbed.experiment.link import LinkSpec
from testbed.experiment.topologies.base import END_HOSTS, Network
from testbed.plan.paths import Hop
from testbed.theory.simulation.fair_sharing import Floats, Integers, Paths

_MASK: Final = (1 << 64) - 1


class SimulatedNetwork:
    """Links are numbered as `hops` names them. Paths are found when they are first requested."""

    def __init__(self, network: Network, links: Mapping[Hop, LinkSpec], *, seed: int = 1) -> None:
        """`links` has every direction of every edge. Raises SpecError for a link without a rate."""
        self.hops: tuple[Hop, ...] = tuple(
            hop for edge in network.edges for hop in ((edge.first, edge.second), (edge.second, edge.first))
        )
        specs = [links[hop] for hop in self.hops]
        self.rates_bps: Floats = np.array([spec.rate_bps for spec in specs])
        self.delays_s: Floats = np.array([spec.delay_s for spec in specs])
        self.jitters_s: Floats = np.array([spec.jitter_s for spec in specs])
        self.unshaped = np.array([spec.unshaped for spec in specs], np.bool_)
        for hop, rate_bps in zip(self.hops, self.rates_bps, strict=True):
            if not rate_bps > 0:
                raise SpecError(
                    f"{' -> '.join(hop)}: a rate of {rate_bps:g} bit/s carries nothing; give it one above 0"
                )
        self._seed = seed
        self._number = {hop: number for number, hop in enumerate(self.hops)}
        hosts = {node.name for node in network.nodes if node.role in END_HOSTS}
        self.switches = tuple(node.name for node in network.nodes if node.role == "switch")
        """In the topology's order."""
        self._shared = {node.name for node in network.nodes if node.role == "host"}
        self._neighbours: dict[str, list[str]] = {node.name: [] for node in network.nodes if node.name not in hosts}
        self._at: dict[str, str] = {}
        for first, second in self.hops:
            if first in hosts:
                self._at[first] = second
            elif second not in hosts:
                self._neighbours[first].append(second)
        self._distances: dict[str, dict[str, int]] = {}
        self._found: dict[Hop, list[int]] = {}

    def __len__(self) -> int:
        return len(self.hops)

    def number(self, hop: Hop) -> int:
        """The number of that direction."""
        return self._number[hop]

    def switch_of(self, host: str) -> str:
        """What the host hangs on. Raises SpecError for one that hangs on nothing."""
        if host not in self._at:
            raise SpecError(f"{host}: the topology has no link to it")
        return self._at[host]

    def leaf_of(self, worker: str) -> str:
        """The switch that the worker hangs on, or the host that it shares with others."""
        node = self.switch_of(worker)
        return self._neighbours[node][0] if node in self._shared else node

    def paths(self, pairs: Iterable[Hop]) -> Paths:
        """Of each pair of hosts, in their order. Raises SpecError where there is none."""
        return Paths.of([self.path(*pair) for pair in pairs])

    def path(self, source: str, target: str) -> list[int]:
        """The links from host to host, or to or from a switch."""
        if (source, target) not in self._found:
            self._found[source, target] = self._walk(source, target)
        return self._found[source, target]

    def _walk(self, source: str, target: str) -> list[int]:
        first = source if source in self._neighbours else self.switch_of(source)
        last = target if target in self._neighbours else self.switch_of(target)
        links = [] if first == source else [self._number[source, first]]
        if first != last:
            links += self._between(first, last, _mixed(hash_text(source) ^ _mixed(hash_text(target) ^ self._seed)))
        return links if last == target else [*links, self._number[last, target]]

    def _between(self, first: str, last: str, flow: int) -> list[int]:
        distances = self._distances_to(last, first)
        links, node = [], first
        while node != last:
            nearer = [each for each in self._neighbours[node] if distances.get(each, -1) == distances[node] - 1]
            flow = _mixed(flow)
            following = nearer[flow % len(nearer)]
            links.append(self._number[node, following])
            node = following
        return links

    def _distances_to(self, last: str, first: str) -> dict[str, int]:
        """From the switches that are no farther from `last` than `first` is. Breadth-first, no farther than needed."""
        known = self._distances.get(last)
        if known is not None and first in known:
            return known
        distances = {last: 0}
        waiting = deque([last])
        while waiting:
            node = waiting.popleft()
            if first in distances and distances[node] >= distances[first]:
                break
            for neighbour in self._neighbours[node]:
                if neighbour not in distances:
                    distances[neighbour] = distances[node] + 1
                    waiting.append(neighbour)
        if first not in distances:
            raise SpecError(f"the topology has no path from {first} to {last}")
        self._distances[last] = distances
        return distances

    def nearest(self, candidates: Sequence[str], leaves: Mapping[str, int]) -> str:
        """The candidate from which the farthest leaf is least far, then all workers together, of which each leaf has so
        many, then the first."""
        nodes = tuple(self._neighbours)
        index = {node: number for number, node in enumerate(nodes)}
        sources = np.array([index[each] for each, nearby in self._neighbours.items() for _ in nearby], np.int64)
        targets = np.array([index[each] for nearby in self._neighbours.values() for each in nearby], np.int64)
        farthest, together = np.zeros(len(index)), np.zeros(len(index))
        for leaf, num_workers in leaves.items():
            distance = _distances(index[leaf], len(index), sources, targets)
            np.maximum(farthest, distance, out=farthest)
            together += num_workers * distance
        places = np.array([index[each] for each in candidates])
        best = places[np.lexsort((np.arange(len(places)), together[places], farthest[places]))[0]]
        if np.isinf(farthest[int(best)]):
            raise SpecError(f"the topology has no path from {nodes[int(best)]} to every worker")
        return nodes[int(best)]

    def path_jitters_s(self, paths: Paths) -> Floats:
        """(flows,): the deviation of the delay along each."""
        if not len(paths):
            return np.empty(0)
        return np.asarray(np.sqrt(np.add.reduceat(self.jitters_s[paths.links] ** 2, paths.starts)))

    def path_delays_s(self, paths: Paths) -> Floats:
        """(flows,): propagation along each."""
        return np.add.reduceat(self.delays_s[paths.links], paths.starts) if len(paths) else np.empty(0)


def _distances(start: int, num_nodes: int, sources: Integers, targets: Integers) -> Floats:
    """(nodes,): links from there to each node; infinite where there is no path."""
    distance = np.full(num_nodes, np.inf)
    distance[start] = 0
    for steps in range(1, num_nodes):
        reached = targets[distance[sources] == steps - 1]
        fresh = reached[np.isinf(distance[reached])]
        if not len(fresh):
            break
        distance[fresh] = steps
    return distance


def hash_text(text: str) -> int:
    """64 bits of a name, the same in every process (FNV-1a)."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & _MASK
    return value


def _mixed(value: int) -> int:
    """The finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
