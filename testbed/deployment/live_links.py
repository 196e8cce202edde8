"""The links of a deployment while they change: by the spec's schedule, by traces, or manually.

What people and specs request, and are shown, is in virtual time; the deployment gets it in real time.

One lock orders everything that changes or reads them. A change that does not take ends the run: its numbers would
describe links that nobody knows.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from testbed.deployment.deployment import Deployment
from testbed.errors import RunFailedError, SpecError, TestbedError
from testbed.experiment.changes import LinkChange, Source
from testbed.experiment.link import LinkOverride
from testbed.plan.direction import Direction
from testbed.plan.link_configuration import LinkConfig, changed_links
from testbed.plan.selector import select

_log: Final = logging.getLogger(__name__)
USED_WINDOW_S: Final = 0.2
"""Over which the rate in use is measured when someone asks for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkChangeEvent:
    """One setting of one direction that became another."""

    at_s: float
    """CLOCK_MONOTONIC when the kernel had taken it."""
    link: str
    node: str
    """The sending node."""
    to: str
    setting: str
    """As in the spec: `rate`, `delay`, ...; or `carrier`."""
    before: str
    """As a spec writes it: `100mbit`; of the carrier `up` or `down`."""
    after: str
    rate_bps: float
    """In force from now on."""
    source: Source


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkNow:
    """One direction at this moment."""

    direction: Direction
    down: bool
    used_bps: float
    """Sent over the last moment, headers included."""
    backlog_bytes: int
    num_drops: int
    """In its queue, since the link was made."""
    num_marks: int
    """By ECN, likewise."""


