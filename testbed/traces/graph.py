"""A trace as a graph for each rank: what it computes, what it exchanges, and what waits for what. Pure.

A node is known by its rank and its number, which is its place in the rank's list. It begins when all nodes in `after`
have ended, and when it is its turn:

- A rank computes one thing at a time, in the order in which its computing becomes ready; at once, in the list's.
- The operations of one group are started in the order of the list, as a communicator requires (torch's groups, NCCL's
  communicators). So are sends to one peer with one tag, and receives from one.

An operation ends for all who take part when all of them have started it and its bytes are there. A send may end only
once its receive has been started (MPI 4.1, section 3.5: a program that relies on buffering is unsafe).
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple, get_args

from testbed.errors import SpecError
from transports.channels.framing import DTYPE_BYTES, DTYPES
from transports.collectives.base import Operation

OPERATIONS: Final[tuple[Operation, ...]] = get_args(Operation)
ELEMENT_BYTES: Final[Mapping[str, int]] = dict(zip(DTYPES, DTYPE_BYTES, strict=True))
MAX_NODE_BYTES: Final = 2**36
"""No buffer of a collective is larger; a node that says so is of another unit."""
MAX_DURATION_S: Final = 86_400.0
MAX_RANKS: Final = 65_536
MAX_TAG: Final = 2**31 - 1
_ROOTED: Final[frozenset[Operation]] = frozenset(("broadcast", "reduce", "gather", "scatter"))
IN_PARTS: Final[frozenset[Operation]] = frozenset(("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"))
"""Operations whose larger buffer is as many equal parts as there are members."""


class Compute(NamedTuple):
    """Time that passes on the rank's device."""

    duration_s: float
    name: str = ""
    after: tuple[int, ...] = ()


class Collective(NamedTuple):
    """This rank's part of an operation of a group."""

    operation: Operation
    num_elements: int
    """Of the larger buffer, as :data:`transports.collectives.base.Operation` has it; of an all_to_all with `splits`,
    their sum."""
    element_type: str
    group: str
    root: int | None = None
    """The rank that has, or gets, the whole: of broadcast, reduce, gather and scatter."""
    splits: tuple[int, ...] | None = None
    """Of an all_to_all whose parts differ: elements for each member, by its place in the group."""
    name: str = ""
    after: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of the larger buffer."""
        return self.num_elements * ELEMENT_BYTES[self.element_type]


class _Message(NamedTuple):
    peer: int
    num_elements: int
    element_type: str
    tag: int = 0
    name: str = ""
    after: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of the message."""
        return self.num_elements * ELEMENT_BYTES[self.element_type]


class Send(_Message):
    """A message to another rank."""

    __slots__ = ()


class Receive(_Message):
    """A message from another rank."""

    __slots__ = ()


Node = Compute | Collective | Send | Receive
Exchange = Collective | Send | Receive
Place = tuple[int, int]
"""A rank, and the number of a node there."""


