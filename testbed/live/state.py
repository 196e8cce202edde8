"""What somebody who comes late gets: a bounded number of messages that stand for all there were. Pure."""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from testbed.live.messages import (
    Change,
    Ending,
    Interference,
    Iteration,
    Links,
    Machine,
    Message,
    Opening,
    Over,
    Past,
    Phase,
    Playback,
    Shaping,
)

MOST_ITERATIONS: Final = 400
"""Kept of a run for its curves; when there are more, every second one goes."""
MOST_CHANGES: Final = 50
"""The last ones; what all of them made of the links is kept."""
MOST_PAST: Final = 200
"""Runs of a sweep that are over."""

_Latest = Phase | Links | Shaping | Machine | Interference | Ending | Playback | Over


class State:
    """Folds messages; somebody who gets :meth:`messages` knows as much as who got them all."""

    def __init__(self) -> None:
        self._opening: Opening | None = None
        self._latest: dict[str, _Latest] = {}
        self._curve = Curve()
        self._changes: deque[Change] = deque(maxlen=MOST_CHANGES)
        self._past: deque[Past] = deque(maxlen=MOST_PAST)

    def fold(self, message: Message) -> None:
        """Take the next message."""
        match message:
            case Opening():
                self._begin(message)
            case Iteration():
                self._curve.add(message)
            case Change():
                self._changes.append(message)
                self._opening = changed(self._opening, message)
            case Past():
                self._past.append(message)
            case _:
                self._latest[message.kind] = message

    def _begin(self, opening: Opening) -> None:
        playback = self._latest.get("playback")
        self._opening = opening
        self._latest = {} if playback is None else {"playback": playback}
        self._curve = Curve()
        self._changes.clear()

    def messages(self) -> list[Message]:
        """In an order in which they make sense."""
        opening = [] if self._opening is None else [self._opening]
        order = ("playback", "phase", "links", "shaping", "machine", "interference", "ending", "over")
        latest = [self._latest[kind] for kind in order if kind in self._latest]
        return [*self._past, *opening, *self._curve.iterations(), *self._changes, *latest]


class Curve:
    """The iterations of a run, thinned evenly: the first and the last are always there."""

    def __init__(self) -> None:
        self._kept: list[Iteration] = []
        self._last: Iteration | None = None
        self._stride = 1
        self._count = 0

    def add(self, iteration: Iteration) -> None:
        """The next one."""
        if self._count % self._stride == 0:
            self._kept.append(iteration)
        self._last = iteration
        self._count += 1
        if len(self._kept) > MOST_ITERATIONS:
            self._kept = self._kept[::2]
            self._stride *= 2

    def iterations(self) -> Iterable[Iteration]:
        """In order."""
        missing = self._last is not None and self._kept[-1] is not self._last
        return [*self._kept, self._last] if missing and self._last is not None else self._kept


def changed(opening: Opening | None, change: Change) -> Opening | None:
    """The run's links after the change."""
    if opening is None or change.setting != "carrier":
        return opening
    hop = change.sender, change.receiver
    directions = [
        replace(each, down=change.after == "down") if (each.sender, each.receiver) == hop else each
        for each in opening.directions
    ]
    return replace(opening, directions=directions)
