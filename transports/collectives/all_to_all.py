"""All to all: every worker talks to every other one, in both senses in which papers say "P2P".

`full`: everybody sends its whole gradient to everybody and adds up by itself: one round, (N-1) x S bytes each.
`shards`: everybody owns 1/N of the buffer, adds up what the others send of it and gives them the result; a direct
reduce-scatter and all-gather: two rounds and the ring's bytes, but N-1 flows into every link at once. (Alqahtani and
Demirbas, "Performance analysis and comparison of distributed machine learning systems", ICCCN 2019, do not say which
they mean.)
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Literal

from transports.collectives.base import COLLECTIVES, Chunk, Operation, Segmented, Step, World
from transports.collectives.schedules import direct
from transports.collectives.schedules.segments import parts

MIN_SEGMENTS: Final = 2


@COLLECTIVES.register
class AllToAll(Segmented):
    """Everybody to everybody: whole gradients, or shards."""

    operations: ClassVar[frozenset[Operation]] = frozenset(("all_reduce",))

    exchange: Literal["full", "shards"] = "shards"
    """`full`: whole gradients; `shards`: each worker adds up its own 1/N."""

    def schedule(
        self,
        operation: Operation,  # noqa: ARG002 (there is one)
        world: World,
        participant: int,
        num_elements: int,
        *,
        element_bytes: int,
        root: int = 0,  # noqa: ARG002 (an all-reduce has none)
    ) -> Sequence[Step]:
        """See :class:`Collective`."""
        if self.exchange == "full":
            return list(_full(world.num_workers, participant, self.segments(0, num_elements, element_bytes)))
        workers = range(world.num_workers)
        shards = [self.segments(*part, element_bytes, MIN_SEGMENTS) for part in parts(num_elements, len(workers))]
        return [
            *direct.push(workers, workers, shards, participant),
            *direct.pull(workers, workers, shards, participant),
        ]


def _full(size: int, participant: int, segments: Sequence[tuple[int, int]]) -> Iterator[Step]:
    """Everybody adds in the order of ranks, so that all end with the same bits: those before the participant into
    `scratch`, which then joins its own in `output`."""
    for offset in range(1, size):
        peer = (participant + offset) % size
        yield from (Step("send", Chunk("output", *segment), peer) for segment in segments)
    for segment in segments:
        own, before = Chunk("output", *segment), Chunk("scratch", *segment)
        if participant == 1:
            yield Step("reduce", own, 0)
        elif participant > 1:
            yield Step("receive", before, 0)
            yield from (Step("reduce", before, peer) for peer in range(1, participant))
            yield Step("add", own, participant, before)
        yield from (Step("reduce", own, peer) for peer in range(participant + 1, size))
