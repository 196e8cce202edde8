"""Halving and doubling: a reduce-scatter that halves what is exchanged in each round, then an all-gather that doubles
it. As few bytes as the ring in 2 log2(N) rounds instead of 2(N-1).

Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur, Rabenseifner, Gropp, IJHPCA 19,
2005, section 4.5.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from transports.collectives.base import COLLECTIVES, Chunk, Operation, Segmented, Step, World
from transports.collectives.schedules.folding import Folding, fold
from transports.collectives.schedules.segments import MIN_SEGMENT_BYTES, parts

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
            rounds = _halving(folding.position, size)
            for number, (position, sent, kept) in enumerate(rounds):
                theirs = self._segments_of(_in_order(position, size, number, sent), cut, element_bytes)
                ours = self._segments_of(_in_order(folding.position, size, number, kept), cut, element_bytes)
                yield from (Step("send", Chunk("output", *each), folding.members[position]) for each in theirs)
                yield from (Step("reduce", Chunk("output", *each), folding.members[position]) for each in ours)
            for number, (position, sent, kept) in reversed(list(enumerate(rounds))):
                theirs = self._segments_of(_in_order(position, size, number, sent), cut, element_bytes)
                ours = self._segments_of(_in_order(folding.position, size, number, kept), cut, element_bytes)
                yield from (Step("send", Chunk("output", *each), folding.members[position]) for each in ours)
                yield from (Step("receive", Chunk("output", *each), folding.members[position]) for each in theirs)
        yield from folding.spread(everything)

    def _segments_of(self, runs: Sequence[range], cut: Sequence[int], element_bytes: int) -> list[tuple[int, int]]:
        """Of the parts in each run, which lie side by side; in one message where they would be too short to gain more
        from what overlaps than each further message costs."""
        first, last = min(run.start for run in runs), max(run.stop for run in runs)
        if (cut[last] - cut[first]) * element_bytes <= MIN_SEGMENT_BYTES:
            runs = [range(first, last)]
        return [
            segment
            for run in runs
            for segment in self.segments(cut[run.start], cut[run.stop] - cut[run.start], element_bytes, MIN_SEGMENTS)
        ]


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


def _in_order(position: int, size: int, number: int, kept: range) -> list[range]:
    """What the member at that position keeps in round `number`, in the order in which it should come: first what goes
    on in the next round. On the way back it leaves in the same order: first what has come last, or the member's own
    part would be with the farthest peers, and crowd their links, before the nearest have theirs."""
    rounds = _halving(position, size)
    return list(rounds[number + 1][1:]) if number + 1 < len(rounds) else [kept]
