"""Binomial tree: everything is added up towards rank 0 and handed down again, segment by segment, so that the second
segment climbs while the first comes down (Thakur, Rabenseifner, Gropp, IJHPCA 19, 2005).

Of little use for large buffers, since the root's link carries log2(N) of them each way; the pattern of old that others
are compared with, and the one for `reduce` and `broadcast`.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

from transports.collectives.base import COLLECTIVES, Operation, Segmented, Step, World
from transports.collectives.schedules import binomial

MIN_SEGMENTS: Final = 8
"""So many messages along each branch, if they are not too short: the pipeline must be longer than the tree is high."""


@COLLECTIVES.register
class Tree(Segmented):
    """Reduce to rank 0, then broadcast, both along a binomial tree."""

    operations: ClassVar[frozenset[Operation]] = frozenset(("all_reduce", "reduce", "broadcast"))

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
        steps: list[Step] = []
        if operation != "broadcast":
            steps += binomial.reduce(participant, world.num_workers, segments, root)
        if operation != "reduce":
            steps += binomial.broadcast(participant, world.num_workers, segments, root)
        return steps
