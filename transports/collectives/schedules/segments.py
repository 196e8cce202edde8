"""How a buffer is cut: into the participants' parts, and a part into the messages that it travels in."""

from collections.abc import Sequence
from typing import Final

Segments = Sequence[tuple[int, int]]
"""(start, count) of each, in elements."""

MIN_SEGMENT_BYTES: Final = 32 * 1024
"""A part is not cut into shorter messages only to have more of them."""


def parts(num_elements: int, num_parts: int) -> list[tuple[int, int]]:
    """(start, count) of each part, as even as `torch.tensor_split` makes them: the first ones are longer by one."""
    short, num_long = divmod(num_elements, num_parts)
    return [(part * short + min(part, num_long), short + (part < num_long)) for part in range(num_parts)]


def segments(
    start: int, count: int, *, element_bytes: int, segment_bytes: int, wanted: int = 1
) -> list[tuple[int, int]]:
    """(start, count) of each message: none longer than `segment_bytes` (but one element at least), `wanted` of them or
    more unless they would be shorter than MIN_SEGMENT_BYTES. Nothing travels in no message."""
    longest = min(segment_bytes, max(MIN_SEGMENT_BYTES, count * element_bytes // wanted))
    per_segment = max(1, longest // element_bytes)
    num_segments = -(-count // per_segment)
    return [(start + offset, length) for offset, length in parts(count, num_segments)] if num_segments else []


def split(cut: Segments, at: int) -> Segments:
    """The same, and the segment that lies on both sides of that element is cut there."""
    found: list[tuple[int, int]] = []
    for start, count in cut:
        before = at - start
        found += [(start, before), (at, count - before)] if 0 < before < count else [(start, count)]
    return found
