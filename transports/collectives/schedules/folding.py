"""What lets algorithms for powers of two run with any number of workers: some fold theirs into a neighbour's first.

As MPICH does it (Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH",
IJHPCA 19, 2005, section 4.5): of the first 2 x rem workers every even one gives its values to the next odd one, which
takes part for both and hands it the result. rem is how many workers there are above the power of two.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transports.collectives.base import Chunk, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Folding:
    """Who takes part, seen by one worker."""

    members: tuple[int, ...]
    """The workers that take part: a power of two of them."""
    position: int | None
    """This worker's place among them; None: another one takes part for it."""
    num_workers: int
    """With those that do not."""
    partner: int | None
    """The worker that this one takes part for, or that takes part for this one."""

    def gather(self, segments: Sequence[tuple[int, int]]) -> Iterator[Step]:
        """Before: the values of the one become part of the other's."""
        if self.partner is not None:
            for start, count in segments:
                yield Step("send" if self.position is None else "reduce", Chunk("output", start, count), self.partner)

    def spread(self, segments: Sequence[tuple[int, int]]) -> Iterator[Step]:
        """After: the result for the one that has not taken part."""
        if self.partner is not None:
            for start, count in segments:
                yield Step("receive" if self.position is None else "send", Chunk("output", start, count), self.partner)


def fold(num_workers: int, worker: int) -> Folding:
    """How that worker of so many takes part."""
    num_folded = num_workers - (1 << (num_workers.bit_length() - 1))
    members = (*range(1, 2 * num_folded, 2), *range(2 * num_folded, num_workers))
    partner = worker ^ 1 if worker < 2 * num_folded else None
    return Folding(
        members=members,
        position=members.index(worker) if worker in members else None,
        num_workers=num_workers,
        partner=partner,
    )
