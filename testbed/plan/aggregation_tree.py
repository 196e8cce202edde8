"""Which switches add, and what each of them: one, or a tree of them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.errors import SpecError
from testbed.experiment.topologies.base import Network
from testbed.plan.paths import next_hops

PLACES: Final = ("leaf", "spine", "tree")
"""What `at` may say beside the name of a switch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """One aggregator of a tree."""

    switch: str
    children: tuple["Branch | str", ...]
    """What it adds: workers, by name, and the sums of aggregators below."""


def tree_of(network: Network, num_workers: int, at: str | None) -> Branch:
    """The root of what adds for all workers. Raises SpecError for a place that the network does not have.

    An aggregator below the root stands only where there are two things or more to add: a worker that is alone on its
    switch contributes further up.
    """
    switches = [node.name for node in network.nodes if node.role == "switch"]
    own: dict[str, list[str]] = {}
    for rank in range(num_workers):
        own.setdefault(_switch_of(network, f"w{rank}", switches), []).append(f"w{rank}")
    above = [switch for switch in switches if switch not in own]
    if at is None or at in switches:
        return _everything(at or nearest_switch(network, switches, num_workers), num_workers)
    if at not in PLACES:
        raise SpecError(
            f"collective.at: {at!r} is no switch; there are {', '.join(switches)}, and {', '.join(PLACES)} as places"
        )
    if at != "leaf" and not above:
        raise SpecError(f"collective.at: {at} needs a switch without workers, and all have some; allowed: leaf")
    if at == "spine":
        return _everything(nearest_switch(network, above, num_workers), num_workers)
    candidates = above if at == "tree" and len(own) > 1 else list(own)
    root = nearest_switch(network, candidates, num_workers)
    towards = {node: following[0] for node, following in next_hops(network, [root])[root].items()}
    below: dict[str, list[str]] = {}
    for leaf in own:
        node = leaf
        while node != root and node not in below.setdefault(towards[node], []):
            below[towards[node]].append(node)
            node = towards[node]

    def children_of(node: str) -> tuple[Branch | str, ...]:
        found: list[Branch | str] = list(own.get(node, []))
        for lower in below.get(node, []):
            children = children_of(lower)
            adds = len(children) > 1 and (lower in own or at == "tree")
            found += [Branch(switch=lower, children=children)] if adds else children
        return tuple(found)

    return Branch(switch=root, children=children_of(root))


def nearest_switch(network: Network, switches: Sequence[str], num_workers: int) -> str:
    """From which the farthest worker is least far away; of several the one with the shortest paths together, and of
    those the first."""
    towards = next_hops(network, [f"w{rank}" for rank in range(num_workers)])

    def distance(switch: str, worker: str) -> int:
        steps, node = 0, switch
        while node != worker:
            node, steps = towards[worker][node][0], steps + 1
        return steps

    def cost(switch: str) -> tuple[int, int]:
        distances = [distance(switch, worker) for worker in towards]
        return max(distances), sum(distances)

    return min(switches, key=cost)


def _everything(switch: str, num_workers: int) -> Branch:
    return Branch(switch=switch, children=tuple(f"w{rank}" for rank in range(num_workers)))


def _switch_of(network: Network, host: str, switches: Sequence[str]) -> str:
    """Behind the host that it may share with others."""
    up: Mapping[str, str] = {edge.first: edge.second for edge in network.edges if edge.first not in switches}
    while host not in switches:
        host = up[host]
    return host
