"""A binomial tree: ceil(log2 size) levels, and each participant talks to its parent and its children only
(Thakur, Rabenseifner, Gropp, IJHPCA 19, 2005)."""

from collections.abc import Iterator, Sequence

from transports.collectives.base import Chunk, Step


def parent(participant: int, size: int, root: int) -> int | None:
    """Of the participant, counted from the root; None for the root."""
    number = (participant - root) % size
    return ((number & (number - 1)) + root) % size if number else None


def children(participant: int, size: int, root: int) -> list[int]:
    """The one with the largest subtree first."""
    number = (participant - root) % size
    lowest = number & -number or 1 << (size - 1).bit_length()
    found = []
    while lowest := lowest // 2:
        if number + lowest < size:
            found.append((number + lowest + root) % size)
    return found


def reduce(participant: int, size: int, segments: Sequence[tuple[int, int]], root: int) -> Iterator[Step]:
    """Everything in `output` is added up towards the root; what others hold afterwards means nothing."""
    above, below = parent(participant, size, root), children(participant, size, root)
    for segment in segments:
        for child in reversed(below):  # the smallest subtree is done first
            yield Step("reduce", Chunk("output", *segment), child)
        if above is not None:
            yield Step("send", Chunk("output", *segment), above)


def broadcast(participant: int, size: int, segments: Sequence[tuple[int, int]], root: int) -> Iterator[Step]:
    """The root's `output` becomes everybody's."""
    above, below = parent(participant, size, root), children(participant, size, root)
    for segment in segments:
        if above is not None:
            yield Step("receive", Chunk("output", *segment), above)
        for child in below:
            yield Step("send", Chunk("output", *segment), child)