class LiveLinks:
    """Callable from any thread. Changes are refused until :meth:`accept`."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._lock = threading.Lock()
        self._on_link_changes: Callable[[Sequence[LinkChangeEvent]], None] | None = None
        self.own_changes: Callable[[], AbstractContextManager[None]] = nullcontext
        """Within what it returns settings are changed: who watches them shall know that it is the run itself."""
        self._timeline: Iterator[LinkChange] = iter(())
        self._plan = plan = deployment.planned
        self._clock = plan.clock
        self._directions = {direction.hop: direction for direction in plan.directions}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: TestbedError | None = None
        self._requested = list(plan.requested.values())
        self._origin_s: float | None = None
        """From here on the schedule's times count."""
        self._closed_s: float | None = None
        self._next_due_s = math.inf
        """When the change that is to come, or is being made, is or was due."""
        self._made_late_s = 0.0

    def accept(self, on_link_changes: Callable[[Sequence[LinkChangeEvent]], None]) -> None:
        """From now on links may be changed; `on_link_changes` hears of every change, on the thread that made it."""
        with self._lock:
            self._on_link_changes = on_link_changes

    def begin(self, timeline: Iterator[LinkChange]) -> None:
        """The first iteration begins now: links draw anew from their seeds, the schedule's times count from here. Once.

        Raises RunFailedError when a program that draws does not answer.
        """
        assert self._thread is None
        with self._lock, self.own_changes():
            self._deployment.restart_draws()
        self._timeline = timeline
        self._origin_s = time.monotonic()
        self._thread = threading.Thread(target=self._follow, args=(self._origin_s,), name="link-changes", daemon=True)
        self._thread.start()

    @property
    def begun(self) -> bool:
        """Whether the schedule's time runs."""
        return self._thread is not None

    @property
    def late_s(self) -> float:
        """How long after its time a change of the schedule or of a trace was made, at most, in virtual seconds since
        the beginning or :meth:`forget_late`. One that is due and not made yet is as late as it is now."""
        return max(self._made_late_s, self._clock.virtual_s(self._now_s() - self._next_due_s))

    def forget_late(self) -> None:
        """A part of the run begins: what has been caught up with is not late for it."""
        self._made_late_s = 0.0

    def is_reached(self, at_s: float) -> bool:
        """Whether a change at this time of the schedule has been due: by now, or before the links were closed."""
        return self._origin_s is not None and self._origin_s + self._clock.real_s(at_s) <= self._now_s()

    def _now_s(self) -> float:
        """For the schedule time ends when the links are closed."""
        return time.monotonic() if self._closed_s is None else self._closed_s

    def check(self) -> None:
        """Raise what kept a scheduled change from being made."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop: no link changes any more. Idempotent."""
        if self._closed_s is None:
            self._closed_s = time.monotonic()
        self._stop.set()  # before the lock: a change that is being made has it, and none shall be begun after it
        with self._lock:
            self._on_link_changes = None
        if self._thread is not None:
            self._thread.join()

    def change(self, change: LinkChange) -> list[LinkChangeEvent]:
        """Make it, read it back, return what is different now.

        Raises SpecError when the change is not possible, RunFailedError when links may not be changed now, and
        MissingRequirementError when the kernel did not take it.
        """
        with self._lock:
            if self._on_link_changes is None:
                raise SpecError("links cannot be changed now: they are being measured before the run, or it is over")
            requested, directions = self._decide(change)
            events = []
            try:
                for direction in directions:
                    events += self._apply(direction, change)
            except TestbedError as error:
                self._error = error
                raise
            self._requested = requested
            self._on_link_changes(events)
        return events

    def now(self) -> list[LinkNow]:
        """Every direction: how it is configured, and what it does. Between the two readings links may change."""
        with self._lock:
            first = self._deployment.line_counters()
            begun_s = time.monotonic()
        self._stop.wait(USED_WINDOW_S)
        with self._lock:
            second = self._deployment.line_counters()
            took_s = time.monotonic() - begun_s
            delayed = self._deployment.delay_counters()
            return [
                LinkNow(
                    direction=direction,
                    down=self._deployment.is_down(direction),
                    used_bps=self._clock.virtual_bps(8 * (second[hop].num_bytes - first[hop].num_bytes) / took_s),
                    backlog_bytes=second[hop].backlog_bytes,
                    num_drops=second[hop].num_drops,
                    num_marks=line.num_marked if (line := delayed.get((direction.link, hop[0]))) else 0,
                )
                for hop, direction in self._directions.items()
            ]

    def _decide(self, change: LinkChange) -> tuple[list[LinkConfig], list[Direction]]:
        """The configuration of every link then, and the directions that the change names as they will be."""
        plan = self._plan
        requested = changed_links(
            self._requested, change.link, change.settings, change.key, packet_bytes=plan.experiment.packet_bytes
        )
        named = {each.hop for each in select(requested, change.link)}
        directions = []
        for each in requested:
            direction = self._directions[each.hop]
            if each.hop in named or each.spec != direction.requested:
                directions.append(plan.changed(direction, each))
        return requested, directions

    def _apply(self, direction: Direction, change: LinkChange) -> list[LinkChangeEvent]:
        before = self._directions[direction.hop]
        was_down = self._deployment.is_down(before)
        down = was_down if change.down is None else change.down
        with self.own_changes():
            self._deployment.change(self._clock.real(direction), down=down)
        self._directions[direction.hop] = direction
        at_s = time.monotonic()
        differing = differing_settings(before, direction)
        if down != was_down:
            differing["carrier"] = ("down", "up") if was_down else ("up", "down")
        for setting, (old, new) in differing.items():
            _log.info("%s: %s %s -> %s (%s)", direction.name, setting, old, new, change.source)
        return [
            LinkChangeEvent(
                at_s=at_s,
                link=direction.link,
                node=direction.sender.node,
                to=direction.receiver.node,
                setting=setting,
                before=old,
                after=new,
                rate_bps=direction.rate_bps,
                source=change.source,
            )
            for setting, (old, new) in differing.items()
        ]

    def _follow(self, origin_s: float) -> None:
        for change in self._timeline:
            self._next_due_s = due_s = origin_s + self._clock.real_s(change.at_s)
            if self._stop.wait(max(0.0, due_s - time.monotonic())):
                return
            try:
                self.change(change)
            except TestbedError as error:
                self._error = error
                return
            except Exception as error:  # noqa: BLE001 - a schedule that ends unnoticed would leave links in a state nobody requested
                self._error = RunFailedError(f"{change.key}: {type(error).__name__}: {error}")
                self._error.__cause__ = error
                return
            self._made_late_s = max(self._made_late_s, self._clock.virtual_s(time.monotonic() - due_s))
            self._next_due_s = math.inf


def differing_settings(before: Direction, after: Direction) -> dict[str, tuple[str, str]]:
    """By the spec's name of the setting: what it was and is, as a spec writes it."""
    old, new = (_setting_texts(direction) for direction in (before, after))
    return {name: (old[name], new[name]) for name in new if old[name] != new[name]}


def _setting_texts(direction: Direction) -> dict[str, str]:
    settings = direction.requested.model_dump(mode="json", by_alias=True)
    return {
        name: _text(settings[name]) for name in (field.alias or key for key, field in LinkOverride.model_fields.items())
    }


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):  # a share of packets
        return f"{100 * value:g}%"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    return str(value)
