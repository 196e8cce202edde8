"""Halving and doubling: a reduce-scatter that halves what is exchanged in each round, then an all-gather that doubles
it. As few bytes as the ring in 2 log2(N) rounds instead of 2(N-1).

Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur, Rabenseifner, Gropp, IJHPCA 19,
2005, section 4.5.

A round begins when all of the round before has come, and, if it is long, when the other worker has said the same of its
own: with messages of two rounds under way, two senders would share a receiver's link, and who is late by a little makes
those that it exchanges with next late by twice as much. What is said is one element, sent when as much of the round
before is still to come as the links carry meanwhile: it costs nothing, and nobody is more than that ahead.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Self

from pydantic import Field

from transports.collectives.base import COLLECTIVES, Chunk, Operation, Segmented, Step, StepKind, World
from transports.collectives.network_info import NetworkInfo
from transports.collectives.schedules.folding import Folding, fold
from transports.collectives.schedules.segments import Segments, parts, split
from transports.collectives.timing import PACKET_BYTES
from transports.units import Size

DEFAULT_LEFT_BYTES: Final = 128 * 1024
"""Where nothing is known of the links."""
MIN_LEFT_BYTES: Final = 2 * PACKET_BYTES
"""On any links that are known: two segments of Ethernet's MTU, the shortest super-frame that Linux makes
(net.ipv4.tcp_min_tso_segs). What is shorter does not come apart from what is before it."""
ANNOUNCED_LATENCIES: Final = 4
"""An exchange is announced if it has more than so many times what is left of the one before: that one, half as long at
least, has as much."""
MIN_ANNOUNCED_BYTES: Final = 64 * 1024
"""On any links: shorter exchanges wait for messages and not for bytes."""
MIN_SEGMENTS: Final = 2
"""So many messages in each exchange, if they are not too short: the first half is added while the second comes."""


@COLLECTIVES.register
class HalvingDoubling(Segmented):
    """Recursive halving, then recursive doubling; with two more rounds when N is no power of two."""

    operations: ClassVar[frozenset[Operation]] = frozenset(("all_reduce",))

    left_bytes: Size | None = Field(None, alias="left", gt=0)
    """Of the exchange before a long one: a worker announces that it is through with it when so much is still to come.
    Open: what the links carry in one latency, two packets at least; 128 KiB where they are not known."""

    def with_network_info(self, info: NetworkInfo, *, tensors: tuple[int, ...] = ()) -> Self:  # noqa: ARG002 (it takes buffers whole)
        """See :class:`Collective`."""
        if self.left_bytes is not None:
            return self
        return self.model_copy(update={"left_bytes": max(MIN_LEFT_BYTES, info.latency_bytes)})

    @property
    def goes_by_hosts(self) -> bool:
        """See :class:`Collective`."""
        return self.left_bytes is None

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
        left_bytes = DEFAULT_LEFT_BYTES if self.left_bytes is None else self.left_bytes
        announced_bytes = max(MIN_ANNOUNCED_BYTES, ANNOUNCED_LATENCIES * left_bytes)
        num_rounds = len(folding.members).bit_length() - 1
        # By what an exchange has on the whole, and not with one peer: others' rounds are announced where these are.
        exchanged_bytes = [num_elements * element_bytes / 2 ** (number + 1) for number in range(num_rounds)]
        announced = [each > announced_bytes for each in (*exchanged_bytes, *reversed(exchanged_bytes))]
        if len(folding.members) == folding.num_workers:
            announced[0] = False  # nobody sends to anybody yet
        announced[num_rounds] = False  # with the peer that was the last to add: nobody else sends to it
        announced.append(False)  # after the last round
        num_left = max(1, left_bytes // element_bytes)

        def messages(start: int, count: int, turn: int) -> Segments:
            """Of the exchange before a turn: two, if they are not too short, and with an end of its own for what is
            left when that is announced."""
            cut = self.segments(start, count, element_bytes, MIN_SEGMENTS)
            return split(cut, start + count - num_left) if announced[turn] else cut

        folded = messages(0, num_elements, 0)
        yield from folding.gather(folded)
        if folding.position is not None:
            size = len(folding.members)
            ends = [start for start, _ in parts(num_elements, size)] + [num_elements]

            def chunk(part: range) -> Chunk:
                return Chunk("output", ends[part.start], ends[part.stop] - ends[part.start])

            rounds = [
                (folding.members[position], chunk(sent), chunk(kept))
                for position, sent, kept in _halving(folding.position, size)
            ]
            turns: list[tuple[StepKind, int, Chunk, Chunk]] = [
                *(("reduce", peer, sent, kept) for peer, sent, kept in rounds),
                *(("receive", peer, kept, sent) for peer, sent, kept in reversed(rounds)),
            ]
            # What came last, in messages: of those that others have folded into, all; of the others nothing.
            came = [Chunk("output", *each) for each in folded] if folding.partner is not None else []
            for turn, (kind, peer, sent, received) in enumerate(turns):
                ready = [Chunk("scratch", 2 * turn + each, 1) for each in range(2)]
                after = tuple(came)
                if announced[turn]:
                    left = came[-1].start + came[-1].count - num_left if came else 0
                    yield Step("send", ready[0], peer, after=tuple(each for each in came if each.start < left))
                    yield Step("receive", ready[1], peer)
                    after = (*came, ready[1])
                for start, count in messages(sent.start, sent.count, turn + 1):
                    yield Step("send", Chunk("output", start, count), peer, after=after)
                came = [Chunk("output", *each) for each in messages(received.start, received.count, turn + 1)]
                yield from (Step(kind, each, peer) for each in came)
        yield from folding.spread(self.segments(0, num_elements, element_bytes, MIN_SEGMENTS))


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
