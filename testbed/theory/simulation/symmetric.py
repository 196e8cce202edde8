"""Exchanges in which all workers do the same, without a task for each message.

A ring of N workers has 2 (N-1) steps of N messages: half a billion for 16,384 workers. But each step is the step before
it, later, so a step is a few operations on vectors with an element for each worker; and once a step has moved every
worker's times by the same amount, all further steps of its kind do, and are skipped (times of events are linear in the
(max, +) algebra: Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992).

The price: the messages of one step are taken to share links as if all of them were under way at once, and, where racks
add first (hierarchical), one phase to begin on a worker when it has the one before it wholly. Expanded schedules
(`collectives.py`) know neither assumption; the tests hold both to each other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from testbed.theory.simulation.aggregation import AggregationTree, aggregation_tree
from testbed.theory.simulation.collectives import Exchangers
from testbed.theory.simulation.fair_sharing import Floats, Paths, fair_rates
from testbed.theory.simulation.network import SimulatedNetwork
from transports.collectives.base import Collective, World
from transports.collectives.in_network import InNetwork
from transports.collectives.schedules.phases import AllAtOnce, Rings

STEADY: Final = 1e-9
"""Steps whose lengths differ by less among workers, relatively, are equally long."""
_MANY: Final = 16
_SQUARED: Final = 3.0
"""Messages that grow so many times with twice the workers grow with their square: 4 times, and not 2 to 2.7."""


@dataclass
class SymmetricExchange:
    """One all-reduce at a time, from when each worker is ready to when each is done."""

    network: SimulatedNetwork
    exchangers: Exchangers
    world: World
    link_bytes: Floats = field(init=False)
    """What each link has carried so far."""
    num_steps: int = 0
    """Ring steps computed so far, one by one."""

    def __post_init__(self) -> None:
        self.link_bytes = np.zeros(len(self.network))
        self._trees: dict[str | None, AggregationTree] = {}
        self._senders_free_s: dict[tuple[tuple[int, ...], ...], Floats] = {}
        """By the rings, when connections have sent what the exchanges so far gave them."""

    def all_reduce(
        self,
        collective: Collective,
        num_elements: int,
        element_bytes: int,
        ready_s: Floats,
        *,
        sums_floats: bool,
    ) -> Floats:
        """(workers,): when each is done, given when each begins. Raises ValueError for one that has no phases."""
        aggregation = collective.aggregation
        if sums_floats and aggregation is not None and aggregation.adds("all_reduce", element_bytes):
            return self._aggregation(aggregation, num_elements, ready_s)
        phases = collective.phases(self.world, num_elements, element_bytes)
        if phases is None:
            raise ValueError(f"workers do not all do the same in collective {collective.kind}")
        done_s = ready_s
        for phase in phases:
            done_s = self._ring(phase, done_s) if isinstance(phase, Rings) else self._all_at_once(phase, done_s)
        return done_s

    def _aggregation(self, collective: InNetwork, num_elements: int, ready_s: Floats) -> Floats:
        """All begin when the last one does, and are done at the same time."""
        tree = self._trees.setdefault(
            collective.at,
            aggregation_tree(self.network, self.exchangers.names[: self.world.num_workers], collective.at),
        )
        stream = tree.stream(collective, num_elements, num_slots=collective.num_slots)
        np.add.at(self.link_bytes, np.array(tree.links), stream.wire_bytes)
        paths = Paths.of([tree.links])
        rate_bps = min(float(fair_rates(paths, self.network.rates_bps)[0]), stream.limit_bps)
        end_s = float(ready_s.max()) + 8 * stream.wire_bytes / rate_bps + stream.latency_s
        return np.full(len(ready_s), end_s + self.exchangers.costs.message_s)

    def _all_at_once(self, phase: AllAtOnce, ready_s: Floats) -> Floats:
        """(workers,): when each is done, once the last of the messages to it has arrived and is added."""
        done_s = ready_s.copy()
        if not phase.pairs:
            return done_s
        paths = self._paths(phase.pairs)
        wire_bytes = sum(self.exchangers.wire_bytes(each) for each in phase.message_bytes)
        self._count(paths, wire_bytes)
        moving_s = 8 * wire_bytes / fair_rates(paths, self.network.rates_bps)
        sources, targets = np.array(phase.pairs).T
        travel_s = self.exchangers.travel_s(self._latencies_s(paths), self.network.path_jitters_s(paths))
        np.maximum.at(done_s, targets, ready_s[sources] + moving_s + travel_s)
        adding_s = self.exchangers.costs.addition_s_per_byte * sum(phase.message_bytes) if phase.adds else 0.0
        return np.asarray(done_s + adding_s * np.bincount(targets, minlength=len(done_s)))

    def _ring(self, phase: Rings, ready_s: Floats) -> Floats:
        """(workers,): when each is done; arrays of one phase are (rings, size)."""
        rings = tuple(tuple(row) for row in phase.members)
        members, segments = np.array(rings), phase.message_bytes
        size = members.shape[1]
        pairs = [(int(a), int(b)) for row in members for a, b in zip(row, np.roll(row, -1), strict=True)]
        paths = self._paths(pairs)
        num_steps = 2 * (size - 1)
        wire_bytes = [self.exchangers.wire_bytes(each) for each in segments]
        self._count(paths, num_steps * sum(wire_bytes))
        rates_bps = fair_rates(paths, self.network.rates_bps).reshape(members.shape)
        latencies_s = self._latencies_s(paths).reshape(members.shape)
        steps = _RingSteps(
            num_segments=len(segments),
            sending_s=8 * float(np.mean(wire_bytes)) / rates_bps,  # they differ by one element at most
            adding_s=self.exchangers.costs.addition_s_per_byte * float(np.mean(segments)),
            latencies_s=latencies_s,
            jitters_s=self.network.path_jitters_s(paths).reshape(members.shape),
            travel_s=self.exchangers.travel_s,
            begins_s=ready_s[members],
            senders_free_s=self._senders_free_s.get(rings, ready_s[members]),
        )
        steps.run(size - 1, adds=True)
        done_s = ready_s.copy()
        done_s[members] = steps.run(size - 1, adds=False)
        self._senders_free_s[rings] = steps.senders_free_s
        self.num_steps += steps.num_computed
        return done_s

    def _paths(self, pairs: Sequence[tuple[int, int]]) -> Paths:
        names = self.exchangers.names
        return self.network.paths((names[source], names[target]) for source, target in pairs)

    def _latencies_s(self, paths: Paths) -> Floats:
        return np.asarray(self.network.path_delays_s(paths) + self.exchangers.costs.message_s)

    def _count(self, paths: Paths, wire_bytes: float) -> None:
        self.link_bytes += np.bincount(paths.links, minlength=len(self.network)) * wire_bytes


class _RingSteps:
    """The state of all members of all rings between two steps; arrays are (rings, size)."""

    def __init__(
        self,
        *,
        num_segments: int,
        sending_s: Floats,
        adding_s: float,
        latencies_s: Floats,
        jitters_s: Floats,
        travel_s: Callable[[Floats, Floats], Floats],
        begins_s: Floats,
        senders_free_s: Floats,
    ) -> None:
        self._sending_s, self._adding_s = sending_s, adding_s
        """Of one segment."""
        self._latencies_s, self._jitters_s, self._travel_s = latencies_s, jitters_s, travel_s
        self._begins_s = begins_s
        self._ready_s = np.stack([begins_s] * num_segments)
        self.senders_free_s = np.maximum(begins_s, senders_free_s)
        self._adder_free_s = begins_s.copy()
        self._alike = float(np.ptp(sending_s)) <= STEADY * float(sending_s.max())
        self._draws = bool(jitters_s.any())
        self.num_computed = 0

    def run(self, num_steps: int, *, adds: bool) -> Floats:
        """When each has done so many more steps."""
        adding_s = self._adding_s if adds else 0.0
        left = num_steps
        while left:
            before = self._state(adds=adds)
            nobody_waits = self._step(adding_s)
            self.num_computed += 1
            left -= 1
            moved_s = self._state(adds=adds) - before
            longest_s = float(moved_s.max())
            if self._draws or left < 2:
                continue
            if longest_s - float(moved_s.min()) <= STEADY * longest_s:
                self._skip(left * longest_s)
                break
            if nobody_waits and self._alike:
                self._travel(left - 1, adding_s)  # one is left, after which all of the state is right
                left = 1
        # Not when all has left: the kernel has what is sent, and goes on while its worker does.
        done_s: Floats = self._ready_s.max(axis=0)
        return done_s

    def _state(self, *, adds: bool) -> Floats:
        """All that decides what comes next."""
        free_s = (self.senders_free_s, self._adder_free_s) if adds else (self.senders_free_s,)
        return np.stack([*self._ready_s, *free_s])

    def _skip(self, passed_s: float) -> None:
        self._ready_s = self._ready_s + passed_s
        self.senders_free_s = self.senders_free_s + passed_s
        self._adder_free_s = self._adder_free_s + passed_s

    def _travel(self, num_steps: int, adding_s: float) -> None:
        """So many steps in which every message is sent when it has come: it has never to wait for the one before it,
        since in the last step none had to, and all take equally long to send, and to add."""
        hops_s = self._sending_s + self._latencies_s + adding_s
        size = hops_s.shape[1]
        rounds, rest = divmod(num_steps, size)
        passed_s = np.concatenate([np.zeros((len(hops_s), 1)), np.cumsum(np.tile(hops_s, 2), axis=1)], axis=1)
        ends = size + np.arange(size)
        travelled_s = rounds * hops_s.sum(axis=1, keepdims=True) + passed_s[:, ends] - passed_s[:, ends - rest]
        self._ready_s = np.roll(self._ready_s, num_steps, axis=2) + travelled_s
        # Lower bounds, which do not decide anything in the step that follows.
        self.senders_free_s = np.minimum(self.senders_free_s, self._ready_s[0])
        self._adder_free_s = np.minimum(self._adder_free_s, self._ready_s[0])

    def _step(self, adding_s: float) -> bool:
        """One step; whether every message was sent, and added, when it came."""
        waited = False
        arrivals_s = []
        for ready_s in self._ready_s:
            waited |= bool((self.senders_free_s > ready_s * (1 + STEADY)).any())
            self.senders_free_s = np.maximum(ready_s, self.senders_free_s) + self._sending_s
            arrived_s = np.roll(self.senders_free_s + self._travel_s(self._latencies_s, self._jitters_s), 1, axis=1)
            waited |= bool((self._begins_s > arrived_s).any())
            arrived_s = np.maximum(arrived_s, self._begins_s)
            if adding_s:
                waited |= bool((self._adder_free_s > arrived_s * (1 + STEADY)).any())
                arrived_s = self._adder_free_s = np.maximum(arrived_s, self._adder_free_s) + adding_s
            arrivals_s.append(arrived_s)
        self._ready_s = np.stack(arrivals_s)
        return not waited


def messages_of(collective: Collective, world: World, size_bytes: int) -> float:
    """Roughly how many messages an all-reduce of that size has, by those of 8 and of 16 workers: what expanding it
    would cost."""
    from transports.collectives.cost import sent_bytes

    def counted(num_workers: int) -> float:
        few = World(num_workers=num_workers, num_servers=world.num_servers)
        counts = sent_bytes(collective, "all_reduce", few, max(1, size_bytes // 4), 4)
        return float(sum(count.num_messages for count in counts.values()))

    if world.num_workers <= _MANY:
        return counted(world.num_workers)
    found = counted(_MANY)
    growth = world.num_workers / _MANY
    return found * (growth**2 if found >= _SQUARED * counted(_MANY // 2) else growth)