class GraphError(SpecError):
    """A graph that nobody could replay; the message begins with the rank and the node."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One iteration of all ranks; raises GraphError for what nobody could replay."""

    ranks: tuple[tuple[Node, ...], ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Members of each, in ascending order; a member's place in it is its rank there."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def num_ranks(self) -> int:
        """Those that take part."""
        return len(self.ranks)

    @cached_property
    def matches(self) -> tuple[tuple[Place, ...], ...]:
        """The exchanges, each as the nodes of all who take part in it: of a collective by rank, of a message the send
        and then the receive. Those of a group, of a pair and of a tag in their order."""
        return tuple(_matches(self))

    @cached_property
    def first_group_of_all(self) -> str | None:
        """The group of all ranks that a job's own can be; any further one has connections, and an order, of its own."""
        everybody = tuple(range(self.num_ranks))
        return next((name for name, members in self.groups.items() if members == everybody), None)

    def node(self, place: Place) -> Node:
        """The node there."""
        return self.ranks[place[0]][place[1]]

    def num_given(self, sender: Place, rank: int) -> int:
        """Elements that a member of a collective gives to the one of that rank, where it is an all_to_all; 0 of a
        message."""
        node = self.node(sender)
        if not isinstance(node, Collective):
            return 0
        members = self.groups[node.group]
        return node.splits[members.index(rank)] if node.splits else node.num_elements // len(members)

    def compute_s(self, rank: int) -> float:
        """Everything that the rank computes."""
        return sum(node.duration_s for node in self.ranks[rank] if isinstance(node, Compute))

    def longest_compute_s(self) -> float:
        """Everything that the rank computes that computes most."""
        return max(self.compute_s(rank) for rank in range(self.num_ranks))

    @property
    def sent_bytes(self) -> int:
        """Of the larger buffers of all collectives, each counted once, and of all messages."""
        return sum(_size_bytes(self, match) for match in self.matches)

    def critical_path_s(self) -> float:
        """How long an iteration takes where exchanges take no time: computing alone, with the waiting of ranks for each
        other that the graph itself brings (a pipeline's bubbles)."""
        return max(self._without_network.ended_s, default=0.0)

    def longest_wait_s(self) -> float:
        """How long an exchange takes at most, from where one of its ranks starts it, where none takes any time by
        itself: what that rank waits for the computing of others."""
        return self._without_network.longest_wait_s

    @cached_property
    def _without_network(self) -> "_Waits":
        return _without_network(self)


def node_title(place: Place, node: Node) -> str:
    """`rank 2, node 17 (h0)`."""
    name = f" ({node.name})" if node.name else ""
    return f"rank {place[0]}, node {place[1]}{name}"


def lane(node: Node) -> Hashable | None:
    """What a node is started in order with: others of the rank with the same lane, in the list's order. None: with
    nothing."""
    if isinstance(node, Collective):
        return "group", node.group
    if isinstance(node, Send):
        return "send", node.peer, node.tag
    if isinstance(node, Receive):
        return "receive", node.peer, node.tag
    return None


def _size_bytes(graph: Graph, match: Sequence[Place]) -> int:
    nodes = [graph.node(place) for place in match]
    first = nodes[0]
    assert not isinstance(first, Compute), "only exchanges are matched"
    if isinstance(first, Collective) and first.splits is not None:
        return sum(node.size_bytes for node in nodes if not isinstance(node, Compute))
    return first.size_bytes


def _fail(place: Place, node: Node, problem: str) -> GraphError:
    return GraphError(f"{node_title(place, node)}: {problem}")


def _check(graph: Graph) -> None:
    """Raises GraphError, which names the first node that is wrong."""
    if not 1 <= graph.num_ranks <= MAX_RANKS:
        raise GraphError(f"a graph has 1 to {MAX_RANKS} ranks, and this one {graph.num_ranks}")
    for name, members in graph.groups.items():
        _check_name("a group", name)
        _check_group(name, members, graph.num_ranks)
    for rank, nodes in enumerate(graph.ranks):
        for number, node in enumerate(nodes):
            _check_name(f"rank {rank}, node {number}", node.name)
            if problem := _problem(graph, rank, node):
                raise _fail((rank, number), node, problem)
    _check_order(graph)


def _check_name(whose: str, name: str) -> None:
    """Raises GraphError for what JSON can spell and no file or terminal can hold: half a character (`"\\ud800"`)."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise GraphError(f"{whose}: its name {ascii(name)[:40]} is no text") from None


def _check_group(name: str, members: Sequence[int], num_ranks: int) -> None:
    if len(members) < 2:
        raise GraphError(f"group {name}: {len(members)} members have nobody to exchange anything with")
    if sorted(set(members)) != list(members) or members[0] < 0 or members[-1] >= num_ranks:
        raise GraphError(
            f"group {name}: members are different ranks from 0 to {num_ranks - 1} in ascending order, not "
            f"{list(members)[:8]}"
        )


def _problem(graph: Graph, rank: int, node: Node) -> str | None:
    """What is wrong with the node by itself."""
    count = len(graph.ranks[rank])
    for number in node.after:
        if not 0 <= number < count:
            return f"it waits for node {number}, and this rank has nodes 0 to {count - 1}"
    if isinstance(node, Compute):
        if not (math.isfinite(node.duration_s) and 0 <= node.duration_s <= MAX_DURATION_S):
            return f"it computes for {node.duration_s:g} s; allowed: 0 to {MAX_DURATION_S:g} s"
        return None
    if node.element_type not in ELEMENT_BYTES:
        return f"elements are of type {node.element_type!r}; allowed: {', '.join(ELEMENT_BYTES)}"
    if not 0 <= node.num_elements <= MAX_NODE_BYTES // ELEMENT_BYTES[node.element_type]:
        return f"{node.num_elements} elements of {node.element_type}; allowed: none to {MAX_NODE_BYTES} bytes"
    return _collective_problem(graph, rank, node) if isinstance(node, Collective) else _peer_problem(graph, rank, node)


def _peer_problem(graph: Graph, rank: int, node: Send | Receive) -> str | None:
    if not 0 <= node.peer < graph.num_ranks or node.peer == rank:
        return f"rank {rank} of {graph.num_ranks} exchanges no messages with rank {node.peer}"
    if not 0 <= node.tag <= MAX_TAG:
        return f"tag {node.tag}; allowed: 0 to {MAX_TAG}"
    return None


def _collective_problem(graph: Graph, rank: int, node: Collective) -> str | None:
    if node.operation not in OPERATIONS:
        return f"operation {node.operation!r} is not known; allowed: {', '.join(OPERATIONS)}"
    members = graph.groups.get(node.group)
    if members is None:
        return f"there is no group {node.group!r}; there are: {', '.join(graph.groups) or 'none'}"
    if rank not in members:
        return f"rank {rank} is not in group {node.group!r}, whose members are {list(members)[:8]}"
    if (node.root is not None) != (node.operation in _ROOTED):
        return f"{node.operation} {'needs a root' if node.operation in _ROOTED else 'has no root'}"
    if node.root is not None and node.root not in members:
        return f"root {node.root} is not in group {node.group!r}"
    if node.splits is not None:
        return _splits_problem(node, node.splits, len(members))
    if node.operation in IN_PARTS and node.num_elements % len(members):
        return f"{node.num_elements} elements are not {len(members)} equal parts, one for each member"
    if node.operation == "barrier" and node.num_elements:
        return f"a barrier moves no elements, and this one has {node.num_elements}"
    return None


def _splits_problem(node: Collective, splits: Sequence[int], num_members: int) -> str | None:
    if node.operation != "all_to_all":
        return f"only all_to_all has splits, and this is {node.operation}"
    if len(splits) != num_members or min(splits) < 0:
        return f"splits are a number of elements for each of {num_members} members, not {list(splits)[:8]}"
    if sum(splits) != node.num_elements:
        return f"splits are {sum(splits)} elements, and the node has {node.num_elements}"
    return None


def _matches(graph: Graph) -> Iterator[tuple[Place, ...]]:
    """Raises GraphError where ranks disagree."""
    lanes: dict[tuple[int, Hashable], list[int]] = defaultdict(list)
    for rank, nodes in enumerate(graph.ranks):
        for number, node in enumerate(nodes):
            if (key := lane(node)) is not None:
                lanes[rank, key].append(number)
    for name, members in graph.groups.items():
        yield from _group_matches(graph, members, [lanes.get((rank, ("group", name)), []) for rank in members])
    for (rank, _), numbers in lanes.items():
        node = graph.ranks[rank][numbers[0]]
        if isinstance(node, Send):
            others = lanes.get((node.peer, ("receive", rank, node.tag)), [])
            yield from _pair_matches(graph, rank, numbers, node.peer, others)
        elif isinstance(node, Receive) and (node.peer, ("send", rank, node.tag)) not in lanes:
            raise _fail((rank, numbers[0]), node, f"it receives what rank {node.peer} never sends (tag {node.tag})")


def _group_matches(
    graph: Graph, members: Sequence[int], numbers: Sequence[Sequence[int]]
) -> Iterator[tuple[Place, ...]]:
    most = max(range(len(members)), key=lambda place: len(numbers[place]))
    for index, number in enumerate(numbers[most]):
        expected = graph.ranks[members[most]][number]
        match = []
        for rank, own in zip(members, numbers, strict=True):
            if index >= len(own):
                raise _fail(
                    (members[most], number), expected, f"rank {rank} of its group has only {len(own)} operations there"
                )
            node = graph.ranks[rank][own[index]]
            if _kind(node) != _kind(expected):
                raise _fail(
                    (rank, own[index]),
                    node,
                    f"{_kind_text(node)} meets {_kind_text(expected)} of "
                    f"{node_title((members[most], number), expected)}",
                )
            match.append((rank, own[index]))
        yield tuple(match)


def _kind(node: Node) -> tuple[object, ...]:
    """What all members of a collective must say alike."""
    assert isinstance(node, Collective), "the operations of a group"
    size = None if node.splits is not None else node.num_elements
    return node.operation, node.element_type, node.root, size


def _kind_text(node: Node) -> str:
    assert isinstance(node, Collective), "the operations of a group"
    size = "parts of any sizes" if node.splits is not None else str(node.num_elements)
    root = "" if node.root is None else f", root {node.root}"
    return f"{node.operation} of {size} {node.element_type}{root}"


def _pair_matches(
    graph: Graph, sender: int, sends: Sequence[int], receiver: int, receives: Sequence[int]
) -> Iterator[tuple[Place, ...]]:
    for index, number in enumerate(sends):
        node = graph.ranks[sender][number]
        if index >= len(receives):
            raise _fail((sender, number), node, f"rank {receiver} never receives it")
        other = graph.ranks[receiver][receives[index]]
        assert isinstance(node, Send), "found by its kind"
        assert isinstance(other, Receive), "found by its kind"
        if (node.num_elements, node.element_type) != (other.num_elements, other.element_type):
            raise _fail(
                (receiver, receives[index]),
                other,
                f"it expects {other.num_elements} {other.element_type}, and {node_title((sender, number), node)} sends "
                f"{node.num_elements} {node.element_type}",
            )
        yield ((sender, number), (receiver, receives[index]))
    if len(receives) > len(sends):
        other = graph.ranks[receiver][receives[len(sends)]]
        raise _fail((receiver, receives[len(sends)]), other, f"rank {sender} sends {len(sends)} such messages only")


class _Events:
    """A graph of two events for each node, its start and its end; what takes part in one exchange has one end."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.places = [(rank, number) for rank, nodes in enumerate(graph.ranks) for number in range(len(nodes))]
        index = {place: event for event, place in enumerate(self.places)}
        self.num_starts = len(self.places)
        end = {place: self.num_starts + event for place, event in index.items()}
        for match in graph.matches:
            for place in match:
                end[place] = end[match[0]]
        self.successors: dict[int, list[int]] = defaultdict(list)
        self.num_waited: dict[int, int] = defaultdict(int)
        self.events = {*index.values(), *end.values()}
        for place, event in index.items():
            self._edge(event, end[place])
            for number in graph.node(place).after:
                self._edge(end[place[0], number], event)
        for rank, nodes in enumerate(graph.ranks):
            last: dict[Hashable, int] = {}
            for number, node in enumerate(nodes):
                if (key := lane(node)) is None:
                    continue
                if key in last:
                    before = (rank, last[key])
                    self._edge(index[before], index[rank, number])
                    if isinstance(node, Collective):
                        self._edge(end[before], end[rank, number])
                last[key] = number

    def _edge(self, before: int, after: int) -> None:
        self.successors[before].append(after)
        self.num_waited[after] += 1

    def in_order(self) -> Iterator[int]:
        """Events, each after what it waits for; those in a circle, and what waits for them, are left out."""
        waited = dict(self.num_waited)
        ready = [event for event in sorted(self.events, reverse=True) if not waited.get(event)]
        while ready:
            event = ready.pop()
            yield event
            for following in self.successors[event]:
                waited[following] -= 1
                if not waited[following]:
                    ready.append(following)


def _check_order(graph: Graph) -> None:
    """Raises GraphError where nodes wait for each other, on one rank or over several."""
    events = _Events(graph)
    left = events.events.difference(events.in_order())
    if not left:
        return
    circle = _circle(events, left)
    named = list(dict.fromkeys(node_title(place, graph.node(place)) for place in circle))
    shown = ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")
    raise GraphError(f"{named[0]}: it waits for itself, in a circle of {shown}")


def _circle(events: _Events, left: set[int]) -> list[Place]:
    """The nodes of one circle among events that are left over, each of which waits for another of them."""
    before = {following: event for event in left for following in events.successors[event] if following in left}
    seen: dict[int, int] = {}
    walk: list[int] = []
    event = min(left)
    while event not in seen:
        seen[event] = len(walk)
        walk.append(event)
        event = before[event]
    circle = walk[seen[event] :][::-1]
    starts = [events.places[each] for each in circle if each < events.num_starts]
    return starts or [events.places[each - events.num_starts] for each in circle]


class _Waits(NamedTuple):
    """An iteration whose exchanges take no time."""

    ended_s: Sequence[float]
    """When each rank's last node ends."""
    longest_wait_s: float


def _without_network(graph: Graph) -> _Waits:
    events = _Events(graph)
    waited, ready_s = dict(events.num_waited), defaultdict[int, float](float)
    free_s, ended_s = [0.0] * graph.num_ranks, [0.0] * graph.num_ranks
    started_s: dict[int, float] = {}  # by the end, the first start
    longest_wait_s = 0.0
    ready = [(0.0, event) for event in sorted(events.events) if not waited.get(event)]
    while ready:
        moment_s, event = heapq.heappop(ready)
        if event in started_s:
            longest_wait_s = max(longest_wait_s, moment_s - started_s[event])
        if event < events.num_starts:
            rank = events.places[event][0]
            node = graph.node(events.places[event])
            if isinstance(node, Compute):
                moment_s = free_s[rank] = max(moment_s, free_s[rank]) + node.duration_s
            else:
                started_s.setdefault(events.successors[event][0], moment_s)
            ended_s[rank] = max(ended_s[rank], moment_s)
        for following in events.successors[event]:
            ready_s[following] = max(ready_s[following], moment_s)
            waited[following] -= 1
            if not waited[following]:
                heapq.heappush(ready, (ready_s[following], following))
    return _Waits(ended_s, longest_wait_s)
