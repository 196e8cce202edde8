"""Iterations of synchronous SGD as a directed acyclic graph of tasks, solved exactly.

After Shi, Wang, Chu, Li 2018, "A DAG Model of Synchronous Stochastic Gradient Descent in Distributed Deep Learning"
(ICPADS, arXiv:1805.03812): tasks are the parts of an iteration (reading input, copying it to the device, each layer's
forward and backward, each exchange of gradients, the update), edges say what must be over before. A task occupies one
resource, which executes one task at a time in the order in which they became ready. As all workers do the same, one
worker's graph, with the time of each exchange, stands for all.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal, NamedTuple

from testbed.experiment.fusion.merged import merge
from testbed.traces.table import LayerTable

Resource = Literal["input", "device", "network"]
Strategy = Literal["naive", "input_overlap", "wfbp", "merged"]
"""`naive`: everything one after the other. `input_overlap`: the next batch is read and copied meanwhile (CNTK).
`wfbp`: gradients are exchanged layer by layer during backward as well (wait-free backpropagation: Caffe-MPI, MXNet,
TensorFlow). `merged`: likewise, with layers joined where that saves start-up time (MG-WFBP, Shi, Chu, Li 2019)."""

_NUM_ITERATIONS: Final = 4
"""Solved in a row: the second and later ones take equally long, for each waits for the update before it."""


class Task(NamedTuple):
    """One node of the graph."""

    name: str
    resource: Resource
    duration_s: float
    after: tuple[int, ...]
    """The numbers of the tasks that must be over, all of them lower than its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """When each task of a graph runs."""

    tasks: tuple[Task, ...]
    start_s: tuple[float, ...]
    end_s: tuple[float, ...]
    decided_by: tuple[int | None, ...]
    """For each task the one whose end let it start: its last predecessor, or the one before it on its resource."""

    @property
    def makespan_s(self) -> float:
        """When the last task ends."""
        return max(self.end_s, default=0.0)

    def critical_path(self) -> tuple[int, ...]:
        """The tasks, in order, whose durations add up to the makespan without a gap."""
        if not self.tasks:
            return ()
        path = [max(range(len(self.tasks)), key=lambda number: (self.end_s[number], number))]
        while (before := self.decided_by[path[-1]]) is not None:
            path.append(before)
        return tuple(reversed(path))


