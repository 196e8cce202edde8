"""How many bytes an iteration of a replayed graph puts on the wire, from worker to worker. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from testbed.plan.traffic import split_bytes
from testbed.traces.graph import ELEMENT_BYTES, Collective, Graph, Send
from transports.channels.base import Channel
from transports.collectives.base import Collective as Algorithm
from transports.collectives.base import World
from transports.collectives.cost import sent_bytes
from transports.execution.point_to_point import bursts

Pair = tuple[int, int]


class GraphTraffic(NamedTuple):
    """Of one iteration, from worker to worker."""

    wire: dict[tuple[str, str], int]
    split: dict[tuple[str, str], int]
    """By how much that may be more, if no message of a collective or of a send shares a segment with the next."""


def graph_traffic(graph: Graph, algorithm: Algorithm, channel: Channel, racks: Sequence[int], mtu: int) -> GraphTraffic:
    """Bytes on the wire; a rank is the worker of that number, and `racks` has the number of each one's rack,
    or nothing."""
    wire: Counter[tuple[str, str]] = Counter()
    split: Counter[tuple[str, str]] = Counter()

    def add(pair: Pair, payload_bytes: int, num_messages: int, num_times: int = 1) -> None:
        framed_bytes = payload_bytes + num_messages * channel.header_bytes
        names = f"w{pair[0]}", f"w{pair[1]}"
        wire[names] += num_times * channel.wire_bytes(framed_bytes, mtu).forward
        split[names] += num_times * split_bytes(framed_bytes, num_messages, channel, mtu)

    for nodes, num_times in _collectives(graph).items():
        for pair, payload_bytes, num_messages in _collective_bytes(graph, nodes, algorithm, racks):
            add(pair, payload_bytes, num_messages, num_times)
    for match in graph.matches:
        node = graph.node(match[0])
        if isinstance(node, Send):
            pair = match[0][0], match[1][0]
            there, back = bursts(node.size_bytes)
            for burst in there:
                add(pair, sum(burst), len(burst))
            for burst in back:
                add(pair[::-1], sum(burst), len(burst))
    return GraphTraffic(dict(wire), dict(split))


def _collectives(graph: Graph) -> Counter[tuple[Collective, ...]]:
    """Those that move the same, each as what its members do, and how often."""
    found: Counter[tuple[Collective, ...]] = Counter()
    for match in graph.matches:
        nodes = [graph.node(place) for place in match]
        if isinstance(nodes[0], Collective):
            found[tuple(node._replace(name="", after=()) for node in nodes if isinstance(node, Collective))] += 1
    return found


def _collective_bytes(
    graph: Graph, nodes: Sequence[Collective], algorithm: Algorithm, racks: Sequence[int]
) -> Iterator[tuple[Pair, int, int]]:
    """(sender, receiver), payload and messages of one collective."""
    first = nodes[0]
    members = graph.groups[first.group]
    element_bytes = ELEMENT_BYTES[first.element_type]
    if first.splits is not None:  # straight from each to each, one message for each pair that has any
        for place, node in enumerate(nodes):
            for other, count in enumerate(node.splits or ()):
                if count and other != place:
                    yield (members[place], members[other]), count * element_bytes, 1
        return
    if first.group != graph.first_group_of_all:
        algorithm = algorithm.of_further_group()
    world: World = algorithm.world(len(members), racks=tuple(racks[member] for member in members) if racks else ())
    count = first.num_elements
    if first.operation == "barrier":
        count, element_bytes = 1, 1  # what transports.execution.operations moves for it
    root = 0 if first.root is None else members.index(first.root)
    for (place, other), traffic in sent_bytes(
        algorithm, first.operation, world, count, element_bytes, root=root
    ).items():
        yield (members[place], members[other]), traffic.payload_bytes, traffic.num_messages
