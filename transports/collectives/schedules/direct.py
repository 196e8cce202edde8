"""Exchanges in which every message goes straight from who has the values to who needs them.

`push` and `pull` are the two halves of every exchange by shards: each shard has an owner that adds up what the members
have of it and gives them the result. Whom a member serves first depends on who it is, so that not all of them crowd one
owner's link at once.
"""

from collections.abc import Iterator, Sequence

from transports.collectives.base import Chunk, Step
from transports.collectives.schedules.segments import Segments


def push(members: Sequence[int], owners: Sequence[int], shards: Sequence[Segments], participant: int) -> Iterator[Step]:
    """Members send each shard in `output` to its owner, which adds it to its own. Owners are members."""
    position = members.index(participant)
    for number in _rotated(len(owners), position + 1):
        if owners[number] != participant:
            yield from (Step("send", Chunk("output", *segment), owners[number]) for segment in shards[number])
    if participant in owners:
        for segment in shards[owners.index(participant)]:
            for peer in _before(members, position):
                yield Step("reduce", Chunk("output", *segment), peer)


def pull(members: Sequence[int], owners: Sequence[int], shards: Sequence[Segments], participant: int) -> Iterator[Step]:
    """Owners give each of their shards in `output` to all members."""
    position = members.index(participant)
    if participant in owners:
        for peer in reversed(_before(members, position)):
            yield from (Step("send", Chunk("output", *segment), peer) for segment in shards[owners.index(participant)])
    for number in _rotated(len(owners), position + 1):
        if owners[number] != participant:
            yield from (Step("receive", Chunk("output", *segment), owners[number]) for segment in shards[number])


def all_to_all(participant: int, sent: Sequence[tuple[int, int]], received: Sequence[tuple[int, int]]) -> list[Step]:
    """(start, count) of what goes from `input` to each peer, and of what comes from each into `output`: one message per
    pair, so that any lengths meet each other."""
    steps = []
    size = len(sent)
    for offset in range(1, size):
        following, previous = (participant + offset) % size, (participant - offset) % size
        if sent[following][1]:
            steps.append(Step("send", Chunk("input", *sent[following]), following))
        if received[previous][1]:
            steps.append(Step("receive", Chunk("output", *received[previous]), previous))
    return steps


def gather(participant: int, root: int, parts: Sequence[tuple[int, int]]) -> list[Step]:
    """Each `input` becomes a part of the root's `output`."""
    if participant != root:
        count = parts[participant][1]
        return [Step("send", Chunk("input", 0, count), root)] if count else []
    peers = [peer for peer in range(len(parts)) if peer != root and parts[peer][1]]
    return [Step("receive", Chunk("output", *parts[peer]), peer) for peer in peers]


def scatter(participant: int, root: int, parts: Sequence[tuple[int, int]]) -> list[Step]:
    """Each part of the root's `input` becomes one `output`."""
    if participant != root:
        count = parts[participant][1]
        return [Step("receive", Chunk("output", 0, count), root)] if count else []
    peers = [peer for peer in range(len(parts)) if peer != root and parts[peer][1]]
    return [Step("send", Chunk("input", *parts[peer]), peer) for peer in peers]


def dissemination_barrier(participant: int, size: int) -> Iterator[Step]:
    """Round by round everyone hears, directly or not, of twice as many: ceil(log2 size) messages each (Hensgen, Finkel,
    Manber, "Two algorithms for barrier synchronization", IJPP 17, 1988)."""
    distance = 1
    while distance < size:
        yield Step("send", Chunk("output", 0, 1), (participant + distance) % size)
        yield Step("reduce", Chunk("output", 0, 1), (participant - distance) % size)
        distance *= 2


def _rotated(size: int, first: int) -> list[int]:
    return [(first + offset) % size for offset in range(size)]


def _before(members: Sequence[int], position: int) -> list[int]:
    """The others, from the previous one backwards: in the order in which their messages come."""
    return [members[(position - 1 - offset) % len(members)] for offset in range(len(members) - 1)]