def solve(tasks: Sequence[Task]) -> Solution:
    """Run every task as early as its predecessors and its resource allow; whoever has waited longest is next, of those
    that became ready at the same time the one with the lowest number. Raises ValueError for an edge that points up."""
    for number, task in enumerate(tasks):
        if any(not 0 <= before < number for before in task.after):
            raise ValueError(f"task {number} ({task.name}) waits for a task that does not come before it")
    successors: list[list[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for before in set(task.after):
            successors[before].append(number)
    missing = [len(set(task.after)) for task in tasks]
    start_s, end_s = [0.0] * len(tasks), [0.0] * len(tasks)
    decided_by: list[int | None] = [None] * len(tasks)
    free: dict[Resource, tuple[float, int | None]] = {}
    # Ordered by the time at which they become ready. A task that is not here yet waits for one that is, or for one that
    # waits for it, so it cannot become ready before the earliest of these.
    ready: list[tuple[float, int, int | None]] = [
        (0.0, number, None) for number, count in enumerate(missing) if not count
    ]
    heapq.heapify(ready)
    while ready:
        ready_s, number, last = heapq.heappop(ready)
        task = tasks[number]
        free_s, previous = free.get(task.resource, (0.0, None))
        start_s[number] = max(ready_s, free_s)
        decided_by[number] = previous if free_s > ready_s else last
        end_s[number] = start_s[number] + task.duration_s
        free[task.resource] = end_s[number], number
        for following in successors[number]:
            missing[following] -= 1
            if missing[following] == 0:
                at_s, by = max((end_s[before], before) for before in tasks[following].after)
                heapq.heappush(ready, (at_s, following, by))
    return Solution(tasks=tuple(tasks), start_s=tuple(start_s), end_s=tuple(end_s), decided_by=tuple(decided_by))


class Bucket(NamedTuple):
    """Neighbouring layers, in the order of backward, whose gradients are exchanged together."""

    last_layer: int
    """The number, counted from 0 in the order of backward, of the layer that completes it."""
    exchange_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeCost:
    """An exchange of n bytes takes `startup_s` + n x `s_per_byte`."""

    startup_s: float
    s_per_byte: float

    def time_s(self, size_bytes: int) -> float:
        """The time of one exchange of that many bytes."""
        return self.startup_s + size_bytes * self.s_per_byte


def buckets_by_layer(table: LayerTable, exchange_s: Callable[[int], float] | None = None) -> tuple[Bucket, ...]:
    """Each layer by itself, at the cost given, or as long as its exchange took where the trace was recorded.

    Raises ValueError where neither is known."""
    found: list[Bucket] = []
    for number, layer in enumerate(reversed(table.layers)):
        if not layer.size_bytes:
            continue
        duration_s = layer.communication_s if exchange_s is None else exchange_s(layer.size_bytes)
        if duration_s is None:
            raise ValueError(f"the trace does not say how long the exchange of layer {layer.name} took; give a cost")
        found.append(Bucket(number, duration_s))
    return tuple(found)


def buckets_merged(table: LayerTable, cost: ExchangeCost) -> tuple[Bucket, ...]:
    """Layers joined as MG-WFBP joins them. One without gradients exchanges nothing: the next one that has any is ready
    so much later."""
    backward = table.layers[::-1]
    sizes_bytes: list[int] = []
    parts_s: list[float] = []
    since_s = 0.0
    for layer in backward:
        since_s += layer.backward_s
        if layer.size_bytes:
            sizes_bytes.append(layer.size_bytes)
            parts_s.append(since_s)
            since_s = 0.0
    counts = merge(sizes_bytes, parts_s, startup_s=cost.startup_s, s_per_element=cost.s_per_byte)
    ends = list(accumulate(layer.size_bytes for layer in backward))
    return tuple(
        Bucket(ends.index(end), cost.time_s(size_bytes))
        for size_bytes, end in zip(counts, accumulate(counts), strict=True)
    )


def sgd_tasks(
    table: LayerTable, strategy: Strategy, buckets: Sequence[Bucket], num_iterations: int
) -> tuple[Task, ...]:
    """The graph of that many iterations. Input is read into one of two buffers, so at most one batch ahead."""
    tasks: list[Task] = []

    def add(name: str, resource: Resource, duration_s: float, *after: int | None) -> int:
        tasks.append(
            Task(name, resource, duration_s, tuple(sorted({number for number in after if number is not None})))
        )
        return len(tasks) - 1

    update: int | None = None
    batch: int | None = None
    for iteration in range(num_iterations):

        def named(part: str, iteration: int = iteration) -> str:
            return f"{part} of iteration {iteration}"

        if batch is None or strategy == "naive":
            batch = add(named("input"), "input", table.input_and_copy_s, update)
        computed = add(named("forward"), "device", table.forward_s, batch, update)
        if strategy != "naive":
            batch = add(named("input ahead"), "input", table.input_and_copy_s, batch, update)
        backward: list[int] = []
        for layer in reversed(table.layers):
            computed = add(named(f"backward of {layer.name}"), "device", layer.backward_s, computed)
            backward.append(computed)
        overlaps = strategy in ("wfbp", "merged")
        exchanges = [
            add(
                named(f"exchange up to layer {len(backward) - bucket.last_layer}"),
                "network",
                bucket.exchange_s,
                backward[bucket.last_layer] if overlaps else computed,
            )
            for bucket in buckets
        ]
        update = add(named("update"), "device", table.update_s, computed, *exchanges)
    return tuple(tasks)


def iteration_s(table: LayerTable, strategy: Strategy, buckets: Sequence[Bucket]) -> float:
    """How long an iteration takes once the first one is over."""
    solutions = [
        solve(sgd_tasks(table, strategy, buckets, count)).makespan_s for count in (_NUM_ITERATIONS, _NUM_ITERATIONS + 1)
    ]
    return solutions[1] - solutions[0]
