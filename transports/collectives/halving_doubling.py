"""Halving and doubling: a reduce-scatter that halves what is exchanged in each round, then an all-gather that doubles
it. As few bytes as the ring in 2 log2(N) rounds instead of 2(N-1).

Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur, Rabenseifner, Gropp, IJHPCA 19,
2005, section 4.5.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from transports.collectives.base import COLLECTIVES, Chunk, Operation, Segmented, Step, StepKind, World
from transports.collectives.schedules.folding import Folding, fold
from transports.collectives.schedules.segments import parts

MIN_SEGMENTS: Final = 2
"""So many messages in each exchange, if they are not too short: the first half is added while the second comes."""


@COLLECTIVES.register
class HalvingDoubling(Segmented):
    """Recursive halving, then recursive doubling; with two more rounds when N is no power of two."""

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
        return list(self._all_reduce(fold(world.num_workers, participant), num_elements, element_bytes))

    def _all_reduce(self, folding: Folding, num_elements: int, element_bytes: int) -> Iterator[Step]:
        everything = self.segments(0, num_elements, element_bytes, MIN_SEGMENTS)
        yield from folding.gather(everything)
        if folding.position is not None:
            size = len(folding.members)
            cut = [start for start, _ in parts(num_elements, size)] + [num_elements]

            def chunk(part: range) -> Chunk:
                return Chunk("output", cut[part.start], cut[part.stop] - cut[part.start])

            rounds = [
                (folding.members[position], chunk(sent), chunk(kept))
                for position, sent, kept in _halving(folding.position, size)
            ]
            came: Chunk | None = None
            for peer, sent, kept in rounds:
                yield from self._turn("reduce", peer, sent, kept, came, element_bytes)
                came = kept
            for peer, sent, kept in reversed(rounds):
                yield from self._turn("receive", peer, kept, sent, came, element_bytes)
                came = sent
        yield from folding.spread(everything)

    def _turn(
        self, kind: StepKind, peer: int, sent: Chunk, received: Chunk, came: Chunk | None, element_bytes: int
    ) -> Iterator[Step]:
        """One round, which begins when all of the round before it `came`: with messages of two rounds under way, two
        senders would share a receiver's link, whose queue overflows, and connections idle that wait for the other's."""
        for start, count in self.segments(sent.start, sent.count, element_bytes, MIN_SEGMENTS):
            yield Step("send", Chunk("output", start, count), peer, after=came)
        for start, count in self.segments(received.start, received.count, element_bytes, MIN_SEGMENTS):
            yield Step(kind, Chunk("output", start, count), peer)


def _halving(position: int, size: int) -> list[tuple[int, range, range]]:
    """Each round's peer, by position, the parts that it gets and those that stay."""
    rounds = []
    kept = range(size)
    while len(kept) > 1:
        half = len(kept) // 2
        lower, upper = kept[:half], kept[half:]
        kept, sent = (lower, upper) if position in lower else (upper, lower)
        rounds.append((position ^ half, sent, kept))
    return rounds
