"""Every operation of every collective: its own schedule where it has one, and here what the others get instead.

Reductions to, and copies from, one root go along a binomial tree; what moves parts goes straight from owner to owner;
a barrier disseminates. All of it among the workers: servers take part only where a collective says so.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from transports.collectives.base import Chunk, Collective, Operation, Step, World
from transports.collectives.schedules import binomial, direct
from transports.collectives.schedules.segments import parts, segments

SEGMENT_BYTES: Final = 512 * 1024
"""The longest message of what is sent on, or added, bit by bit."""


def schedule(
    collective: Collective,
    operation: Operation,
    world: World,
    participant: int,
    num_elements: int,
    *,
    element_bytes: int,
    root: int = 0,
) -> Sequence[Step]:
    """The participant's steps, in order. Alone there is nothing to do."""
    if world.num_workers == 1:
        return ()
    if operation in collective.operations:
        return collective.schedule(operation, world, participant, num_elements, element_bytes=element_bytes, root=root)
    if participant >= world.num_workers:
        return ()
    return list(_default(operation, world.num_workers, participant, num_elements, element_bytes, root))


def _default(
    operation: Operation, size: int, participant: int, num_elements: int, element_bytes: int, root: int
) -> Iterator[Step]:
    shares = parts(num_elements, size)
    pieces = segments(0, num_elements, element_bytes=element_bytes, segment_bytes=SEGMENT_BYTES)
    match operation:
        case "reduce":
            yield from binomial.reduce(participant, size, pieces, root)
        case "broadcast":
            yield from binomial.broadcast(participant, size, pieces, root)
        case "gather":
            yield from direct.gather(participant, root, shares)
        case "scatter":
            yield from direct.scatter(participant, root, shares)
        case "all_to_all":
            yield from direct.all_to_all(participant, shares, shares)
        case "barrier":
            yield from direct.dissemination_barrier(participant, size)
        case "all_gather":
            whole = [[share] if share[1] else [] for share in shares]
            yield from direct.pull(range(size), range(size), whole, participant)
        case "reduce_scatter":
            yield from _reduce_scatter(shares, participant, element_bytes)
        case "all_reduce":
            raise AssertionError("every collective has its own way to all_reduce")


def _reduce_scatter(shares: Sequence[tuple[int, int]], participant: int, element_bytes: int) -> Iterator[Step]:
    size = len(shares)
    cut = [segments(*share, element_bytes=element_bytes, segment_bytes=SEGMENT_BYTES) for share in shares]
    own_start = shares[participant][0]
    for offset in range(1, size):
        following = (participant + offset) % size
        yield from (Step("send", Chunk("input", *segment), following) for segment in cut[following])
    for start, count in cut[participant]:
        for offset in range(1, size):
            yield Step("reduce", Chunk("output", start - own_start, count), (participant - offset) % size)
