"""A collective's schedule as tasks: every message a transfer, every reduction work of its receiver's processor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from testbed.theory.simulation.fair_sharing import Floats
from testbed.theory.simulation.transfers import TaskGraph
from transports.collectives.base import Collective, Operation, Step, World
from transports.collectives.schedules.dependencies import Dependencies
from transports.collectives.schedules.expanded import schedules


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCosts:
    """What messages cost beside the links."""

    message_s: float = 0.0
    """Of each, from the last byte's arrival to what it lets start."""
    addition_s_per_byte: float = 0.0
    """To add what came to what is there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchangers:
    """The participants of an exchange, and the network between them."""

    names: Sequence[str]
    """The node of each participant."""
    wire_bytes: Callable[[int], float]
    """What a message of that payload is on the links, headers included."""
    costs: HostCosts = HostCosts()
    first_resource: int = 0
    """The number of the first participant's processor; the others follow."""
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    """By which jitter is drawn."""

    def travel_s(self, latencies_s: Floats, jitters_s: Floats) -> Floats:
        """What each message really takes to travel, given its latency and the deviation of that."""
        if not jitters_s.any():
            return latencies_s
        drawn_s = self.random.normal(size=latencies_s.shape) * jitters_s
        return np.maximum(latencies_s + drawn_s, 0.0)


def add_collective(
    graph: TaskGraph,
    exchangers: Exchangers,
    collective: Collective,
    operation: Operation,
    world: World,
    num_elements: int,
    element_bytes: int,
    entries: Sequence[int],
) -> list[int]:
    """Add all messages of one operation; participant p begins after the task `entries[p]`, and is through with the task
    of the same place in what is returned: when all that it waits for has come. What it sends the kernel has by then,
    and it goes on while that leaves, before what the same connection gets later."""
    every = schedules(collective, operation, world, num_elements, element_bytes)
    orders = every.orders
    tasks = [
        _add_steps(graph, exchangers, participant, steps, order, element_bytes, entries[participant])
        for participant, (steps, order) in enumerate(zip(every, orders, strict=True))
    ]
    for participant, order in enumerate(orders):
        for (peer, direction), indices in order.lanes.items():
            if direction != "send":
                continue
            names = exchangers.names[participant], exchangers.names[peer]
            receiving = [tasks[peer][index] for index in orders[peer].lanes[participant, "receive"]]
            for index, received in zip(indices, receiving, strict=True):
                graph.on_connection(*names, tasks[participant][index])
                graph.after(tasks[participant][index], received)
    exits = []
    for participant in range(world.size):
        through = graph.work()
        graph.after(entries[participant], through)
        for step, task in zip(every[participant], tasks[participant], strict=True):
            if step.kind != "send":
                graph.after(task, through)
        exits.append(through)
    return exits


def _add_steps(
    graph: TaskGraph,
    exchangers: Exchangers,
    participant: int,
    steps: Sequence[Step],
    order: Dependencies,
    element_bytes: int,
    entry: int,
) -> list[int]:
    costs, names = exchangers.costs, exchangers.names
    paths = graph.network.paths((names[participant], names[step.peer]) for step in steps if step.kind == "send")
    delays_s, jitters_s = graph.network.path_delays_s(paths), graph.network.path_jitters_s(paths)
    travel_s = iter(exchangers.travel_s(delays_s + costs.message_s, jitters_s).tolist())
    tasks = []
    for step in steps:
        if step.kind == "send":
            path = graph.path(names[participant], names[step.peer])
            size_bytes = exchangers.wire_bytes(step.chunk.count * element_bytes)
            tasks.append(graph.transfer(path, size_bytes, next(travel_s)))
        else:
            adds = step.kind in ("reduce", "add")
            duration_s = costs.addition_s_per_byte * step.chunk.count * element_bytes if adds else 0.0
            tasks.append(graph.work(duration_s, resource=exchangers.first_resource + participant))
    before: list[list[int]] = [[] for _ in steps]
    for index, task in enumerate(tasks):
        if not order.num_predecessors[index]:
            graph.after(entry, task)
        for later in order.successors[index]:
            before[later].append(index)
            if steps[index].kind != "send":
                graph.after(task, tasks[later])
                continue
            # What overwrites values that are sent waits until the kernel has them: for what sending them waits for.
            for handed in [tasks[each] for each in before[index]] or [entry]:
                graph.after(handed, tasks[later])
    return tasks
