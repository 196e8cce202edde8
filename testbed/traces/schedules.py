"""A collective's schedule as a graph: the messages of each participant, for simulators that take custom collectives."""

from collections import defaultdict
from collections.abc import Sequence

from testbed.errors import SpecError
from testbed.traces.graph import ELEMENT_BYTES, OPERATIONS, Compute, Graph, Node, Receive, Send
from transports.collectives.base import Collective, Operation, Step, World
from transports.collectives.schedules.dependencies import Dependencies
from transports.collectives.schedules.expanded import schedules


def schedule_graph(
    collective: Collective, operation: Operation, num_workers: int, num_elements: int, element_type: str
) -> Graph:
    """What every participant sends and receives, servers after the workers; root is rank 0. Additions are computing
    that takes no time. Each message between two participants has a tag of its own, in the order of the schedule.

    Raises SpecError for what has no schedule.
    """
    if operation not in OPERATIONS:
        raise SpecError(f"operation {operation!r} is not known; allowed: {', '.join(OPERATIONS)}")
    if num_workers < 2:
        raise SpecError(f"{num_workers} ranks exchange nothing; allowed: 2 or more")
    element_bytes = ELEMENT_BYTES[element_type]
    if collective.link_bytes(operation, num_elements, element_bytes) is not None:
        raise SpecError(f"{collective.kind} adds in the network, and that has no schedule among ranks")
    world: World = collective.world(num_workers)
    every = schedules(collective, operation, world, num_elements, element_bytes)
    return Graph(
        ranks=tuple(_nodes(steps, order, element_type) for steps, order in zip(every, every.orders, strict=True))
    )


def _nodes(steps: Sequence[Step], order: Dependencies, element_type: str) -> tuple[Node, ...]:
    """Of one participant."""
    before: dict[int, list[int]] = defaultdict(list)
    for index, following in enumerate(order.successors):
        for later in following:
            before[later].append(index)
    nodes: list[Node] = []
    last: dict[int, int] = {}
    """By step, the node with which it ends."""
    num_messages: dict[tuple[int, str], int] = defaultdict(int)
    for index, step in enumerate(steps):
        after = tuple(sorted({last[earlier] for earlier in before[index]}))
        if step.kind == "add":
            nodes.append(Compute(0.0, "add", after))
        else:
            way = "send" if step.kind == "send" else "receive"
            tag = num_messages[step.peer, way]
            num_messages[step.peer, way] += 1
            message: type[Send | Receive] = Send if way == "send" else Receive
            aside = step.kind == "reduce"  # it may arrive before it may be added
            nodes.append(message(step.peer, step.chunk.count, element_type, tag, step.kind, () if aside else after))
            if aside:
                nodes.append(Compute(0.0, "add", (*after, len(nodes) - 1)))
        last[index] = len(nodes) - 1
    return tuple(nodes)
