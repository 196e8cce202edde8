"""Traces: how a setting of a link changes over time, read from the two formats that people have. Pure.

Mahimahi (Netravali et al., "Mahimahi: Accurate Record-and-Replay for HTTP", USENIX ATC 2015; mm-link(1)): one integer
per line, the millisecond at which one packet of 1500 bytes may be delivered; the file repeats after its last line. A
shaper has a rate and no list of opportunities, so the trace becomes the mean rate of consecutive windows.

CSV: `time_s,rate` in two columns, `#` begins a comment; each row holds until the next.
"""

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final, Literal

from transports.units import parse_fraction, parse_rate_bps, parse_time_s

TraceFormat = Literal["mahimahi", "csv"]
TraceField = Literal["rate", "delay", "loss"]

OPPORTUNITY_BITS: Final = 1500 * 8
"""What Mahimahi delivers at each line."""
WINDOW_S: Final = 0.1
"""Over which Mahimahi's opportunities are averaged unless the spec says otherwise. Short enough to keep the fades of a
cellular link (its own scheduler works over tens of milliseconds, TCP's reaction takes a round trip), long enough that
one opportunity more or less is 0.12 Mbit/s and not a jump of the rate."""

_UNITS: Final[dict[str, tuple[TraceField, Callable[[object], float], str]]] = {
    "rate": ("rate", parse_rate_bps, "bit"),
    "rate_bps": ("rate", parse_rate_bps, "bit"),
    "delay": ("delay", parse_time_s, "s"),
    "delay_s": ("delay", parse_time_s, "s"),
    "loss": ("loss", parse_fraction, ""),
}
"""What the header of a column may say: the setting, how its values are read, the unit of a bare number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """A setting over time."""

    format: TraceFormat
    field: TraceField
    steps: tuple[tuple[float, float], ...]
    """Since the start, in seconds, strictly increasing; and the value from there on: bit/s, seconds or a fraction."""
    period_s: float
    """After which a repeating trace begins again."""

    def replay(self, *, repeat: bool) -> Iterator[tuple[float, float]]:
        """The steps in order, without end where the trace repeats. A step that changes nothing is left out."""
        before: float | None = None
        for turn in count():
            for at_s, value in self.steps:
                if value != before:
                    yield turn * self.period_s + at_s, value
                before = value
            if not repeat or len({value for _, value in self.steps}) == 1:
                return


def parse_trace(
    text: str, *, field: TraceField, format_: TraceFormat | None = None, window_s: float = WINDOW_S
) -> Trace:
    """Read a trace; the format is recognised from the contents unless it is given.

    Raises ValueError with the line and what is wrong with it.
    """
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not lines:
        raise ValueError("is empty")
    if format_ is None:
        format_ = "csv" if "," in lines[0][1] else "mahimahi"
    if format_ == "csv":
        return _csv(lines, field)
    if field != "rate":
        raise ValueError(f"a Mahimahi trace gives the rate, not the {field}; use CSV (`time_s,{field}`) for that")
    return _mahimahi(lines, window_s)


def _mahimahi(lines: list[tuple[int, str]], window_s: float) -> Trace:
    moments_ms: list[int] = []
    for number, line in lines:
        if not (line.isascii() and line.isdecimal()):
            raise ValueError(f"line {number}: {line!r} is no integer; Mahimahi writes a millisecond on each line")
        moments_ms.append(int(line))
        if len(moments_ms) > 1 and moments_ms[-1] < moments_ms[-2]:
            raise ValueError(f"line {number}: {line} ms comes after {moments_ms[-2]} ms; times must not decrease")
    period_s = moments_ms[-1] / 1e3
    if period_s <= 0:
        raise ValueError("ends at 0 ms: a rate needs time")
    # The last window is as long as what is left; where that is less than half a window, the one before takes it in.
    num_windows = max(1, round(period_s / window_s))
    edges_s = [index * window_s for index in range(num_windows)] + [period_s]
    opportunities = [0] * num_windows
    for moment_ms in moments_ms:
        # mm-link delivers at the millisecond's end, and its last line closes the period.
        index = math.ceil(moment_ms / 1e3 / window_s - 1e-9) - 1
        opportunities[min(max(index, 0), num_windows - 1)] += 1
    steps = tuple(
        (edges_s[index], opportunities[index] * OPPORTUNITY_BITS / (edges_s[index + 1] - edges_s[index]))
        for index in range(num_windows)
    )
    return Trace(format="mahimahi", field="rate", steps=steps, period_s=period_s)


def _csv(lines: list[tuple[int, str]], field: TraceField) -> Trace:
    rows = [
        (number, [cell.strip() for cell in row])
        for (number, _), row in zip(lines, csv.reader([line for _, line in lines]), strict=True)
    ]
    for number, row in rows:
        if len(row) != 2:
            raise ValueError(f"line {number}: {len(row)} columns; a trace has two: time_s,{field}")
    title: str = field
    bare = False
    if rows[0][1][0] in {"time", "time_s"}:
        title, bare = rows[0][1][1], True
        rows = rows[1:]
    if title not in _UNITS or _UNITS[title][0] != field:
        names = ", ".join(name for name, (what, _, _) in _UNITS.items() if what == field)
        raise ValueError(f"the second column is {title!r}, not the {field}; allowed: {names}")
    _, parse, unit = _UNITS[title]
    if not rows:
        raise ValueError("has a header and no rows")
    steps: list[tuple[float, float]] = []
    for number, (when, what) in rows:
        try:
            at_s = float(when) if _is_number(when) else parse_time_s(when)
            # A bare number has a unit only if the header gives it one (`rate_bps`).
            has_unit = bare and title.endswith(("_bps", "_s")) and _is_number(what)
            value = float(what) if has_unit or (field == "loss" and _is_number(what)) else parse(what)
        except ValueError as error:
            hint = f"; or name the column {field}_{'bps' if field == 'rate' else 's'} and leave the unit out"
            raise ValueError(f"line {number}: {error}{hint if unit else ''}") from None
        if not (math.isfinite(at_s) and at_s >= 0 and math.isfinite(value)):
            raise ValueError(f"line {number}: {when},{what} is not a time and a {field}")
        if steps and at_s <= steps[-1][0]:
            raise ValueError(f"line {number}: {when} s does not come after the line before; times must increase")
        steps.append((at_s, value))
    # The last value holds as long as the one before it did.
    last_s = steps[-1][0] - steps[-2][0] if len(steps) > 1 else 1.0
    return Trace(format="csv", field=field, steps=tuple(steps), period_s=steps[-1][0] + last_s)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
