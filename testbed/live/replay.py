"""A record shown again, as fast as one likes: the messages of its rows, each at its time, on the same page.

:func:`timeline_of` is pure; :class:`Player` plays it within an event loop.
"""

import asyncio
import math
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import yaml

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.live.application import Control
from testbed.live.hub import Hub
from testbed.live.messages import Links, Machine, Message, Opening, Playback, Shaping
from testbed.live.outcome import ending
from testbed.live.translation import Translator, opening, translator_of
from testbed.record.reader import Record

MOST_SAMPLES: Final = 20_000
"""Of links: of a longer record every second sample is shown, or every third; counters are cumulative, so each tells of
its whole interval."""
TICK_S: Final = 0.05
PLAYBACK_INTERVAL_S: Final = 0.5
_SUPERSEDED: Final = (Links, Machine, Shaping)
"""Messages of which only the last of a tick is worth telling."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A run from its beginning to its end."""

    opening: Opening
    at_s: Sequence[float]
    """Of each message, wall seconds since the run's epoch, in order."""
    messages: Sequence[Message]
    stride: int
    """Every how manyth sample of the links is in it."""

    @property
    def begin_s(self) -> float:
        """When there is something to be seen."""
        return self.at_s[0]

    @property
    def end_s(self) -> float:
        """When all has been said."""
        return self.at_s[-1]


def timeline_of(record: Record) -> Timeline:
    """Raises SpecError where there is nothing to tell, or the record's tables do not fit its plan."""
    experiment = _experiment(record.spec_yaml)
    begins = opening(record.plan, experiment, run_id=record.summary.run_id, setup=record.summary.setup)
    stride = max(1, math.ceil(record.links.height / max(1, len(begins.directions)) / MOST_SAMPLES))
    try:
        timed = sorted(_timed(record, translator_of(begins, experiment), stride), key=lambda each: each[0])
    except KeyError as error:
        raise SpecError(f"{record.path}: links.parquet has {error}, which plan.json does not know") from None
    if not timed:
        raise SpecError(f"{record.path}: the run ended before anything was measured: {record.summary.reasons[0]}")
    return Timeline(
        opening=begins,
        at_s=[*(at_s for at_s, _ in timed), timed[-1][0]],
        messages=[*(message for _, message in timed), ending(record.summary)],
        stride=stride,
    )


def _experiment(spec_yaml: str) -> Experiment | None:
    """None where another version wrote it, in words that this one does not know."""
    try:
        return validate(yaml.safe_load(spec_yaml))
    except (SpecError, yaml.YAMLError):
        return None


def _timed(record: Record, translator: Translator, stride: int) -> Iterator[tuple[float, Message]]:
    """Every message with the wall time at which a live page would have got it, table by table."""
    yield from _of(
        "links", (rows for number, rows in enumerate(_samples(record.links)) if number % stride == 0), translator
    )
    for table, frame in (("iterations", record.iterations), ("changes", record.changes), ("machine", record.machine)):
        yield from _of(table, ([row] for row in frame.iter_rows(named=True)), translator)
    yield from _of("backlog", ([row] for row in record.backlog.iter_rows(named=True)), translator)


def _of(
    table: str, batches: Iterable[Sequence[Mapping[str, Any]]], translator: Translator
) -> Iterator[tuple[float, Message]]:
    reached_s = -math.inf
    for rows in batches:
        last = rows[-1]
        at_s = last["end_s"] if table == "iterations" else last["at_s"] + last.get("elapsed_s", 0.0)
        reached_s = max(reached_s, at_s)  # rows are taken in their order
        yield from ((reached_s, message) for message in translator.rows(table, rows))


def _samples(links: pl.DataFrame) -> Iterator[list[dict[str, Any]]]:
    """The rows of each sample: one for every direction."""
    rows: list[dict[str, Any]] = []
    seen: set[tuple[str, str]] = set()
    for row in links.iter_rows(named=True):
        key = row["link"], row["node"]
        if key in seen:
            yield rows
            rows, seen = [], set()
        rows.append(row)
        seen.add(key)
    if rows:
        yield rows


class Player:
    """Sends a hub the timeline; pages may stop it, go on, go elsewhere in it, and say how fast."""

    def __init__(self, timeline: Timeline, hub: Hub, *, speed: float = 1.0, paused: bool = False) -> None:
        self._timeline = timeline
        self._hub = hub
        self._speed = speed
        self._paused = paused
        self._at_s = timeline.begin_s
        """Where it stood at `_since_s`."""
        self._since_s = time.monotonic()
        self._num_sent = 0
        self._requests: list[Control] = []
        self._woken = asyncio.Event()

    def control(self, request: Control) -> None:
        """Called within the event loop."""
        self._requests.append(request)
        self._woken.set()

    async def play(self) -> None:
        """Does not return."""
        self._go_to(self._at_s)
        said_s = time.monotonic()
        while True:
            requests, self._requests = self._requests, []
            self._woken.clear()
            for each in requests:
                self._obey(each)
            self._tell()
            if requests or time.monotonic() - said_s >= PLAYBACK_INTERVAL_S:
                self._hub.publish([self._playback()])
                said_s = time.monotonic()
            await self._rest()

    async def _rest(self) -> None:
        if self._paused:
            await self._woken.wait()
        else:
            await asyncio.sleep(TICK_S)

    def _now_s(self) -> float:
        elapsed_s = 0.0 if self._paused else time.monotonic() - self._since_s
        return min(self._timeline.end_s, self._at_s + self._speed * elapsed_s)

    def _obey(self, request: Control) -> None:
        self._at_s, self._since_s = self._now_s(), time.monotonic()
        if request.speed is not None:
            self._speed = request.speed
        if request.at_s is not None:
            at_s = request.at_s * self._timeline.opening.dilation
            self._go_to(min(self._timeline.end_s, max(self._timeline.begin_s, at_s)))
        if request.paused is not None:
            if self._paused and not request.paused and self._at_s >= self._timeline.end_s:
                self._go_to(self._timeline.begin_s)  # from its end it goes on at its beginning
            self._paused = request.paused

    def _go_to(self, at_s: float) -> None:
        self._at_s, self._since_s = at_s, time.monotonic()
        self._num_sent = bisect_right(self._timeline.at_s, at_s)
        before = self._timeline.messages[: self._num_sent]
        self._hub.restart([self._timeline.opening, *before, self._playback()])

    def _tell(self) -> None:
        now_s = self._now_s()
        reached = bisect_right(self._timeline.at_s, now_s)
        due = self._timeline.messages[self._num_sent : reached]
        last: dict[str, Message] = {message.kind: message for message in due if isinstance(message, _SUPERSEDED)}
        sent = [message for message in due if last.get(message.kind, message) is message]
        self._num_sent = reached
        if reached == len(self._timeline.messages) and not self._paused:
            self._at_s, self._paused = self._timeline.end_s, True
            sent.append(self._playback())
        if sent:
            self._hub.publish(sent)

    def _playback(self) -> Playback:
        virtual_s = self._timeline.opening.dilation
        return Playback(
            at_s=self._now_s() / virtual_s,
            begin_s=self._timeline.begin_s / virtual_s,
            end_s=self._timeline.end_s / virtual_s,
            speed=self._speed,
            paused=self._paused,
        )
