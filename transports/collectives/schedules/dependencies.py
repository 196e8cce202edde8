"""What a participant's steps wait for: the one reading of a schedule that executor, costs and tests share.

A step waits for earlier steps of the same participant that overlap its chunk and of which at least one writes, for
those that write what it says to come after, and for its turn among the sends to (or receives from) its peer. Nothing
else: list order alone would serialise a full-duplex link.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from transports.collectives.base import Chunk, Step

Direction = Literal["send", "receive"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dependencies:
    """The order of one participant's steps; steps are named by their index in the schedule."""

    num_predecessors: tuple[int, ...]
    """For each step, how many earlier steps must be done before it may touch its chunk."""
    successors: tuple[tuple[int, ...], ...]
    """For each step, the later steps that count it among their predecessors."""
    lanes: dict[tuple[int, Direction], tuple[int, ...]]
    """For each (peer, direction), its steps in the order in which their messages travel."""


def dependencies(steps: Sequence[Step]) -> Dependencies:
    """Read-after-write, write-after-read and write-after-write on overlapping chunks, and the order per peer."""
    boundaries: dict[str, list[int]] = {}
    for step in steps:
        for chunk in (step.chunk, step.source, *step.after):
            if chunk is not None:
                boundaries.setdefault(chunk.buffer, []).extend((chunk.start, chunk.start + chunk.count))
    cuts = {buffer: sorted(set(positions)) for buffer, positions in boundaries.items()}
    # Between two cuts every chunk covers all or nothing, so one writer and its readers per piece say everything.
    writers: dict[tuple[str, int], int] = {}
    readers: dict[tuple[str, int], list[int]] = {}

    num_predecessors = []
    successors: list[list[int]] = [[] for _ in steps]
    lanes: dict[tuple[int, Direction], list[int]] = {}
    for index, step in enumerate(steps):
        before: set[int] = set()
        read = step.chunk if step.kind == "send" else step.source
        for piece in _pieces(read, cuts) if read is not None else ():
            if piece in writers:
                before.add(writers[piece])
            readers.setdefault(piece, []).append(index)
        # What comes after others does not read them: who writes there next need not wait for it.
        for chunk in step.after:
            before.update(writers[piece] for piece in _pieces(chunk, cuts) if piece in writers)
        if step.kind != "send":
            for piece in _pieces(step.chunk, cuts):
                if piece in writers:
                    before.add(writers[piece])
                before.update(readers.pop(piece, ()))
                writers[piece] = index
        num_predecessors.append(len(before))
        for earlier in before:
            successors[earlier].append(index)
        if step.kind != "add":
            lanes.setdefault((step.peer, "send" if step.kind == "send" else "receive"), []).append(index)
    return Dependencies(
        num_predecessors=tuple(num_predecessors),
        successors=tuple(tuple(sorted(later)) for later in successors),
        lanes={lane: tuple(indices) for lane, indices in lanes.items()},
    )


def _pieces(chunk: Chunk, cuts: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, int]]:
    first = bisect_left(cuts[chunk.buffer], chunk.start)
    last = bisect_left(cuts[chunk.buffer], chunk.start + chunk.count)
    return ((chunk.buffer, position) for position in range(first, last))
