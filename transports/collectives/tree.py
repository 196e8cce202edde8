"""Binomial tree: everything is added up towards rank 0 and handed down again, segment by segment, so that the second
segment climbs while the first comes down (Thakur, Rabenseifner, Gropp, IJHPCA 19, 2005).

Of little use for large buffers, since the root's link carries log2(N) of them each way; the pattern of old that others
are compared with, and the one for `reduce` and `broadcast`.

A participant sends a segment up when one some way before it has come back down as a sum. Of two children whose
connections share their parent's link, TCP may give the one several times what it gives the other. Only what both have
sent can be handed down, so that one that runs ahead holds up the end of the exchange.
"""

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, Self

from pydantic import Field

from transports.collectives.base import COLLECTIVES, Chunk, Operation, Segmented, Step, World
from transports.collectives.network_info import NetworkInfo
from transports.collectives.schedules import binomial
from transports.collectives.schedules.segments import Segments
from transports.units import Size

MIN_SEGMENTS: Final = 16
"""So many messages along each branch, if they are not too short: the pipeline must be longer than the tree is high."""
LEVELS_AHEAD: Final = 2
"""A sender is ahead of what has come back by as many messages as the tree is high, and so many more: on links without
delay the first has come back by then."""


@COLLECTIVES.register
class Tree(Segmented):
    """Reduce to rank 0, then broadcast, both along a binomial tree."""

    operations: ClassVar[frozenset[Operation]] = frozenset(("all_reduce", "reduce", "broadcast"))

    credit_bytes: Size = Field(128 * 1024, alias="credit", gt=0)
    """Of an all-reduce: what a participant may have sent up that has not come back down; a few messages and two round
    trips of the links to the root where that is more and is known."""

    def with_network_info(self, info: NetworkInfo, *, tensors: tuple[int, ...] = ()) -> Self:  # noqa: ARG002 (it takes buffers whole)
        """See :class:`Collective`."""
        return self.model_copy(update={"credit_bytes": max(self.credit_bytes, info.two_round_trips_bytes)})

    @property
    def goes_by_hosts(self) -> bool:
        """See :class:`Collective`."""
        return True

    def schedule(
        self,
        operation: Operation,
        world: World,
        participant: int,
        num_elements: int,
        *,
        element_bytes: int,
        root: int = 0,
    ) -> Sequence[Step]:
        """See :class:`Collective`."""
        segments = self.segments(0, num_elements, element_bytes, MIN_SEGMENTS)
        if operation == "broadcast":
            return list(binomial.broadcast(participant, world.num_workers, segments, root))
        if operation == "reduce":
            return list(binomial.reduce(participant, world.num_workers, segments, root))
        longest_bytes = max((count for _, count in segments), default=1) * element_bytes
        height = (world.num_workers - 1).bit_length()
        num_ahead = max(height + LEVELS_AHEAD, math.ceil(self.credit_bytes / longest_bytes))
        return list(_all_reduce(participant, world.num_workers, segments, num_ahead, root))


def _all_reduce(participant: int, size: int, segments: Segments, num_ahead: int, root: int) -> Iterator[Step]:
    """Send a segment up when the one `num_ahead` before it has come back."""
    for position, segment in enumerate(segments):
        after: tuple[Chunk, ...] = ()
        if position >= num_ahead:
            answered = segments[position - num_ahead]
            yield from binomial.broadcast(participant, size, [answered], root)
            after = (Chunk("output", *answered),)
        for step in binomial.reduce(participant, size, [segment], root):
            yield step._replace(after=after) if step.kind == "send" else step
    yield from binomial.broadcast(participant, size, segments[-num_ahead:], root)
