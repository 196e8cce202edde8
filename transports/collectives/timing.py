"""How long a collective takes: the one cost model, of which predictions, fusion and `auto` are made.

LogGP with a schedule's own dependencies (Alexandrov et al., "LogGP: incorporating long messages into the LogP model",
SPAA 1995) on the links that there are: a message takes its sender's processor for the overhead and for its bytes,
crosses link after link at each one's rate, in the order in which messages come, arrives a latency later, takes its
receiver's processor for the overhead and its bytes and, where it is added, for as long as that takes. Participants of
one machine share its cores.

Links are token buckets (ITU-T I.371), which let a packet pass whole as soon as it may pass at all, and what TCP hands
them are super-frames: the last one of a message comes all at once, and a timer of the kernel later than tokens allow
where it waits for them. Bytes are worked on as they come, so that only those of the last super-frame are waited for.

TCP lets a connection have no more under way than its window. One that has been idle begins with ten segments
(RFC 6928; RFC 5681, 4.1) and gains what is acknowledged (slow start: RFC 5681, 3.1) while it fills its window, until
its path is full; what one exchange leaves of that the next one finds. Nothing is lost.
A link that is slower than the one before it keeps a queue. Acknowledgements of what goes the other way wait in it with
the data (Zhang, Shenker, Clark, "Observations on the dynamics of a congestion control algorithm: the effects of two-way
traffic", SIGCOMM 1991).
Concurrent senders whose round is more than the path and a queue hold overflow it together (incast), where the path
holds more than the queue: each but one of them then takes a round trip to repair that.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple

from transports.collectives.base import Collective, Operation, World
from transports.collectives.cost import DeadlockError, Progress, sent_bytes
from transports.collectives.costs import DEFAULT_COSTS, FREE, Costs
from transports.collectives.network_info import DEFAULT_QUEUE_BYTES
from transports.collectives.schedules.expanded import Schedules, schedules

PACKET_BYTES: Final = 1448
"""Of payload, in a segment of Ethernet's MTU."""
INITIAL_WINDOW_BYTES: Final = 10 * PACKET_BYTES
IDLE_S: Final = 0.2
"""After so long without data a connection of Linux begins anew (net.ipv4.tcp_slow_start_after_idle): the least timeout
of retransmissions (TCP_RTO_MIN)."""
GATHERED_BYTES: Final = 256 * 1024
NUM_GATHERED: Final = 16
"""What is ready for one peer is handed to TCP in calls of at most so much, and of so many messages (`_tcp/tcp.c`)."""
SUPER_FRAME_BYTES: Final = 62 * 1024
LAST_BYTES: Final = 128 * 1024
"""What is the last for a peer, and longer than the first of these but not than the second, leaves in even pieces that
an interface takes at once (`_tcp/tcp.c`, `cut_evenly`)."""
NUM_PIECES: Final = 8
"""Into so many a message is cut, so that connections take turns on a link that they share."""
NUM_SHAPES: Final = 4096
_DIGITS: Final = 6
"""Of seconds that a connection has been idle: what is alike is found alike."""
_MOST_HALVINGS: Final = 64
"""More leave nothing of any window."""
Pair = tuple[int, int]


class Connection(NamedTuple):
    """What TCP remembers of one direction of a connection between two exchanges."""

    window_bytes: float
    """So much may be under way."""
    idle_s: float
    """How long before the end of the exchange it sent for the last time."""


