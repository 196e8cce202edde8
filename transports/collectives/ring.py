"""Ring: every participant talks to its two neighbours only; the bandwidth-optimal all-reduce for large buffers.

All-reduce is a reduce-scatter followed by an all-gather around the ring: 2(N-1) steps, 2(N-1)/N of the buffer sent by
each participant, which no algorithm on point-to-point links undercuts (Patarasuk and Yuan, "Bandwidth optimal
all-reduce algorithms for clusters of workstations", JPDC 69, 2009).

Each part of a ring step is cut into segments, and a segment travels on as soon as it has been reduced, so that a link
never waits for the end of a step.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from transports.collectives.base import (
    COLLECTIVES,
    Buffer,
    Chunk,
    Operation,
    Segmented,
    Step,
    StepKind,
    World,
)
from transports.collectives.schedules.phases import Phase, Rings
from transports.collectives.schedules.segments import parts

MIN_SEGMENTS: Final = 2
"""A part is cut into at least so many segments while they are not too short: with one segment per part the link would
idle while its last bytes are received and reduced."""


@COLLECTIVES.register
class Ring(Segmented):
    """Reduce-scatter and all-gather around a ring; broadcast is a pipelined chain."""

    operations: ClassVar[frozenset[Operation]] = frozenset(("all_reduce", "reduce_scatter", "all_gather", "broadcast"))

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
        size = world.num_workers
        if operation == "broadcast":
            return list(self._chain(size, participant, num_elements, element_bytes, root))
        split = parts(num_elements, size)
        segments = [self.segments(start, count, element_bytes, MIN_SEGMENTS) for start, count in split]
        if operation == "reduce_scatter":
            return list(self._reduce_scatter(participant, segments, own_start=split[participant][0]))
        return list(self._all_reduce_or_gather(operation, participant, segments))

    def phases(self, world: World, num_elements: int, element_bytes: int) -> Sequence[Phase]:
        """One ring."""
        longest = parts(num_elements, world.num_workers)[0][1]
        segments = self.segments(0, longest, element_bytes, MIN_SEGMENTS)
        return [Rings([range(world.num_workers)], [count * element_bytes for _, count in segments])]

    def _reduce_scatter(
        self, participant: int, segments: list[list[tuple[int, int]]], own_start: int
    ) -> Iterator[Step]:
        size = len(segments)
        for step in range(size - 1):
            sent = participant - 1 - step
            yield from self._turn(participant, segments, sent, "reduce", "input", writes=step < size - 2)
        # What comes last is added to the participant's own part, which lies in `output`.
        for start, count in segments[participant]:
            yield Step("reduce", Chunk("output", start - own_start, count), (participant - 1) % size)

    def _all_reduce_or_gather(
        self, operation: Operation, participant: int, segments: list[list[tuple[int, int]]]
    ) -> Iterator[Step]:
        size = len(segments)
        own = participant
        if operation != "all_gather":
            for step in range(size - 1):
                yield from self._turn(participant, segments, participant - step, "reduce", "output")
            own = participant + 1  # its sum is complete here
        for step in range(size - 1):
            yield from self._turn(participant, segments, own - step, "receive", "output")

    def _turn(
        self,
        participant: int,
        segments: list[list[tuple[int, int]]],
        sent: int,
        kind: StepKind,
        buffer: Buffer,
        *,
        writes: bool = True,
    ) -> Iterator[Step]:
        """One ring step: a part goes to the next participant, the part before it comes from the previous one."""
        size = len(segments)
        for start, count in segments[sent % size]:
            yield Step("send", Chunk(buffer, start, count), (participant + 1) % size)
        if writes:
            for start, count in segments[(sent - 1) % size]:
                yield Step(kind, Chunk(buffer, start, count), (participant - 1) % size)

    def _chain(self, size: int, participant: int, num_elements: int, element_bytes: int, root: int) -> Iterator[Step]:
        """From the root around the ring, segment by segment."""
        following, previous = (participant + 1) % size, (participant - 1) % size
        for start, count in self.segments(0, num_elements, element_bytes, MIN_SEGMENTS * size):
            chunk = Chunk("output", start, count)
            if participant != root:
                yield Step("receive", chunk, previous)
            if following != root:
                yield Step("send", chunk, following)
