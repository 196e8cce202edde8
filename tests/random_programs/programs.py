"""Random programs of collectives and messages, as plain data; legal under the rules of MPI and gloo.

A program says what each rank does, one action after another: begin an operation, wait for one that has been begun, or
both in one blocking call. It is legal because its actions come from one sequence over all ranks in which

- a collective is begun by all members of its group at one place, so that all see the group's collectives in one order;
- the two ends of a message may be begun far apart, with anything in between, but the later one only may block, and
  messages of one pair, group and tag are received in the order in which they are sent;
- a rank waits for an operation only after every other has begun it.

Nothing then depends on messages being buffered, and the result on nothing but the program; but for which of several
messages a receive from any source gets, so those are compared as a set.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final, Literal, NamedTuple

from hypothesis import strategies as st

CollectiveKind = Literal[
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_single",
    "reduce_scatter_single",
    "gather",
    "scatter",
    "all_to_all_single",
    "barrier",
]
COLLECTIVES: Final[Sequence[CollectiveKind]] = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_single",
    "reduce_scatter_single",
    "gather",
    "scatter",
    "all_to_all_single",
    "barrier",
)
REDUCTIONS: Final = ("SUM", "MIN", "MAX", "PRODUCT")
BITWISE: Final = ("BAND", "BOR", "BXOR")
"""Of whole numbers only."""
DTYPES: Final = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
LENGTHS: Final = (1, 2, 5, 64, 1000, 40_000)
"""Elements; the longest are several segments of a schedule and more than a socket's buffer takes at once."""
TAGS: Final = (0, 1, 2, 9)
NUM_OPERATIONS_MAX: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    kind: CollectiveKind
    members: tuple[int, ...]
    dtype: str
    length: int
    reduction: str
    root: int
    """As a rank of the world."""
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    members: tuple[int, ...]
    """The group it travels in."""
    source: int
    destination: int
    tag: int
    dtype: str
    length: int
    room: int
    """Elements of the buffer that receives it."""
    any_source: bool
    seed: int


Operation = Collective | Message


