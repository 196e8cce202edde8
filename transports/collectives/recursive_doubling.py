"""Recursive doubling: in each of log2(N) rounds everybody exchanges the whole buffer with a peer twice as far away.

Fewest rounds, log2(N) x S bytes from each: for short messages (Thakur, Rabenseifner, Gropp, IJHPCA 19, 2005, section
4.5). Both of a pair add the same two values, so all end with the same bits.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from transports.collectives.base import COLLECTIVES, Chunk, Operation, Segmented, Step, World
from transports.collectives.schedules.folding import fold


@COLLECTIVES.register
class RecursiveDoubling(Segmented):
    """log2(N) exchanges of everything; two more when N is no power of two."""

    operations: ClassVar[frozenset[Operation]] = frozenset(("all_reduce",))

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
        return list(self._all_reduce(world, participant, self.segments(0, num_elements, element_bytes)))

    def _all_reduce(self, world: World, participant: int, segments: list[tuple[int, int]]) -> Iterator[Step]:
        folding = fold(world.num_workers, participant)
        yield from folding.gather(segments)
        if folding.position is not None:
            distance = 1
            while distance < len(folding.members):
                peer = folding.members[folding.position ^ distance]
                yield from (Step("send", Chunk("output", *segment), peer) for segment in segments)
                yield from (Step("reduce", Chunk("output", *segment), peer) for segment in segments)
                distance *= 2
        yield from folding.spread(segments)
