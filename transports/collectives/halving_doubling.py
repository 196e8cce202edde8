"""Halving and doubling: a reduce-scatter that halves what is exchanged in each round, then an all-gather that doubles
it. As few bytes as the ring in 2 log2(N) rounds instead of 2(N-1).

Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur, Rabenseifner, Gropp, IJHPCA 19,
2005, section 4.5.

A round begins when all of the round before has come, and, if it is long, when the other worker has said the same of its
own: with messages of two rounds under way, two senders would share a receiver's link, whose queue overflows, and
connections idle that wait for the other's, more of them in each round. What is said is one element, sent while the last
message of the round before is still to come, so that it costs nothing where such a message takes longer than the way.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Self

from pydantic import Field

from transports.collectives.base import COLLECTIVES, Chunk, Operation, Segmented, Step, StepKind, World
from transports.collectives.network_info import NetworkInfo
from transports.collectives.schedules.folding import Folding, fold
from transports.collectives.schedules.segments import parts
from transports.units import Size

MIN_ANNOUNCED_BYTES: Final = 64 * 1024
"""Shorter exchanges are not announced on any links, since they wait for messages and not for bytes."""
MIN_SEGMENTS: Final = 2
"""So many messages in each exchange, if they are not too short: the first half is added while the second comes."""


@COLLECTIVES.register
class HalvingDoubling(Segmented):
    """Recursive halving, then recursive doubling; with two more rounds when N is no power of two."""

    operations: ClassVar[frozenset[Operation]] = frozenset(("all_reduce",))

    announced_bytes: Size = Field(512 * 1024, alias="announced", gt=0)
    """Of an exchange: with more, a worker sends only when the other has said that it is through with the round before;
    two round trips of the links where these are less, are known, and carry 64 KiB or more."""

    def with_network_info(self, info: NetworkInfo, *, tensors: tuple[int, ...] = ()) -> Self:  # noqa: ARG002 (it takes buffers whole)
        """See :class:`Collective`. Of an exchange that takes two round trips, the message before its announcement takes
        one latency or longer, so that it hides the announcement's way."""
        hidden_bytes = max(MIN_ANNOUNCED_BYTES, info.two_round_trips_bytes)
        return self.model_copy(update={"announced_bytes": min(self.announced_bytes, hidden_bytes)})

    @property
    def goes_by_hosts(self) -> bool:
        """See :class:`Collective`."""
        return True

    def is_announced(self, number: int, num_rounds: int, *, folds: bool, num_bytes: float) -> bool:
        """Whether a round of so many bytes, of `num_rounds` that add and as many that spread, begins with a word of
        both; `folds`: some workers are folded into others before."""
        if number == num_rounds:  # with the peer that was the last to add: nobody else sends to it
            return False
        if not number:  # the other may still be getting a folded worker's values, and not by chance
            return folds and num_bytes > min(self.announced_bytes, MIN_ANNOUNCED_BYTES)
        return num_bytes > self.announced_bytes

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
            turns: list[tuple[StepKind, int, Chunk, Chunk]] = [
                *(("reduce", peer, sent, kept) for peer, sent, kept in rounds),
                *(("receive", peer, kept, sent) for peer, sent, kept in reversed(rounds)),
            ]
            # What came last, in messages: of those that others have folded into, all; of the others nothing.
            came = [Chunk("output", *each) for each in everything] if folding.partner is not None else []
            folds = len(folding.members) < folding.num_workers
            for number, (kind, peer, sent, received) in enumerate(turns):
                longest_bytes = element_bytes * max(sent.count, received.count)  # the same for both
                ready = [Chunk("scratch", 2 * number + each, 1) for each in range(2)]
                after = tuple(came)
                if self.is_announced(number, len(rounds), folds=folds, num_bytes=longest_bytes):
                    yield Step("send", ready[0], peer, after=tuple(came[:-1]))
                    yield Step("receive", ready[1], peer)
                    after = (*came, ready[1])
                for start, count in self.segments(sent.start, sent.count, element_bytes, MIN_SEGMENTS):
                    yield Step("send", Chunk("output", start, count), peer, after=after)
                segments = self.segments(received.start, received.count, element_bytes, MIN_SEGMENTS)
                came = [Chunk("output", *each) for each in segments]
                yield from (Step(kind, chunk, peer) for chunk in came)
        yield from folding.spread(everything)


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