class Action(NamedTuple):
    """What a rank does next."""

    verb: Literal["call", "begin", "batch", "wait"]
    """`call` blocks; `batch` begins several messages with batch_isend_irecv."""
    operations: tuple[int, ...]
    """Their numbers; more than one only in a batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    world_size: int
    operations: tuple[Operation, ...]
    actions: tuple[tuple[Action, ...], ...]
    """Of each rank."""

    def __repr__(self) -> str:
        lines = [f"{number}: {operation}" for number, operation in enumerate(self.operations)]
        lines += [
            f"rank {rank}: " + ", ".join(f"{each.verb} {' '.join(map(str, each.operations))}" for each in actions)
            for rank, actions in enumerate(self.actions)
        ]
        return "\n".join(["", *lines])


def groups_of(world_size: int) -> list[tuple[int, ...]]:
    """Every group of two or more ranks, the whole world first."""
    ranks = range(world_size)
    return [group for size in range(world_size, 1, -1) for group in combinations(ranks, size)]


@dataclass(slots=True)
class _Builder:
    """The sequence over all ranks, as it grows."""

    actions: list[list[Action]]
    operations: list[Operation] = field(default_factory=list)
    unbegun: list[tuple[int, int, bool]] = field(default_factory=list)
    """(rank, operation, blocking) of later ends of messages, in the order in which the earlier ones were begun."""
    unawaited: list[tuple[int, int]] = field(default_factory=list)
    """(rank, operation) of those begun that are to be waited for."""

    def add(self, operation: Operation) -> int:
        self.operations.append(operation)
        return len(self.operations) - 1

    def do(self, rank: int, number: int, *, blocking: bool) -> None:
        self.actions[rank].append(Action("call" if blocking else "begin", (number,)))
        if not blocking:
            self.unawaited.append((rank, number))

    def begin_later_end(self, entry: tuple[int, int, bool]) -> None:
        """And before it those that it must not overtake."""
        operation = self.operations[entry[1]]
        older = self.unbegun[: self.unbegun.index(entry)]
        for each in [other for other in older if self._must_not_overtake(operation, other[1])]:
            self.begin_later_end(each)
        self.unbegun.remove(entry)
        rank, number, blocking = entry
        self.do(rank, number, blocking=blocking)

    def before(self, operation: Operation) -> None:
        """Begin the later ends of messages that this operation must not overtake."""
        for entry in [each for each in self.unbegun if self._must_not_overtake(operation, each[1])]:
            if entry in self.unbegun:
                self.begin_later_end(entry)

    def _must_not_overtake(self, operation: Operation, number: int) -> bool:
        other = self.operations[number]
        assert isinstance(other, Message)
        if isinstance(operation, Collective):
            return False
        pair = (operation.members, operation.source, operation.destination)
        if pair != (other.members, other.source, other.destination):
            return False
        return operation.tag == other.tag

    def waitable(self) -> list[tuple[int, int]]:
        unbegun = {number for _, number, _ in self.unbegun}
        return [entry for entry in self.unawaited if entry[1] not in unbegun]

    def wait(self, entry: tuple[int, int]) -> None:
        self.unawaited.remove(entry)
        self.actions[entry[0]].append(Action("wait", (entry[1],)))

    def batch(self, rank: int, numbers: Sequence[int]) -> None:
        self.actions[rank].append(Action("batch", tuple(numbers)))
        self.unawaited += [(rank, number) for number in numbers]


@st.composite
def programs(draw: st.DrawFn, world_sizes: Sequence[int] = (2, 3, 4)) -> Program:
    """Programs. They shrink to fewer, smaller operations that block."""
    world_size = draw(st.sampled_from(world_sizes))
    builder = _Builder([[] for _ in range(world_size)])
    kinds = ["collective", "message", "batch", "any source"]
    for _ in range(draw(st.integers(1, NUM_OPERATIONS_MAX))):
        members = draw(st.sampled_from(groups_of(world_size)))
        kind = draw(st.sampled_from(kinds))
        if kind == "collective":
            _draw_collective(draw, builder, members)
        elif kind == "message":
            _draw_message(draw, builder, members)
        elif kind == "batch":
            _draw_batch(draw, builder, members)
        else:
            _draw_any_source(draw, builder, members)
        _draw_what_was_put_off(draw, builder)
    while builder.unbegun:
        builder.begin_later_end(draw(st.sampled_from(builder.unbegun)))
    for entry in draw(st.permutations(builder.unawaited)):
        builder.wait(entry)
    return Program(
        world_size=world_size,
        operations=tuple(builder.operations),
        actions=tuple(tuple(actions) for actions in builder.actions),
    )


def _draw_collective(draw: st.DrawFn, builder: _Builder, members: tuple[int, ...]) -> None:
    dtype = draw(st.sampled_from(DTYPES))
    operation = Collective(
        kind=draw(st.sampled_from(COLLECTIVES)),
        members=members,
        dtype=dtype,
        length=draw(st.sampled_from(LENGTHS)),
        reduction=draw(st.sampled_from((*REDUCTIONS, *(BITWISE if "int" in dtype else ())))),
        root=draw(st.sampled_from(members)),
        seed=len(builder.operations),
    )
    builder.before(operation)
    number = builder.add(operation)
    for rank in members:
        builder.do(rank, number, blocking=not draw(st.booleans()))


def _message(draw: st.DrawFn, builder: _Builder, members: tuple[int, ...]) -> Message:
    source, destination = draw(st.sampled_from([(one, two) for one in members for two in members if one != two]))
    length = draw(st.sampled_from(LENGTHS))
    return Message(
        members=members,
        source=source,
        destination=destination,
        tag=draw(st.sampled_from(TAGS)),
        dtype=draw(st.sampled_from(DTYPES)),
        length=length,
        room=length + draw(st.sampled_from((0, 3))),
        any_source=False,
        seed=len(builder.operations),
    )


def _draw_message(draw: st.DrawFn, builder: _Builder, members: tuple[int, ...]) -> None:
    operation = _message(draw, builder, members)
    builder.before(operation)
    number = builder.add(operation)
    later_blocks = not draw(st.booleans())
    if not draw(st.booleans()):
        builder.do(operation.source, number, blocking=not draw(st.booleans()))
        builder.do(operation.destination, number, blocking=later_blocks)
        return
    first, second = draw(st.permutations((operation.source, operation.destination)))
    builder.do(first, number, blocking=False)
    builder.unbegun.append((second, number, later_blocks))


def _draw_batch(draw: st.DrawFn, builder: _Builder, members: tuple[int, ...]) -> None:
    numbers: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        operation = _message(draw, builder, members)
        others = [builder.operations[number] for number in numbers]
        if any(_key(operation) == _key(other) for other in others):
            continue
        builder.before(operation)
        numbers.append(builder.add(operation))
    for rank in members:
        own = [number for number in numbers if rank in _ends(builder.operations[number])]
        if own:
            own = draw(st.permutations(own))
        if own:
            builder.batch(rank, own)


def _draw_any_source(draw: st.DrawFn, builder: _Builder, members: tuple[int, ...]) -> None:
    """Several messages to one rank, with a tag of their own."""
    destination = draw(st.sampled_from(members))
    others = [rank for rank in members if rank != destination]
    length, dtype = draw(st.sampled_from(LENGTHS)), draw(st.sampled_from(DTYPES))
    tag = 100 + len(builder.operations)
    numbers = []
    for source in draw(st.lists(st.sampled_from(others), min_size=1, max_size=3)):
        operation = Message(
            members=members,
            source=source,
            destination=destination,
            tag=tag,
            dtype=dtype,
            length=length,
            room=length,
            any_source=True,
            seed=len(builder.operations),
        )
        builder.before(operation)
        numbers.append(builder.add(operation))
    for rank in members:
        for number in numbers:
            if rank in _ends(builder.operations[number]):
                builder.do(rank, number, blocking=not draw(st.booleans()))


def _draw_what_was_put_off(draw: st.DrawFn, builder: _Builder) -> None:
    for _ in range(draw(st.integers(0, 3))):
        waitable = builder.waitable()
        if len(builder.unbegun) > 0 and draw(st.booleans()):
            builder.begin_later_end(draw(st.sampled_from(builder.unbegun)))
        elif waitable:
            builder.wait(draw(st.sampled_from(waitable)))


def _key(operation: Operation) -> tuple[int, int, int]:
    assert isinstance(operation, Message)
    return operation.source, operation.destination, operation.tag


def _ends(operation: Operation) -> tuple[int, int]:
    assert isinstance(operation, Message)
    return operation.source, operation.destination