Connections = frozenset[tuple[Pair, Connection]]
"""Those that have sent; any other is new, or has been idle."""
_NEW: Final = Connection(INITIAL_WINDOW_BYTES, 0.0)


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
    """By link, the payload that may pass at once after it has been idle (a token bucket's depth); empty: none may."""
    frame_bytes: Sequence[int] = ()
    """By link, the payload of the longest packet that is sent to it, a super-frame; empty: none to speak of."""

    def round_trip_s(self, pair: Pair) -> float:
        """Of nothing."""
        return self.latency_s(pair) + self.latency_s((pair[1], pair[0]))

    def full_bytes(self, pair: Pair) -> float:
        """What is under way between them, and acknowledged, while no link of the path idles, however much waits in
        queues, with its acknowledgements as well."""
        queues = *self.queues(pair), *self.queues((pair[1], pair[0]))
        around_s = self.round_trip_s(pair) + sum(self.queue_bytes * self.s_per_byte[link] for link in queues)
        return around_s / max(self.s_per_byte[link] for link in self.paths(pair))

    def queues(self, pair: Pair) -> list[int]:
        """The links of the path that keep a queue, whoever else sends: those slower than the one before."""
        before_after = pairwise(self.paths(pair))
        return [after for before, after in before_after if self.s_per_byte[after] > self.s_per_byte[before]]

    def quiet_class_s(self, quiet_s: float) -> float:
        """As good as `quiet_s` to an exchange: one of few numbers, so that what was computed serves again."""
        if quiet_s > IDLE_S:
            return inf
        filled_s = max((each * s for each, s in zip(self.burst_bytes, self.s_per_byte, strict=False)), default=0.0)
        return IDLE_S if quiet_s >= filled_s else quiet_s

    @classmethod
    def star(
        cls,
        size: int,
        *,
        rate_bps: float,
        latency_s: float,
        header_bytes: int = 0,
        queue_bytes: float | None = None,
        burst_bytes: float = 0.0,
        frame_bytes: int = 0,
    ) -> "Links":
        """One full-duplex link for each participant: up is its number, down comes `size` later."""
        return cls(
            s_per_byte=(8 / rate_bps,) * (2 * size),
            paths=lambda pair: (pair[0], size + pair[1]),
            latency_s=lambda _: latency_s,
            header_bytes=header_bytes,
            queue_bytes=DEFAULT_QUEUE_BYTES if queue_bytes is None else queue_bytes,
            burst_bytes=(burst_bytes,) * (2 * size),
            frame_bytes=(frame_bytes,) * (2 * size),
        )


class Exchanged(NamedTuple):
    """What became of an exchange."""

    ends_s: list[float]
    """When each participant is done."""
    connections: Connections | None
    """For the next exchange; None: theirs may have under way whatever they want."""
    links_free_s: Sequence[float] = ()
    """When each link has sent all of it; empty: all idle once the last participant is done."""

    @property
    def end_s(self) -> float:
        """When the last one is."""
        return max(self.ends_s, default=0.0)

    def slowest_s(self, begins_s: Sequence[float] = ()) -> float:
        """The longest time that one of those participants had who began then, by its own clock; empty: all at 0."""
        if not begins_s:
            return self.end_s
        return max(end_s - begin_s for end_s, begin_s in zip(self.ends_s, begins_s, strict=False))


def exchanged(
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
    quiet_s: float = inf,
    connections: Connections | None = None,
    links_free_s: Sequence[float] = (),
) -> Exchanged:
    """When each participant is done, given when each begins; all begin at 0 where nothing is said. Before the first
    did, nothing was sent for `quiet_s`: bursts fill in that time. The connections are as the exchange before it has
    left them; None: as large as may be, and new after IDLE_S. Links are busy until `links_free_s` with what was before:
    who is done early begins the next exchange while others still have the last bytes of this one to come.

    Raises DeadlockError for a schedule that never ends.
    """
    collective = collective.chosen_for(operation, world, num_elements, element_bytes=element_bytes)
    every = schedules(collective, operation, world, num_elements, element_bytes, root=root)
    found = frozenset() if connections is None and quiet_s > IDLE_S else connections
    if not costs.tcp:
        found = None
    begins_s = begins_s or [0.0] * world.size
    timeline = _Timeline(every, element_bytes, links, costs, begins_s, quiet_s, found, links_free_s)
    ends_s = timeline.run()
    overflow_s = 0.0
    if costs.tcp:
        overflow_s = _overflow_s(collective, operation, world, num_elements * element_bytes, links)
    ends_s = [end_s + overflow_s for end_s in ends_s]
    return Exchanged(ends_s, timeline.connections(max(ends_s, default=0.0)), timeline.links_free_s)


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
    quiet_s: float = inf,
) -> float:
    """Until the last participant is done, all beginning together."""
    return exchanged(
        collective, operation, world, num_elements, element_bytes, links, costs, root=root, quiet_s=quiet_s
    ).end_s


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


