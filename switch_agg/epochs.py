"""Numbers for epochs, no two alike, so that a datagram of one that is over is known for that, however late it comes.

Sums are right as long as a worker, an epoch and a chunk name one contribution for ever. Within an epoch the chunk
numbers see to that; here is what sees to it from one epoch to the next, over jobs that are removed and configured
again and, with a file that remembers, over restarts of the aggregator.
"""

import secrets
from pathlib import Path
from typing import Final

from switch_agg.errors import UnsupportedError
from switch_agg.wire import NUM_EPOCHS

RESERVED: Final = 1 << 12
"""Numbers that a process takes from the file at a time: what it does not use is lost with it."""


class Epochs:
    """Counts up, around the wrap of 32 bits, from a random number or from where a file says that nobody has been."""

    def __init__(self, *, first: int | None = None, memory: Path | None = None) -> None:
        """`memory` belongs to one process at a time. It is looked at with the first number, and made where it is
        missing."""
        self._memory = memory
        self._next = first
        self._end: int | None = None
        """The first number that is another process's, where one remembers."""

    def next(self) -> int:
        """A number that has not been given out. Raises UnsupportedError where it cannot be remembered."""
        if self._next is None:
            remembered = self._memory is not None and self._memory.exists()
            self._next = _remembered(self._memory) if self._memory and remembered else secrets.randbits(32)
        if self._memory is not None and self._end in {None, self._next}:
            self._end = _reserved(self._memory, self._next)
        number, self._next = self._next % NUM_EPOCHS, (self._next + 1) % NUM_EPOCHS
        return number


def _reserved(memory: Path, first: int) -> int:
    """The end of the numbers that the caller may give out, which the file says from now on."""
    end = (first + RESERVED) % NUM_EPOCHS
    fresh = memory.with_name(f"{memory.name}.new")
    try:
        fresh.write_text(f"{end}\n")
        fresh.replace(memory)
    except OSError as error:
        raise UnsupportedError(f"{memory}: epochs cannot be remembered there: {error.strerror}") from error
    return end


def _remembered(memory: Path) -> int:
    try:
        text = memory.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UnsupportedError(f"{memory}: cannot be read: {error}") from error
    if not text.isdecimal() or int(text) >= NUM_EPOCHS:
        raise UnsupportedError(f"{memory}: not the number of an epoch; without the file they begin at a random one")
    return int(text)
