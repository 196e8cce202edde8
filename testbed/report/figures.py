"""What a figure is before anybody draws it: axes, and lines, marks, boxes and rules in the axes' own numbers. Pure.

A category is a whole number on its axis, whose ticks carry the names; a bar is a box around it. So every series is
placed by numbers alone, and :mod:`testbed.report.vega` draws all of them alike.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

BLUE: Final = "#4c8dd6"
NAVY: Final = "#2f63a8"
RED: Final = "#e4572e"
GREY: Final = "#9aa0a6"
AMBER: Final = "#f0b429"
TEAL: Final = "#2a9d8f"
DARK_TEAL: Final = "#1d6f65"
PURPLE: Final = "#8e6bbf"
INK: Final = "ink"
"""The colour of words: dark on light, light on dark."""
PALETTE: Final = (BLUE, RED, TEAL, AMBER, PURPLE, "#d6619e", "#7a9a3a", GREY)
"""Colours that hold on light and dark backgrounds."""

Dash = Literal["", "dash", "dot", "dashdot"]
Shape = Literal["circle", "square", "diamond", "triangle-up", "cross", "stroke"]
"""Of a mark; `stroke` is a line from left to right, `cross` a plus."""
Number = float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """What numbers mean in one direction, and which of them are written."""

    title: str = ""
    log: bool = False
    ticks: Mapping[float, str] = field(default_factory=dict)
    """Where a label stands and what it says, `\\n` for a new line; empty: round numbers."""
    categories: bool = False
    """Every label of `ticks` is shown, whatever room there is; on the horizontal axis upright where there is little."""
    suffix: str = ""
    """After each round number: ` %`."""
    ends: tuple[float, float] | None = None
    """Left and right, or bottom and top; the first may be the greater. None: by what is drawn."""
    zero: bool = False
    """Whether 0 is shown where `ends` are not given."""
    whole: bool = False
    """Whether only whole numbers are written."""
    grid: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class _Series:
    name: str
    """In the legend; series of one name are one entry."""
    color: str
    in_legend: bool = True
    keys: tuple[str, ...] = ()
    """Names of entries of the legend, each of which hides the series; by default its own name."""

    @property
    def hidden_by(self) -> tuple[str, ...]:
        """Names of entries of the legend."""
        return self.keys or (self.name,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line(_Series):
    """From point to point, with a gap where a value is None."""

    x: Sequence[float]
    y: Sequence[Number]
    dash: Dash = ""
    width: float = 1.5
    step: bool = False
    """Each value holds until the next."""
    readout: bool = True
    """Whether its value is shown beside the pointer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Places(_Series):
    """Each of which may look otherwise and say something of its own."""

    hollow: Sequence[bool] | bool = False
    """Of each, or of all."""
    hover: Sequence[str] = ()
    """What is shown beside the pointer, of each."""

    @property
    def hollow_each(self) -> Sequence[bool]:
        """Empty where all are alike."""
        return () if isinstance(self.hollow, bool) else self.hollow

    @property
    def all_hollow(self) -> bool:
        """Whether all of them are."""
        return self.hollow is True or (bool(self.hollow_each) and all(self.hollow_each))


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks(_Places):
    """A symbol at each point that has a value."""

    x: Sequence[float]
    y: Sequence[Number]
    shape: Shape = "circle"
    size: float = 9.0
    """Pixels across."""
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    """Ends of a bar of error at each point."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Boxes(_Places):
    """Rectangles: bars, spans of time, cells."""

    left: Sequence[float]
    right: Sequence[float]
    bottom: Sequence[Number]
    top: Sequence[Number]
    colors: Sequence[str] = ()
    """Of each; empty: `color`."""
    opacity: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules(_Series):
    """Vertical lines from bottom to top, with words along them."""

    x: Sequence[float]
    texts: Sequence[str] = ()
    width: float = 1.0
    dash: Dash = ""
    in_legend: bool = False


Series = Line | Marks | Boxes | Rules


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One plot. Series are drawn in their order, the last on top."""

    title: str
    """For who cannot see it, and for the file beside the page."""
    height: int
    """Pixels between the axes."""
    x: Axis
    y: Axis
    series: Sequence[Series]
    zoom: bool = False
    """Whether dragging over the plot shows a part of the horizontal axis, which then holds no category."""

    @property
    def legend(self) -> list[Series]:
        """The first series of each name that the legend shows."""
        found: dict[str, Series] = {}
        for series in self.series:
            if series.in_legend:
                found.setdefault(series.name, series)
        return list(found.values())

    def domain(self, axis: Literal["x", "y"]) -> tuple[float, float]:
        """From where to where an axis goes."""
        described = self.x if axis == "x" else self.y
        if described.ends is not None:
            return described.ends
        values = [value for series in self.series for value in _values(series, axis) if value > 0 or not described.log]
        if described.categories:
            values += [place + side for place in described.ticks for side in (-0.5, 0.5)]
        if described.zero:
            values.append(0.0)
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        return (low, high) if high > low else (low, low + 1.0) if not described.log else (low / 2, low * 2)


def _values(series: Series, axis: Literal["x", "y"]) -> Iterator[float]:
    if isinstance(series, Rules):
        return
    columns: tuple[Sequence[Number], ...]
    if isinstance(series, Boxes):
        columns = (series.left, series.right) if axis == "x" else (series.bottom, series.top)
    elif axis == "x":
        columns = (series.x,)
    else:
        columns = (series.y,) if isinstance(series, Line) else (series.y, series.low, series.high)
    for column in columns:
        yield from (value for value in column if value is not None and math.isfinite(value))


def decades(low: float, high: float) -> dict[float, str]:
    """Ticks of a logarithmic axis at 1, 2 and 5, each as a whole number: `0.5`, `20`, `1000`."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = (float(f"{step * 10.0**power:.12g}") for power in powers for step in (1, 2, 5))
    return {mark: f"{mark:g}" for mark in marks}


def rounded(value: float) -> float:
    """Six significant digits: what a screen can show, at a third of the size."""
    return float(f"{value:.6g}")
