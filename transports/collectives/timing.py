"""How long a collective takes: the one cost model, of which predictions, fusion and `auto` are made.

LogGP with a schedule's own dependencies (Alexandrov et al., "LogGP: incorporating long messages into the LogP model",
SPAA 1995) on the links that there are: a message takes its sender's processor for the overhead, crosses link after link
at each one's rate, in the order in which messages come, arrives a latency later, takes its receiver's processor for the
overhead and, where it is added, for as long as that takes. Participants that share processors, as on one machine, wait
for one of them.

To it comes what TCP costs. A connection that has been idle begins with ten segments (RFC 6928) and doubles them every
round trip (RFC 5681, 3.1 and 4.1), and a schedule that turns from one peer to another begins again each time.
Concurrent senders whose round is more than the path and a queue hold overflow it together (incast): each but one of
them then takes a round trip to repair that.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Final

from transports.collectives.base import Collective, Operation, Step, World
from transports.collectives.cost import DeadlockError, Progress, schedules, sent_bytes
from transports.collectives.schedules.dependencies import dependencies

INITIAL_WINDOW_BYTES: Final = 10 * 1448
DEFAULT_QUEUE_BYTES: Final = 1_000_000
"""What the port of a switch is taken to hold where nobody says."""
IDLE_S: Final = 0.2
"""After so long without data a connection of Linux begins anew (net.ipv4.tcp_slow_start_after_idle): the least timeout
of retransmissions (TCP_RTO_MIN)."""
NUM_SHAPES: Final = 4096
Pair = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What hosts add to links. The defaults are those of a machine of 2.5 GHz that nobody has measured;
    `testbed fit` measures them."""

    host_latency_s: float = 50e-6
    """Of a message beside propagation: two system calls and two wake-ups, which keep no other message waiting."""
    message_s: float = 25e-6
    """Of a participant's processor for each message that it sends, and for each that it receives."""
    addition_s_per_byte: float = 0.1e-9
    """Of a participant's processor to add what came to what is there."""
    link_share: float = 1.0
    """What a long stream reaches, of what headers leave of a link's rate."""
    tcp: bool = True
    """Whether senders discover how much they may send, so that they begin slowly, and overflow a queue together."""
    fitted_at: str | None = None
    """When these were fitted to measurements (ISO 8601); None: they are the defaults."""