@dataclass(slots=True)
class _Stream:
    """What one participant sends to another: TCP cuts it into super-frames without regard to messages."""

    last_s: float
    """When something of it left for the last time."""
    window_bytes: float = inf
    """How much may be under way."""
    full_bytes: float = 0.0
    """What fills the path: no window as large keeps anything waiting."""
    limited: bool = False
    """Whether a window can be smaller than that."""
    queues_back: Sequence[int] = ()
    """The links in whose queues its acknowledgements wait."""
    timeout_s: float = inf
    """Of retransmissions: for each that passes without data the window is halved."""
    sent_bytes: int = 0
    acknowledged_bytes: int = 0
    filled: bool = False
    """Whether the window was, and nothing says yet that it no longer is."""
    filled_bytes: int = 0
    """How much had been sent when it was for the last time."""
    most_bytes: int = 0
    """That were under way when either was seen."""
    held: "_Message | None" = None
    """By the window: whose next piece waits for acknowledgements."""
    leaving: bool = False
    num_gathered: int = 0
    """Messages that were handed over with the one before them, in one call."""
    call_bytes: int = LAST_BYTES
    """Of what is handed over in one call: super-frames do not reach from one into the next."""
    num_bytes: int = 0
    """Of what was handed over together, up to where the message under way has been sent."""

    @property
    def flight_bytes(self) -> int:
        """Which are under way, or their acknowledgement is."""
        return self.sent_bytes - self.acknowledged_bytes

    def look(self, *, ends: bool) -> None:
        """Whether the window is filled, as Linux sees it when it has sent (tcp_output.c, tcp_cwnd_validate); that it is
        not, when a message `ends` and what had filled it has been acknowledged."""
        if self.flight_bytes > self.window_bytes - PACKET_BYTES:
            self.filled, self.filled_bytes, self.most_bytes = True, self.sent_bytes, self.flight_bytes
        elif ends and self.acknowledged_bytes >= self.filled_bytes:
            self.filled, self.most_bytes = False, self.flight_bytes

    def acknowledge(self, num_bytes: int) -> None:
        """Slow start (tcp.h, tcp_is_cwnd_limited), until the path is full twice: the queue holds what it does not."""
        self.acknowledged_bytes += num_bytes
        if self.filled or self.window_bytes < 2 * self.most_bytes:
            self.window_bytes = max(self.window_bytes, min(self.window_bytes + num_bytes, 2 * self.full_bytes))

    def restart(self, now_s: float) -> None:
        """As Linux does (tcp_output.c, tcp_cwnd_restart), after RFC 2861."""
        num_halvings = int(min((now_s - self.last_s) / self.timeout_s, _MOST_HALVINGS))
        halved_bytes = self.window_bytes / 2**num_halvings
        self.window_bytes = max(halved_bytes, min(self.window_bytes, INITIAL_WINDOW_BYTES))


class _Piece(NamedTuple):
    """Some super-frames of a message, or all of it: what takes its turn on links that others use as well."""

    num_bytes: int
    last_bytes: int
    """Of them in the last super-frame, which may have begun before."""
    frame_bytes: int
    """Of the message's longest super-frame; 0: none to speak of."""


@dataclass(slots=True)
class _Message:
    """One on its way."""

    sender: int
    receiver: int
    index: int
    """Of the sender's step."""
    handed_s: float
    """When the first of it may leave."""
    copied_s: float
    """When the sender's processor has done its part."""
    pieces: deque[_Piece]
    """That have not left."""

    @property
    def pair(self) -> Pair:
        return self.sender, self.receiver


