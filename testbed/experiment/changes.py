"""What changes on which link, when: the `changes:` of a spec as one timeline. Pure, but for reading trace files.

Times count from the start of the workload's first iteration that communicates (warm-up included), in virtual seconds.
"""

import hashlib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from testbed.experiment.link import MAX_RATE_BPS, MIN_RATE_BPS, LinkOverride
from testbed.experiment.traces import WINDOW_S, Trace, TraceField, TraceFormat, parse_trace
from transports.units import Rate, Time, format_rate, format_time

Source = Literal["schedule", "trace", "manual"]
_FIELDS: Final[Mapping[TraceField, str]] = {"rate": "rate_bps", "delay": "delay_s", "loss": "loss"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkChange:
    """New settings of some links from a moment on."""

    at_s: float
    """Virtual, since the first iteration began."""
    link: str
    """A selector, see testbed.plan.selector."""
    settings: LinkOverride
    """What it does not name stays as it is."""
    down: bool | None = None
    """True: the link goes down, False: up, None: as before."""
    source: Source
    key: str
    """Where it was requested: `changes.0`, or `link set`."""


class ScheduledChange(LinkOverride):
    """`{at: 10s, link: w1-s0, rate: 50mbit}`, or `down: true`, or `up: true`."""

    at_s: Time = Field(alias="at", ge=0)
    """Since the first iteration began; a time that the run does not reach is recorded as not reached."""
    link: str
    """`w1-s0`, one direction `w1->s0`, or a pattern `w*-s*`."""
    down: Literal[True] | None = None
    """The link goes down: everything sent into it is lost."""
    up: Literal[True] | None = None
    """The link comes up again."""

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.down and self.up:
            raise ValueError("a link cannot go down and up at once")
        if not self.settings.named and not self.down and not self.up:
            raise ValueError("changes nothing; name a setting (rate, delay, jitter, loss, queue), `down` or `up`")
        return self

    @property
    def settings(self) -> LinkOverride:
        """The settings that the change gives to the link."""
        named = {name: value for name, value in self.named.items() if name in LinkOverride.model_fields}
        return LinkOverride.model_construct(_fields_set=set(named), **named)

    def timeline(self, key: str, *, endless: bool) -> Iterator[LinkChange]:  # noqa: ARG002 - it has an end
        """The one change that this is."""
        yield LinkChange(
            at_s=self.at_s,
            link=self.link,
            settings=self.settings,
            down=True if self.down else False if self.up else None,
            source="schedule",
            key=key,
        )


class TracedChange(BaseModel):
    """`{link: w1-s0, trace: lte.trace}`: one setting of a link follows a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    link: str
    """`w1-s0`, one direction `w1->s0`, or a pattern `w*-s*`."""
    trace: str
    """The file, from the directory in which the command runs."""
    format: Literal["auto"] | TraceFormat = "auto"
    """auto: CSV if the first line has a comma."""
    field: TraceField = "rate"
    """What follows the trace; Mahimahi's traces are rates."""
    repeat: bool | None = None
    """Begin again at the end; null: as the format has it, mahimahi does and CSV does not (its last value stays)."""
    window_s: Time = Field(WINDOW_S, alias="window", ge=0.01, le=60)
    """Over which the packets of a Mahimahi trace are averaged."""
    floor_bps: Rate | None = Field(None, alias="floor", ge=MIN_RATE_BPS, le=MAX_RATE_BPS)
    """Lower rates of the trace become this one; null: they are an error, since no link is slower than 1mbit."""
    sha256: str | None = None
    """Of the file's contents: filled in when the spec is read, and checked when it is read again."""

    _trace: Trace = PrivateAttr()

    @model_validator(mode="before")
    @classmethod
    def _pin_contents(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("trace"), str):
            return data
        found = hashlib.sha256(_contents(data["trace"]).encode()).hexdigest()
        if data.get("sha256") not in {None, found}:
            raise ValueError(f"{data['trace']} has changed since this spec was written (sha256); leave sha256 out")
        return {**data, "sha256": found}

    @model_validator(mode="after")
    def _read(self) -> Self:
        format_ = None if self.format == "auto" else self.format
        try:
            trace = parse_trace(_contents(self.trace), field=self.field, format_=format_, window_s=self.window_s)
        except ValueError as error:
            raise ValueError(f"{self.trace}: {error}") from None
        steps = tuple((at_s, self._value(at_s, value)) for at_s, value in trace.steps)
        self._trace = replace(trace, steps=steps)
        return self

    def _value(self, at_s: float, value: float) -> float:
        """The value, within what a link can be configured to. Raises ValueError."""
        if self.field == "rate":
            least_bps = self.floor_bps or MIN_RATE_BPS
            if value < least_bps and self.floor_bps is None:
                raise ValueError(
                    f"{self.trace}: {format_rate(round(value))} at {at_s:g} s is below {format_rate(MIN_RATE_BPS)}, "
                    "the slowest a link can be; set `floor: 1mbit`, or a longer `window`"
                )
            if value > MAX_RATE_BPS:
                raise ValueError(
                    f"{self.trace}: {value:.4g} bit/s at {at_s:g} s; allowed: at most {format_rate(MAX_RATE_BPS)}"
                )
            return max(value, least_bps)
        most = 1.0
        if not 0 <= value <= most or (self.field == "loss" and value == most):
            allowed = "0s to 1s" if self.field == "delay" else "0 to less than 1"
            raise ValueError(f"{self.trace}: {self.field} {value:g} at {at_s:g} s; allowed: {allowed}")
        return value

    @property
    def values(self) -> frozenset[float]:
        """Everything that the setting becomes."""
        return frozenset(value for _, value in self._trace.steps)

    @property
    def repeats(self) -> bool:
        """Whether it begins again at its end."""
        return self._trace.format == "mahimahi" if self.repeat is None else self.repeat

    def settings(self, value: float) -> LinkOverride:
        """The link's settings at one step."""
        named: dict[str, Any] = {_FIELDS[self.field]: value}
        return LinkOverride.model_construct(_fields_set=set(named), **named)

    def timeline(self, key: str, *, endless: bool) -> Iterator[LinkChange]:
        """A change at every step; if `endless`, without end where the trace repeats."""
        for at_s, value in self._trace.replay(repeat=self.repeats and endless):
            yield LinkChange(at_s=at_s, link=self.link, settings=self.settings(value), source="trace", key=key)


def _contents(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot read the trace {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"cannot read the trace {path}: it is not UTF-8 text") from None


def _parse(value: object) -> object:
    """By its keys, so that an error names the key and not a kind that nobody wrote."""
    if isinstance(value, ScheduledChange | TracedChange):
        return value
    if isinstance(value, Mapping):
        return (TracedChange if "trace" in value else ScheduledChange).model_validate(dict(value))
    raise ValueError(f"{value!r} is no change; write {{at: 10s, link: w1-s0, rate: 50mbit}}")


Change = Annotated[ScheduledChange | TracedChange, BeforeValidator(_parse)]


def timeline(changes: Sequence[ScheduledChange | TracedChange], *, endless: bool = True) -> Iterator[LinkChange]:
    """All changes in the order of their times; those of one moment in the order of the spec. Traces that repeat go on
    without end, or come once."""
    each = [change.timeline(f"changes.{index}", endless=endless) for index, change in enumerate(changes)]
    return heapq.merge(*each, key=lambda change: change.at_s)


def described(change: ScheduledChange | TracedChange) -> str:
    """The change as people read it: `at 10s w1-s0: rate 50mbit`."""
    if isinstance(change, TracedChange):
        return f"{change.link}: {change.field} by {change.trace}, {len(change.values)} values"
    settings = change.settings.model_dump(mode="json", by_alias=True)
    words = [f"{name} {value}" for name, value in settings.items()]
    words += ["down"] if change.down else ["up"] if change.up else []
    return f"at {format_time(change.at_s)} {change.link}: {', '.join(words)}"