DEFAULT_COSTS: Final = Costs()
FREE: Final = Costs(host_latency_s=0.0, message_s=0.0, addition_s_per_byte=0.0, tcp=False)
"""Links alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """What lies between participants, in one direction each."""

    s_per_byte: Sequence[float]
    """Of payload, by link."""
    paths: Callable[[Pair], Sequence[int]]
    """The links from participant to participant, in order."""
    latency_s: Callable[[Pair], float]
    """The propagation on that path."""
    header_bytes: int = 0
    """Of the frame header before each message."""
    queue_bytes: float = DEFAULT_QUEUE_BYTES
    """What the smallest queue on the way holds."""
    burst_bytes: Sequence[float] = ()
    """By link, what may pass at once after it has been idle (a token bucket's depth); empty: nothing may. An exchange
    begins with all of it spent, since buckets follow one another."""

    @classmethod
    def star(
        cls, size: int, *, rate_bps: float, latency_s: float, header_bytes: int = 0, queue_bytes: float | None = None
    ) -> "Links":
        """One full-duplex link for each participant: up is its number, down comes `size` later."""
        return cls(
            s_per_byte=(8 / rate_bps,) * (2 * size),
            paths=lambda pair: (pair[0], size + pair[1]),
            latency_s=lambda _: latency_s,
            header_bytes=header_bytes,
            queue_bytes=DEFAULT_QUEUE_BYTES if queue_bytes is None else queue_bytes,
        )


def exchange_times_s(
    collective: Collective,
    operation: Operation,
    world: World,
    num_elements: int,
    element_bytes: int,
    links: Links,
    costs: Costs = DEFAULT_COSTS,
    *,
    begins_s: Sequence[float] | None = None,
    root: int = 0,
    idle: bool = True,
    num_processors: int | None = None,
) -> list[float]:
    """When each participant is done, given when each begins; all begin at 0 where nothing is said. With `idle`
    connections have had nothing to do before, for longer than IDLE_S, and begin slowly. `num_processors` is how many
    all participants share; None: each has one of its own.

    Raises DeadlockError for a schedule that never ends.
    """
    every = schedules(collective, operation, world, num_elements, element_bytes, root=root)
    ends_s = _Timeline(every, element_bytes, links, costs, begins_s or [0.0] * world.size, num_processors).run()
    size_bytes = num_elements * element_bytes
    tcp_s = _tcp_s(collective, operation, world, size_bytes, links, idle=idle) if costs.tcp else 0.0
    return [end_s + tcp_s for end_s in ends_s]


def exchange_s(
    collective: Collective,
    operation: Operation,
    world: World,
    num_elements: int,
    element_bytes: int,
    links: Links,
    costs: Costs = DEFAULT_COSTS,
    *,
    root: int = 0,
    idle: bool = True,
    num_processors: int | None = None,
) -> float:
    """Until the last participant is done, all beginning together."""
    ends_s = exchange_times_s(
        collective,
        operation,
        world,
        num_elements,
        element_bytes,
        links,
        costs,
        root=root,
        idle=idle,
        num_processors=num_processors,
    )
    return max(ends_s, default=0.0)


def alpha_beta_time_s(
    collective: Collective,
    operation: Operation,
    world: World,
    num_elements: int,
    element_bytes: int,
    *,
    alpha_s: float,
    beta_s_per_byte: float,
    gamma_s_per_byte: float = 0.0,
    root: int = 0,
) -> float:
    """The time on a star in the alpha-beta-gamma model (Hockney, Parallel Computing 20, 1994): the cost model with a
    latency, a cost of bytes and a cost of adding, and nothing else."""
    star = Links.star(world.size, rate_bps=1.0, latency_s=alpha_s)
    return exchange_s(
        collective,
        operation,
        world,
        num_elements,
        element_bytes,
        replace(star, s_per_byte=(beta_s_per_byte,) * (2 * world.size)),
        replace(FREE, addition_s_per_byte=gamma_s_per_byte),
        root=root,
    )


class _Timeline:
    """A discrete-event simulation of schedules: events are (time, order of creation, what happens)."""

    def __init__(
        self,
        every: Sequence[Sequence[Step]],
        element_bytes: int,
        links: Links,
        costs: Costs,
        begins_s: Sequence[float],
        num_processors: int | None,
    ) -> None:
        self._every = every
        self._element_bytes = element_bytes
        self._links, self._costs, self._begins_s = links, costs, begins_s
        self._members = [Progress(steps, dependencies(steps)) for steps in every]
        self._free_s = [0.0] * len(links.s_per_byte)
        bursts_bytes = links.burst_bytes or [0.0] * len(links.s_per_byte)
        self._burst_s = [burst * each_s for burst, each_s in zip(bursts_bytes, links.s_per_byte, strict=True)]
        self._participant_free_s = list(begins_s)
        self._processors_free_s = [0.0] * (num_processors or 0)
        """Those that are shared; none where each participant has its own."""
        self._ends_s = list(begins_s)
        self._leaving: set[Pair] = set()
        self._num_arrived: dict[Pair, int] = {}
        self._paths: dict[Pair, tuple[Sequence[int], float]] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._now_s = 0.0

    def run(self) -> list[float]:
        """When each participant is done."""
        for number, begins_s in enumerate(self._begins_s):
            self._at(begins_s, partial(self._begin, number))
        while self._events:
            self._now_s, _, happen = heapq.heappop(self._events)
            happen()
        stuck = [number for number, member in enumerate(self._members) if member.num_left]
        if stuck:
            raise DeadlockError(f"participants {stuck} wait for each other or for a message that is never sent")
        return self._ends_s

    def _begin(self, number: int) -> None:
        member = self._members[number]
        for index, step in enumerate(member.steps):
            if step.kind == "add" and not member.waiting[index]:
                self._add(number, index)
        for lane in member.lanes:
            self._advance(number, lane[0], sends=lane[1] == "send")

    def _at(self, time_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, self._num_events, happen))
        self._num_events += 1

    def _advance(self, number: int, peer: int, *, sends: bool) -> None:
        """Start whatever is next in a lane and ready."""
        if self._now_s < self._begins_s[number]:
            return
        member = self._members[number]
        lane = member.lanes.get((peer, "send" if sends else "receive"))
        while lane and not member.waiting[lane[0]]:
            if sends:
                if (number, peer) in self._leaving:
                    return
                self._send(number, peer, lane.popleft())
            elif self._num_arrived.get((peer, number), 0):
                self._num_arrived[peer, number] -= 1
                self._receive(number, lane.popleft())
            else:
                return

    def _path(self, pair: Pair) -> tuple[Sequence[int], float]:
        if pair not in self._paths:
            self._paths[pair] = self._links.paths(pair), self._links.latency_s(pair)
        return self._paths[pair]

    def _busy(self, number: int, duration_s: float) -> float:
        """When a processor has done that for the participant, beginning now at the earliest."""
        ready_s = max(self._now_s, self._participant_free_s[number])
        if not self._processors_free_s:
            self._participant_free_s[number] = ready_s + duration_s
            return ready_s + duration_s
        taken = self._processor(ready_s)
        done_s = max(ready_s, self._processors_free_s[taken]) + duration_s
        self._participant_free_s[number] = self._processors_free_s[taken] = done_s
        return done_s

    def _processor(self, ready_s: float) -> int:
        """For work that is ready then: of those that are free, the one that became free last, so that the others stay
        free for whoever is ready before; else the one that becomes free first."""
        free = [each for each, free_s in enumerate(self._processors_free_s) if free_s <= ready_s]
        if free:
            return max(free, key=self._processors_free_s.__getitem__)
        return min(range(len(self._processors_free_s)), key=self._processors_free_s.__getitem__)

    def _send(self, number: int, peer: int, index: int) -> None:
        handed_s = self._busy(number, self._costs.message_s)
        size_bytes = self._every[number][index].chunk.count * self._element_bytes + self._links.header_bytes
        path, latency_s = self._path((number, peer))
        self._leaving.add((number, peer))
        first = path[0]
        begins_s = max(handed_s, self._free_s[first])
        left_s = max(handed_s, self._take(first, handed_s, size_bytes))
        self._at(left_s, lambda: self._sent(number, peer, index))
        arrives_s = begins_s + latency_s + self._costs.host_latency_s
        behind_s = latency_s + self._costs.host_latency_s
        self._at(arrives_s, lambda: self._cross(number, peer, size_bytes, 1, left_s + behind_s))

    def _take(self, link: int, now_s: float, size_bytes: int) -> float:
        """When the last of so many bytes that begin to come now leave the link: a token bucket in the form of the
        virtual scheduling algorithm (ITU-T I.371, GCRA). After rest this may lie in the past: all of them are in its
        burst."""
        lasts_s = size_bytes * self._links.s_per_byte[link]
        self._free_s[link] = max(self._free_s[link], now_s - self._burst_s[link]) + lasts_s
        return self._free_s[link]

    def _sent(self, number: int, peer: int, index: int) -> None:
        self._leaving.remove((number, peer))
        self._advance(number, peer, sends=True)
        self._done(number, index)

    def _cross(self, sender: int, receiver: int, size_bytes: int, hop: int, until_s: float) -> None:
        """The next link, now that the message begins to come there; its last byte comes there at `until_s`. Only now:
        of all messages to one link, the one that comes first has it first."""
        path, _ = self._path((sender, receiver))
        if hop == len(path):
            self._at(max(until_s, self._now_s), lambda: self._arrive(sender, receiver))
            return
        link = path[hop]
        begins_s = max(self._now_s, self._free_s[link])
        passed_s = max(self._take(link, self._now_s, size_bytes), until_s)
        if hop + 1 == len(path):
            self._at(passed_s, lambda: self._arrive(sender, receiver))
        else:
            self._at(begins_s, lambda: self._cross(sender, receiver, size_bytes, hop + 1, passed_s))

    def _arrive(self, sender: int, receiver: int) -> None:
        self._num_arrived[sender, receiver] = self._num_arrived.get((sender, receiver), 0) + 1
        self._advance(receiver, sender, sends=False)

    def _receive(self, number: int, index: int) -> None:
        step = self._every[number][index]
        adding_s = step.chunk.count * self._element_bytes * self._costs.addition_s_per_byte
        taken_s = self._costs.message_s + (adding_s if step.kind == "reduce" else 0.0)
        self._at(self._busy(number, taken_s) if taken_s else self._now_s, lambda: self._done(number, index))

    def _add(self, number: int, index: int) -> None:
        adding_s = self._every[number][index].chunk.count * self._element_bytes * self._costs.addition_s_per_byte
        self._at(self._busy(number, adding_s), lambda: self._done(number, index))

    def _done(self, number: int, index: int) -> None:
        member = self._members[number]
        member.done(index)
        self._ends_s[number] = max(self._ends_s[number], self._now_s)
        for later in member.order.successors[index]:
            if not member.waiting[later]:
                step = self._every[number][later]
                if step.kind == "add":
                    self._add(number, later)
                else:
                    self._advance(number, step.peer, sends=step.kind == "send")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shape:
    """What a candidate's operation is made of, whatever the size."""

    num_rounds: float
    """Messages that wait for each other."""
    num_messages: int
    """Of the busiest participant."""
    num_peers: int
    """To whom it sends."""
    share: float
    """Of the buffer: what the busiest participant's link carries in one direction."""


@lru_cache(maxsize=NUM_SHAPES)
def _shape(collective: Collective, operation: Operation, world: World) -> _Shape | None:
    num_elements = 16 * world.num_workers  # so few that every message travels whole
    counts = sent_bytes(collective, operation, world, num_elements, 1)
    if not counts:
        return None
    sent, received, messages = ([0] * world.size for _ in range(3))
    for (sender, receiver), count in counts.items():
        sent[sender] += count.payload_bytes
        received[receiver] += count.payload_bytes
        messages[sender] += count.num_messages
    return _Shape(
        num_rounds=alpha_beta_time_s(collective, operation, world, num_elements, 1, alpha_s=1.0, beta_s_per_byte=0.0),
        num_messages=max(messages),
        num_peers=max(Counter(sender for sender, _ in counts).values()),
        share=max(*sent, *received) / num_elements,
    )


def _tcp_s(
    collective: Collective, operation: Operation, world: World, size_bytes: int, links: Links, *, idle: bool
) -> float:
    """What slow start and overflowing queues cost, on the slowest and longest path."""
    shape = _shape(collective, operation, world)
    if shape is None:
        return 0.0
    pairs = [(0, peer) for peer in range(1, world.size)]
    round_trip_s = 2 * max(map(links.latency_s, pairs))
    bytes_per_s = 1 / max(links.s_per_byte[link] for pair in pairs for link in links.paths(pair))
    concurrent = min(max(1.0, shape.num_messages / shape.num_rounds), shape.num_peers)
    num_turns = 1.0 if concurrent == shape.num_peers else shape.num_messages / concurrent
    carried_bytes = shape.share * size_bytes
    lost_s = slow_start_cost_s(
        carried_bytes / num_turns,
        window_bytes=concurrent * INITIAL_WINDOW_BYTES,
        round_trip_s=round_trip_s,
        bytes_per_s=bytes_per_s,
    )
    overflows = carried_bytes / shape.num_rounds > bytes_per_s * round_trip_s + links.queue_bytes
    return idle * num_turns * lost_s + overflows * shape.num_rounds * (concurrent - 1) * round_trip_s


def slow_start_cost_s(num_bytes: float, *, window_bytes: float, round_trip_s: float, bytes_per_s: float) -> float:
    """How much longer so many bytes take than at the link's rate, if a window leaves in the first round trip and twice
    as much in every further one: after each window but the last the link idles until the round trip is over. Without
    losses and delayed acknowledgements."""
    lost_s = 0.0
    while num_bytes > window_bytes and window_bytes < bytes_per_s * round_trip_s:
        lost_s += round_trip_s - window_bytes / bytes_per_s
        num_bytes -= window_bytes
        window_bytes *= 2
    return lost_s