class _Timeline:
    """A discrete-event simulation of schedules: events are (time, order of creation, what happens)."""

    def __init__(
        self,
        every: Schedules,
        element_bytes: int,
        links: Links,
        costs: Costs,
        begins_s: Sequence[float],
        quiet_s: float,
        connections: Connections | None,
        links_free_s: Sequence[float],
    ) -> None:
        self._every = every
        self._connections = None if connections is None else dict(connections)
        self._element_bytes = element_bytes
        self._links, self._costs, self._begins_s = links, costs, begins_s
        self._members = [Progress(steps, order) for steps, order in zip(every, every.orders, strict=True)]
        first_s = min(begins_s, default=0.0)
        self._last_s = first_s - quiet_s
        busy_s = links_free_s or [-inf] * len(links.s_per_byte)
        self._free_s = [max(first_s - quiet_s, each_s) for each_s in busy_s]
        bursts_bytes = links.burst_bytes or [0.0] * len(links.s_per_byte)
        self._burst_s = [burst * each_s for burst, each_s in zip(bursts_bytes, links.s_per_byte, strict=True)]
        # No shaper is without a burst.
        self._late_s = [costs.shaper_late_s if each_s else 0.0 for each_s in self._burst_s]
        self._frame_bytes = links.frame_bytes or [0] * len(links.s_per_byte)
        self._processor_free_s = list(begins_s)
        self._cores_free_s = [first_s] * (costs.num_cores or len(every))
        self._ends_s = list(begins_s)
        self._streams: dict[Pair, _Stream] = {}
        self._arrived: dict[Pair, deque[_Piece]] = {}
        """Of messages that are not yet received, the last piece."""
        self._paths: dict[Pair, tuple[Sequence[int], float]] = {}
        pairs = {(number, step.peer) for number, steps in enumerate(every) for step in steps if step.kind == "send"}
        self._num_pairs = Counter(link for pair in pairs for link in links.paths(pair))
        """Of those that send to each other, by link that they share."""
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

    @property
    def links_free_s(self) -> list[float]:
        """When each link has sent everything."""
        return self._free_s

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
                stream = self._stream((number, peer))
                if stream.leaving:
                    return
                stream.num_gathered = stream.num_bytes = 0
                self._send(number, peer, lane.popleft(), stream)
            elif arrived := self._arrived.get((peer, number)):
                self._receive(number, lane.popleft(), arrived.popleft())
            else:
                return

    def _stream(self, pair: Pair) -> _Stream:
        if pair in self._streams:
            return self._streams[pair]
        stream = _Stream(last_s=self._last_s)
        if self._connections is not None:
            stream.full_bytes = self._links.full_bytes(pair)
            stream.limited = stream.full_bytes > INITIAL_WINDOW_BYTES
            window_bytes, idle_s = self._connections.get(pair, _NEW)
            stream.window_bytes = window_bytes
            stream.last_s -= idle_s
            stream.queues_back = self._links.queues((pair[1], pair[0]))
            stream.timeout_s = IDLE_S + self._links.round_trip_s(pair)
        self._streams[pair] = stream
        return stream

    def connections(self, end_s: float) -> Connections | None:
        """As they are at the end of the exchange."""
        if self._connections is None:
            return None
        used = {
            pair: Connection(stream.window_bytes, round(end_s - stream.last_s, _DIGITS))
            for pair, stream in self._streams.items()
            if stream.limited
        }
        idle_s = end_s - self._last_s
        others = {
            pair: each._replace(idle_s=round(each.idle_s + idle_s, _DIGITS)) for pair, each in self._connections.items()
        }
        return frozenset({**others, **used}.items())

    def _path(self, pair: Pair) -> tuple[Sequence[int], float]:
        if pair not in self._paths:
            latency_s = self._links.latency_s(pair) + self._costs.host_latency_s
            self._paths[pair] = self._links.paths(pair), latency_s
        return self._paths[pair]

    def _busy(
        self, number: int, duration_s: float, *, since_s: float | None = None, rest_s: float | None = None
    ) -> float:
        """When the participant's processor, and with it one of the cores, has done that: it could begin at `since_s`
        (now), and `rest_s` of it could not be done before now (all)."""
        core_s = heapq.heappop(self._cores_free_s) if self._costs.num_cores else 0.0
        begins_s = max(self._now_s if since_s is None else since_s, self._processor_free_s[number], core_s)
        done_s = max(begins_s + duration_s, self._now_s + (duration_s if rest_s is None else rest_s))
        self._processor_free_s[number] = done_s
        if self._costs.num_cores:
            heapq.heappush(self._cores_free_s, done_s)
        return done_s

    def _size_bytes(self, number: int, index: int) -> int:
        return self._every[number][index].chunk.count * self._element_bytes + self._links.header_bytes

    def _send(self, number: int, peer: int, index: int, stream: _Stream) -> None:
        """Hand it over: the first super-frame leaves while the next one is copied. What was gathered with the message
        before this has been there with it."""
        size_bytes = self._size_bytes(number, index)
        is_there = stream.num_gathered > 0
        if is_there:
            stream.num_gathered -= 1
        elif not stream.num_bytes:
            stream.num_gathered, stream.call_bytes = self._gathered(number, peer, size_bytes)
        frame_bytes = min(self._frame_bytes[self._path((number, peer))[0][0]], stream.call_bytes)
        copied_s = self._busy(number, self._costs.message_s + size_bytes * self._costs.copy_s_per_byte)
        later_bytes = size_bytes - min(size_bytes, frame_bytes or size_bytes)
        handed_s = copied_s - later_bytes * self._costs.copy_s_per_byte
        if is_there:
            handed_s = copied_s = self._now_s
        stream.leaving = True
        num_pieces = NUM_PIECES if self._shares((number, peer)) else 1
        pieces = _pieces(stream.num_bytes, size_bytes, frame_bytes, num_pieces, stream.call_bytes)
        stream.num_bytes += size_bytes
        self._push(_Message(number, peer, index, handed_s, copied_s, deque(pieces)))

    def _shares(self, pair: Pair) -> bool:
        """Whether others use a link of that path: else nobody takes turns, and messages need no pieces."""
        return any(self._num_pairs[link] > 1 for link in self._path(pair)[0])

    def _push(self, message: _Message) -> None:
        """Its next piece, or what of it the window lets go."""
        stream, now_s = self._streams[message.pair], max(self._now_s, message.handed_s)
        if stream.limited and not stream.flight_bytes:
            stream.restart(now_s)
        if stream.window_bytes < stream.full_bytes:
            free_bytes = stream.window_bytes - stream.flight_bytes
            if free_bytes < min(PACKET_BYTES, message.pieces[0].num_bytes):
                stream.held = message
                stream.look(ends=False)
                return
            frame_bytes = self._frame_bytes[self._path(message.pair)[0][0]]
            longest_bytes = min(free_bytes, max(frame_bytes, stream.window_bytes / NUM_PIECES, PACKET_BYTES))
            _cut_first(message.pieces, int(longest_bytes // PACKET_BYTES) * PACKET_BYTES)
        piece = message.pieces.popleft()
        path, latency_s = self._path(message.pair)
        begins_s = max(now_s, self._free_s[path[0]])
        ends = not message.pieces
        there_s = max(now_s, message.copied_s) if ends else now_s
        left_s = self._take(path[0], now_s, piece, there_s, ends=ends)
        if stream.limited:
            stream.last_s = now_s
            stream.sent_bytes += piece.num_bytes
            stream.look(ends=ends)
        self._at(left_s, lambda: self._left(message))
        self._at(
            min(begins_s, left_s) + latency_s,
            lambda: self._cross(message.pair, piece, 1, left_s + latency_s, ends=ends),
        )

    def _acknowledge(self, pair: Pair, num_bytes: int) -> None:
        """It came: say so, behind what waits on the way back."""
        back, links = (pair[1], pair[0]), self._links
        waits_s = sum(
            min(max(self._free_s[link] - self._now_s, 0.0), links.queue_bytes * links.s_per_byte[link])
            for link in self._streams[pair].queues_back
        )
        self._at(self._now_s + links.latency_s(back) + waits_s, lambda: self._acknowledged(pair, num_bytes))

    def _acknowledged(self, pair: Pair, num_bytes: int) -> None:
        """The sender hears of it and goes on."""
        stream = self._streams[pair]
        stream.acknowledge(num_bytes)
        if stream.held is not None:
            message, stream.held = stream.held, None
            self._push(message)

    def _left(self, message: _Message) -> None:
        """A piece of it has."""
        if message.pieces:
            self._push(message)
        else:
            self._sent(*message.pair, message.index)

    def _gathered(self, number: int, peer: int, num_bytes: int) -> tuple[int, int]:
        """How many messages to that peer are ready besides one of so many bytes, and go with it, and how much goes in
        each call."""
        member, num = self._members[number], 0
        lane = member.lanes[peer, "send"]
        for index in lane:
            if member.waiting[index] or num + 1 >= NUM_GATHERED or num_bytes >= GATHERED_BYTES:
                break
            num_bytes += self._size_bytes(number, index)
            num += 1
        if num < len(lane) or not SUPER_FRAME_BYTES < num_bytes <= LAST_BYTES:
            return num, num_bytes
        return num, -(-num_bytes // -(-num_bytes // SUPER_FRAME_BYTES))

    def _take(self, link: int, now_s: float, piece: _Piece, there_s: float, *, ends: bool) -> float:
        """When the end of a piece that begins to come now leaves the link, with its last super-frame, which is there at
        `there_s`: a token bucket in the form of the virtual scheduling algorithm (ITU-T I.371, GCRA). One that `ends` a
        message and waits for tokens leaves as much later as the shaper is late; what follows it makes up for that."""
        s_per_byte = self._links.s_per_byte[link]
        self._free_s[link] = max(self._free_s[link], now_s - self._burst_s[link]) + piece.num_bytes * s_per_byte
        allowed_s = self._free_s[link] - piece.last_bytes * s_per_byte
        if allowed_s <= there_s:  # after rest this may lie in the past: all of it is in the link's burst
            return there_s
        return allowed_s + self._late_s[link] if ends else allowed_s

    def _sent(self, number: int, peer: int, index: int) -> None:
        stream, member = self._streams[number, peer], self._members[number]
        stream.leaving = False
        if stream.num_gathered:
            self._send(number, peer, member.lanes[peer, "send"].popleft(), stream)
        else:
            self._advance(number, peer, sends=True)
        self._done(number, index)

    def _cross(self, pair: Pair, piece: _Piece, hop: int, until_s: float, *, ends: bool) -> None:
        """The next link, now that the piece begins to come there; its last byte comes there at `until_s`. Only now: of
        all pieces to one link, the one that comes first has it first. One that `ends` a message completes it."""
        path, _ = self._path(pair)
        if hop == len(path):
            came_s = max(until_s, self._now_s)
            if ends:
                self._at(came_s, lambda: self._arrive(*pair, piece))
            if self._streams[pair].limited:
                self._at(came_s, lambda: self._acknowledge(pair, piece.num_bytes))
            return
        link = path[hop]
        begins_s = max(self._now_s, self._free_s[link])
        passed_s = self._take(link, self._now_s, piece, max(until_s, self._now_s), ends=ends)
        following_s = passed_s if hop + 1 == len(path) else min(begins_s, passed_s)
        self._at(following_s, lambda: self._cross(pair, piece, hop + 1, passed_s, ends=ends))

    def _arrive(self, sender: int, receiver: int, last: _Piece) -> None:
        self._arrived.setdefault((sender, receiver), deque()).append(last)
        self._advance(receiver, sender, sends=False)

    def _receive(self, number: int, index: int, last: _Piece) -> None:
        """Take what came: the first super-frame once it is whole, and the last one after all others."""
        step, costs = self._every[number][index], self._costs
        adding_s = costs.addition_s_per_byte if step.kind == "reduce" else 0.0
        s_per_byte = costs.copy_s_per_byte + adding_s
        link = self._path((step.peer, number))[0][-1]
        size_bytes = self._size_bytes(number, index)
        frame_bytes = min(size_bytes, last.frame_bytes or size_bytes)
        last_bytes = min(size_bytes, last.last_bytes or size_bytes)
        link_s_per_byte = self._links.s_per_byte[link]
        came_s = self._now_s - (size_bytes - frame_bytes) * link_s_per_byte
        # A short last one comes while the one before it is still worked on.
        behind_s = min(frame_bytes, size_bytes - last_bytes) * s_per_byte - last_bytes * link_s_per_byte
        done_s = self._busy(
            number,
            costs.message_s + size_bytes * s_per_byte,
            since_s=max(came_s, self._begins_s[number]),
            rest_s=costs.message_s + last_bytes * s_per_byte + max(behind_s, 0.0),
        )
        self._at(done_s, lambda: self._done(number, index))

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


def _pieces(start_byte: int, num_bytes: int, frame_bytes: int, num_pieces: int, call_bytes: int) -> Iterator[_Piece]:
    """Of a message that begins there in its stream: so many at most, of whole super-frames but the last of it and of a
    call."""
    if not frame_bytes or not num_bytes:
        yield _Piece(num_bytes, 0, 0)
        return
    num_frames = -(-num_bytes // frame_bytes)
    longest = -(-num_frames // min(num_pieces, num_frames)) * frame_bytes
    begin, whole = start_byte, start_byte + num_bytes
    while begin < whole:
        called = begin // call_bytes * call_bytes
        end = min(begin - (begin - called) % frame_bytes + longest, called + call_bytes, whole)
        yield _Piece(end - begin, (end - called - 1) % frame_bytes + 1, frame_bytes)
        begin = end


def _cut_first(pieces: deque[_Piece], num_bytes: int) -> None:
    """So that the first one is no longer than that; 0: it is short enough."""
    first = pieces[0]
    if 0 < num_bytes < first.num_bytes:
        rest_bytes = first.num_bytes - num_bytes
        pieces[0] = first._replace(num_bytes=rest_bytes, last_bytes=min(first.last_bytes, rest_bytes))
        pieces.appendleft(first._replace(num_bytes=num_bytes, last_bytes=num_bytes))


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


def _overflow_s(collective: Collective, operation: Operation, world: World, size_bytes: int, links: Links) -> float:
    """What overflowing queues cost, on the slowest and longest path. Slow start has up to twice as much under way as
    the path holds before it hears that it is full: a queue that holds as much as the path takes that up."""
    shape = _shape(collective, operation, world)
    if shape is None:
        return 0.0
    pairs = [(0, peer) for peer in range(1, world.size)]
    # Everybody's link, in both directions.
    pairs += [(number, (number + 1) % world.size) for number in range(world.size)]
    round_trip_s = max(map(links.round_trip_s, pairs))
    bytes_per_s = 1 / max(links.s_per_byte[link] for pair in pairs for link in links.paths(pair))
    concurrent = min(max(1.0, shape.num_messages / shape.num_rounds), shape.num_peers)
    path_bytes = bytes_per_s * round_trip_s
    overflows = shape.share * size_bytes / shape.num_rounds > path_bytes + links.queue_bytes > 2 * links.queue_bytes
    return overflows * shape.num_rounds * (concurrent - 1) * round_trip_s
