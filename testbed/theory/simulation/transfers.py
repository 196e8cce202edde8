"""Transfers and work that wait for each other, on links that share fairly: the event loop of the simulation.

A transfer moves bytes along a path at the max-min fair rate among those under way. Its last byte leaves (`sent`), and
arrives a latency later. Work occupies a resource of its own, such as a worker's processor, which does one piece at a
time in the order in which they become ready. Rates are computed anew whenever the set of transfers under way has
changed, and only then: a message that takes the place of one on the same path changes nothing.
"""

import heapq
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Final

import numpy as np

from testbed.errors import SpecError
from testbed.theory.simulation.fair_sharing import EQUAL, Flags, Floats, Integers, Paths, fair_rates
from testbed.theory.simulation.network import SimulatedNetwork

SIMULTANEOUS: Final = 1e-9
"""Events whose times differ by less, relatively, are one."""
MAX_REMEMBERED_RATES: Final = 4096
"""Sets of paths in use whose rates are kept."""
_WORK: Final = -1


class StuckError(SpecError):
    """Tasks that wait for each other for ever."""


@dataclass
class TaskGraph:
    """Tasks are numbered as they are added; what a task waits for may be added later."""

    network: SimulatedNetwork
    sizes_bytes: list[float] = field(default_factory=list)
    """Of a transfer, on the wire."""
    latencies_s: list[float] = field(default_factory=list)
    """From the last byte's leaving to its arrival; of work: how long it takes."""
    releases_s: list[float] = field(default_factory=list)
    """The earliest start."""
    where: list[int] = field(default_factory=list)
    """The number of a transfer's path; of work -1."""
    resources: list[int] = field(default_factory=list)
    """Of work, the number of what does it; -1: nothing that others wait for."""
    limits_bps: list[float] = field(default_factory=list)
    """Of what limits transfers beside links, numbered after the links."""
    _rows: list[list[int]] = field(default_factory=list)
    _path_numbers: dict[tuple[str, str, int], int] = field(default_factory=dict)
    _connections: dict[tuple[str, str], int] = field(default_factory=dict)
    _on_sent: list[tuple[int, int]] = field(default_factory=list)
    _on_arrival: list[tuple[int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.where)

    def limit(self, rate_bps: float) -> int:
        """The number of something else that transfers share, such as the slots of a switch."""
        self.limits_bps.append(rate_bps)
        return len(self.network) + len(self.limits_bps) - 1

    def add_path(self, links: list[int]) -> int:
        """The number of a path over those links and limits."""
        self._rows.append(links)
        return len(self._rows) - 1

    def path(self, source: str, target: str, limit: int = -1) -> int:
        """The number of the path from host to host, perhaps under a limit."""
        key = source, target, limit
        if key not in self._path_numbers:
            links = self.network.path(source, target)
            self._path_numbers[key] = self.add_path([*links, limit] if limit >= 0 else links)
        return self._path_numbers[key]

    def path_links(self, path: int) -> list[int]:
        """The links and limits of a path."""
        return self._rows[path]

    def transfer(self, path: int, size_bytes: float, latency_s: float, *, release_s: float = 0.0) -> int:
        """Add one, and get its number."""
        return self._add(path, size_bytes, latency_s, release_s, _WORK)

    def work(self, duration_s: float = 0.0, *, resource: int = _WORK, release_s: float = 0.0) -> int:
        """Add a piece of work, and get its number; without a duration it only joins what it waits for."""
        return self._add(_WORK, 0.0, duration_s, release_s, resource)

    def _add(self, where: int, size_bytes: float, latency_s: float, release_s: float, resource: int) -> int:
        self.where.append(where)
        self.sizes_bytes.append(size_bytes)
        self.latencies_s.append(latency_s)
        self.releases_s.append(release_s)
        self.resources.append(resource)
        return len(self.where) - 1

    def after_sent(self, before: int, after: int) -> None:
        """`after` starts when the last byte of `before` has left."""
        self._on_sent.append((before, after))

    def after(self, before: int, after: int) -> None:
        """`after` starts when `before` has arrived, or is done."""
        self._on_arrival.append((before, after))

    def on_connection(self, source: str, target: str, task: int) -> None:
        """What leaves after all that the connection from host to host had before."""
        if (source, target) in self._connections:
            self.after_sent(self._connections[source, target], task)
        self._connections[source, target] = task

    def run(self, *, resolution: float = 0.0) -> "Timeline":
        """Simulate until everything is done. Of many transfers under way, the share `resolution` may end, each at its
        own time, before rates are computed anew; with 0 all rates change at once.

        Raises StuckError when tasks wait for each other.
        """
        return _Run(self, resolution).run()

    def successors(self) -> tuple[Paths, Paths, Integers]:
        """By task what its sending, and what its arrival, lets start, and how many tasks each waits for."""
        waits = np.zeros(len(self), np.int64)
        found = []
        for edges in (self._on_sent, self._on_arrival):
            pairs = np.array(edges, np.int64).reshape(-1, 2)
            order = np.argsort(pairs[:, 0], kind="stable")
            found.append(Paths.of_lengths(np.bincount(pairs[:, 0], minlength=len(self)), pairs[order, 1]))
            waits += np.bincount(pairs[:, 1], minlength=len(self))
        return found[0], found[1], waits

    def all_paths(self) -> Paths:
        """The paths of all transfers, by their numbers."""
        return Paths.of(self._rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """What became of each task of a graph, and of each link."""

    graph: TaskGraph
    start_s: Floats
    sent_s: Floats
    """Of work: when it was done."""
    arrived_s: Floats
    decided_by: Integers
    """The task that each waited for last; -1 where it waited for none."""
    link_bytes: Floats
    """What each link carried."""

    @property
    def makespan_s(self) -> float:
        """When the last task is done."""
        return float(self.arrived_s.max(initial=0.0))

    def critical_path(self) -> list[int]:
        """The tasks, in order, that lead to the last one's end."""
        if not len(self.arrived_s):
            return []
        path = [int(np.argmax(self.arrived_s))]
        while (before := int(self.decided_by[path[-1]])) >= 0:
            path.append(before)
        return path[::-1]


class _Run:
    def __init__(self, graph: TaskGraph, resolution: float) -> None:
        self._graph = graph
        self._resolution = resolution
        self._paths = graph.all_paths()
        self._capacities = np.concatenate([graph.network.rates_bps, np.array(graph.limits_bps, np.float64)])
        self._on_sent, self._on_arrival, self._waits = graph.successors()
        self._sizes_bits = 8 * np.array(graph.sizes_bytes)
        self._latencies_s = np.array(graph.latencies_s)
        self._releases_s = np.array(graph.releases_s)
        self._where = np.array(graph.where, np.int64)
        num_tasks = len(graph)
        self._start_s, self._sent_s, self._arrived_s = (np.full(num_tasks, np.nan) for _ in range(3))
        self._decided_by = np.full(num_tasks, _WORK, np.int64)
        self._events: list[tuple[float, int, str, Integers]] = []
        self._order = count()
        self._free_s: dict[int, tuple[float, int]] = {}
        self._active = np.empty(0, np.int64)
        self._remaining_bits = np.empty(0)
        self._rates_bps = np.empty(0)
        self._joining: list[Integers] = []
        self._left = False
        self._remembered: dict[bytes, Floats] = {}
        self._now_s = 0.0

    def run(self) -> Timeline:
        self._make_ready(np.flatnonzero(self._waits == 0))
        while True:
            self._share()
            ends_s = self._now_s + self._remaining_bits / self._rates_bps
            until_s = min(self._window_end_s(ends_s), self._events[0][0] if self._events else inf)
            if until_s == inf:
                break
            if self._resolution and len(ends_s):
                until_s = max(until_s, self._window_end_s(ends_s))
            self._advance(ends_s, until_s)
            self._deliver(until_s)
        if np.isnan(self._arrived_s).any():
            stuck = int(np.isnan(self._arrived_s).sum())
            raise StuckError(f"{stuck} of {len(self._graph)} tasks wait for each other or for what never comes")
        return Timeline(
            graph=self._graph,
            start_s=self._start_s,
            sent_s=self._sent_s,
            arrived_s=self._arrived_s,
            decided_by=self._decided_by,
            link_bytes=self._link_bytes(),
        )

    def _link_bytes(self) -> Floats:
        moved = self._where >= 0
        of_paths = np.bincount(self._where[moved], self._sizes_bits[moved] / 8, minlength=len(self._paths))
        spread = np.repeat(of_paths, self._paths.lengths)
        carried = np.bincount(self._paths.links, spread, minlength=len(self._capacities)).astype(np.float64)
        return carried[: len(self._graph.network)]

    def _window_end_s(self, ends_s: Floats) -> float:
        """When the next transfers have been sent."""
        if not len(ends_s):
            return inf
        num_ending = int(self._resolution * len(ends_s))
        return float(np.partition(ends_s, num_ending)[num_ending] if num_ending > 1 else ends_s.min())

    def _share(self) -> None:
        """New rates, if other paths are in use than before."""
        if not self._joining and not self._left:
            return
        joining = np.concatenate(self._joining) if self._joining else np.empty(0, np.int64)
        self._joining, self._left = [], False
        self._active = np.concatenate([self._active, joining])
        self._remaining_bits = np.concatenate([self._remaining_bits, self._sizes_bits[joining]])
        rows = self._where[self._active]
        order = np.argsort(rows, kind="stable")
        key = rows[order].tobytes() if not self._resolution else b""
        rates = self._remembered.get(key)
        if rates is None or not key:
            tolerance = max(EQUAL, self._resolution)
            rates = fair_rates(self._paths.rows(rows[order]), self._capacities, tolerance=tolerance)
            if len(self._remembered) < MAX_REMEMBERED_RATES and len(key) < 1 << 16:
                self._remembered[key] = rates
        self._rates_bps = np.empty(len(rows))
        self._rates_bps[order] = rates

    def _advance(self, ends_s: Floats, until_s: float) -> None:
        """Move bytes until then; what has left, has left when it did."""
        sent: Flags = ends_s <= until_s * (1 + SIMULTANEOUS)
        self._remaining_bits -= self._rates_bps * (until_s - self._now_s)
        self._now_s = until_s
        if not sent.any():
            return
        tasks = self._active[sent]
        self._sent_s[tasks] = ends_s[sent] if self._resolution else until_s
        self._active, self._remaining_bits = self._active[~sent], self._remaining_bits[~sent]
        self._rates_bps = self._rates_bps[~sent]
        self._left = True
        self._after_sending(tasks)

    def _after_sending(self, tasks: Integers) -> None:
        arrivals_s = self._sent_s[tasks] + self._latencies_s[tasks]
        if len(tasks) == 1:
            self._push(float(arrivals_s[0]), "arrive", tasks)
        else:
            for arrival_s in np.unique(arrivals_s):
                self._push(float(arrival_s), "arrive", tasks[arrivals_s == arrival_s])
        self._let_start(tasks, self._on_sent)

    def _deliver(self, until_s: float) -> None:
        """All events up to then, and those that they cause at once."""
        while self._events and self._events[0][0] <= until_s * (1 + SIMULTANEOUS):
            at_s, _, kind, tasks = heapq.heappop(self._events)
            if kind == "arrive":
                self._arrived_s[tasks] = at_s
                self._let_start(tasks, self._on_arrival)
            else:
                self._start(tasks)

    def _push(self, at_s: float, kind: str, tasks: Integers) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), kind, tasks))

    def _let_start(self, tasks: Integers, edges: Paths) -> None:
        waiting = edges.rows(tasks)
        if not len(waiting.links):
            return
        np.subtract.at(self._waits, waiting.links, 1)
        free = self._waits[waiting.links] == 0
        if free.any():
            self._decided_by[waiting.links[free]] = np.repeat(tasks, waiting.lengths)[free]
            ready = waiting.links[free]
            self._make_ready(ready if len(ready) == 1 else np.unique(ready))

    def _make_ready(self, tasks: Integers) -> None:
        releases_s = self._releases_s[tasks]
        late = releases_s > self._now_s
        if late.any():
            for release_s in np.unique(releases_s[late]):
                self._push(float(release_s), "start", tasks[releases_s == release_s])
            tasks = tasks[~late]
        self._start(tasks)

    def _start(self, tasks: Integers) -> None:
        if not len(tasks):
            return
        now_s = np.maximum(self._now_s, self._releases_s[tasks]) if self._resolution else self._now_s
        self._start_s[tasks] = now_s
        moving = tasks[(self._where[tasks] >= 0) & (self._sizes_bits[tasks] > 0)]
        if len(moving):
            self._joining.append(moving)
        empty = tasks[(self._where[tasks] >= 0) & (self._sizes_bits[tasks] == 0)]
        if len(empty):
            self._sent_s[empty] = self._now_s
            self._after_sending(empty)
        self._do(tasks[self._where[tasks] < 0])

    def _do(self, tasks: Integers) -> None:
        at_once = tasks[self._latencies_s[tasks] == 0]
        if len(at_once):
            self._sent_s[at_once] = self._now_s
            self._push(self._now_s, "arrive", at_once)
        for task in tasks[self._latencies_s[tasks] > 0]:
            free_s, previous = self._free_s.get(self._graph.resources[task], (0.0, _WORK))
            if free_s > self._now_s:
                self._decided_by[task] = previous
            start_s = max(self._now_s, free_s)
            done_s = start_s + self._latencies_s[task]
            if self._graph.resources[task] >= 0:
                self._free_s[self._graph.resources[task]] = done_s, int(task)
            self._start_s[task], self._sent_s[task] = start_s, done_s
            self._push(done_s, "arrive", np.array([task]))
