"""An all-reduce whose participants all do the same at the same time, said as a few phases instead of every message: for
models of thousands of workers."""

from collections.abc import Sequence
from typing import NamedTuple


class Rings(NamedTuple):
    """Reduce-scatter, then all-gather, around each of several rings of the same size at once."""

    members: Sequence[Sequence[int]]
    """The participants of each ring, in order."""
    message_bytes: Sequence[int]
    """Of the messages in which the longest part travels one step."""


class AllAtOnce(NamedTuple):
    """Every pair's first sends to its second, all at the same time."""

    pairs: Sequence[tuple[int, int]]
    message_bytes: Sequence[int]
    """Of the messages of one pair."""
    adds: bool
    """Whether receivers add what comes to what is there."""


Phase = Rings | AllAtOnce
