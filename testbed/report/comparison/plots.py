"""A sweep's figures: measured points, with what theory says of them drawn in.

The horizontal axis is the first that varies and is a quantity, with a line for each combination of the others; where
no axis is a quantity, the first that varies is spread out in groups of bars. None where there is nothing to draw.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from testbed.report import wording
from testbed.report.comparison.axes import grouped, horizontal, namer
from testbed.report.comparison.points import ComparedPoint, Comparison
from testbed.report.figures import (
    GREY,
    INK,
    PALETTE,
    Axis,
    Boxes,
    Dash,
    Figure,
    Line,
    Marks,
    Number,
    Series,
    Shape,
    decades,
    rounded,
)
from testbed.report.plots import stacked

_LOG_RATIO: Final = 8
"""An axis whose values differ by more than this factor is logarithmic."""
_PLOT_HEIGHT: Final = 300
_BARS_SHARE: Final = 0.72
"""Of a category's room, that of its bars."""
_NUM_BARS: Final = 40
"""Points, of which the parts of an iteration are drawn."""

Row = Mapping[str, Any]
Value = Callable[[Row], float | None]


@dataclass(frozen=True, slots=True)
class _Curve:
    """A number of every point, and how it is drawn."""

    name: str
    value: Value
    dash: Dash = ""
    """Of theory; empty: measured."""


_DEGRADED: Final = _Curve("degraded: hollow", lambda _: None)
"""For the legend: measured points that stand with reservations."""


def iteration(comparison: Comparison) -> Figure | None:
    """Iteration time between all communication hidden and none of it."""
    curves = (
        _Curve("measured", lambda row: row["iteration_time_s"]),
        _Curve("predicted", lambda row: row["iteration_predicted_s"], "dash"),
        _Curve("nothing hidden", _nothing_hidden, "dashdot"),
        _Curve("all hidden that can be", _all_hidden, "dot"),
    )
    return _figure(comparison, curves, "iteration, ms", scale=1e3, low_high=True)


def allreduce(comparison: Comparison) -> Figure | None:
    """All-reduce time beside the prediction and the bound."""
    curves = (
        _Curve("measured", lambda row: row["allreduce_time_s"]),
        _Curve("predicted", lambda row: row["allreduce_predicted_s"], "dash"),
        _Curve("bound", lambda row: row["allreduce_bound_s"], "dot"),
    )
    return _figure(comparison, curves, "all-reduce, ms", scale=1e3)


def scaling(comparison: Comparison) -> Figure | None:
    """The scaling factor beside what it would be with all communication hidden, and with none; where cores decide at
    any point, network efficiency instead."""
    rows = [point.row() for point in comparison.points]
    scales = all(row["scaling_factor"] is not None for row in rows if row["iteration_time_s"] is not None)
    name, key = ("scaling factor", "compute_alone_time_s") if scales else ("network efficiency", "compute_only_time_s")
    curves = (
        _Curve("measured", lambda row: row[name.replace(" ", "_")]),
        _Curve("predicted", lambda row: _share(row[key], row["iteration_predicted_s"]), "dash"),
        _Curve("nothing hidden", lambda row: _share(row[key], _nothing_hidden(row)), "dashdot"),
        _Curve("all hidden that can be", lambda row: _share(row[key], _all_hidden(row)), "dot"),
    )
    return _figure(comparison, curves, name, scale=1.0, linear=True)


def command(comparison: Comparison) -> Figure | None:
    """The time of a program of the user's, from its start to its end on the last worker."""
    curves = (_Curve("measured", lambda row: row["command_time_s"]),)
    return _figure(comparison, curves, "command, s", scale=1.0)


def breakdown(comparison: Comparison) -> Figure | None:
    """The parts of each point's iteration, stacked; None where there are only programs of the user's."""
    measured = [point for point in comparison.points if point.row()["iteration_time_s"] is not None]
    if not measured:
        return None
    points = measured[:_NUM_BARS]
    rows = [point.row() for point in points]
    name_of = namer(comparison.points, comparison.paths)
    names = [f"{name_of(point)}{_word(point)}" for point in points]
    among = wording.among_text(_NUM_BARS, len(measured), "points (the others are in the table)")
    parts = {name: [rounded(1e3 * float(row[field] or 0.0)) for row in rows] for name, field, *_ in wording.PARTS}
    return Figure(
        title="Where an iteration goes",
        height=20 + 26 * len(points),
        x=Axis(title=f"milliseconds of an iteration{among}", zero=True),
        y=Axis(ticks=dict(enumerate(names)), categories=True, ends=(len(names) - 0.5, -0.5), grid=False),
        series=stacked(parts, range(len(points)), 0.38, names, horizontal=True),
    )


def _word(point: ComparedPoint) -> str:
    return " (degraded)" if point.degraded else ""


def _all_hidden(row: Row) -> float | None:
    compute_s = row["compute_only_time_s"]
    return None if compute_s is None else max(compute_s, _of_iteration_s(row, "allreduce_bound_s"))


def _nothing_hidden(row: Row) -> float | None:
    compute_s = row["compute_only_time_s"]
    return None if compute_s is None else float(compute_s + _of_iteration_s(row, "allreduce_predicted_s"))


def _of_iteration_s(row: Row, exchange: str) -> float:
    """An exchange's share of each of the iterations that go by from one to the next."""
    return float(row[exchange] / row["iterations_per_exchange"])


def _share(part_s: float | None, whole_s: float | None) -> float | None:
    return part_s / whole_s if part_s is not None and whole_s else None


def _figure(
    comparison: Comparison,
    curves: Sequence[_Curve],
    title: str,
    *,
    scale: float,
    linear: bool = False,
    low_high: bool = False,
) -> Figure | None:
    measured = [value for point in comparison.points if (value := curves[0].value(point.row())) is not None]
    if not measured:
        return None
    paths, numbers = horizontal(comparison)
    logarithmic = not linear and bool(numbers) and min(measured) > 0 and max(measured) / min(measured) > _LOG_RATIO
    groups = grouped(comparison, paths)
    place_of = namer(comparison.points, paths)
    labels = list(dict.fromkeys(place_of(point) for point in comparison.points))
    places: Mapping[str, float] = numbers or {label: float(place) for place, label in enumerate(labels)}
    series: list[Series] = []
    for position, (group, unsorted) in enumerate(groups.items()):
        points = sorted(unsorted, key=lambda point: places.get(place_of(point), 0.0))
        color = PALETTE[position % len(PALETTE)]
        for curve in curves:
            values = [curve.value(point.row()) for point in points]
            if logarithmic:
                values = [value if value is not None and value > 0 else None for value in values]
            if all(value is None for value in values):
                continue
            texts = [place_of(point) for point in points]
            drawn = _Drawn(
                curve=curve,
                group=group,
                color=color,
                x=[places[text] for text in texts],
                y=[None if value is None else rounded(scale * value) for value in values],
                hollow=[point.degraded and not curve.dash for point in points],
                hover=[
                    _hover(group, curve, f"{text}{_word(point)}", value, scale, title)
                    for text, point, value in zip(texts, points, values, strict=True)
                ],
                spread=_spread(points, scale) if low_high and not curve.dash else ((), ()),
            )
            series += drawn.as_lines() if numbers else drawn.as_bars(position, len(groups))
    several = "" not in groups
    series += [_example(curve, as_lines=bool(numbers)) for curve in curves if curve.dash or (several and numbers)]
    if any(point.degraded for point in comparison.points):
        series.append(_example(_DEGRADED, as_lines=bool(numbers)))
    return Figure(
        title=f"{title} over {', '.join(paths)}",
        height=_PLOT_HEIGHT,
        x=_horizontal_axis(paths, numbers, labels),
        y=_logarithmic(title, series) if logarithmic else Axis(title=title, zero=True),
        series=series,
    )


def _hover(group: str, curve: _Curve, place: str, value: Number, scale: float, title: str) -> str:
    if value is None:
        return ""
    unit = " ms" if title.endswith("ms") else ""
    return f"{', '.join(filter(None, (group, curve.name)))}\n{place}: {scale * value:.4g}{unit}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drawn:
    """One number of one group's points, in the figure's units."""

    curve: _Curve
    group: str
    color: str
    x: Sequence[float]
    y: Sequence[Number]
    hollow: Sequence[bool]
    """Of degraded points."""
    hover: Sequence[str]
    spread: tuple[Sequence[Number], Sequence[Number]]

    @property
    def _name(self) -> str:
        return self.group or self.curve.name

    @property
    def _keys(self) -> tuple[str, ...]:
        """The entry of its group hides it, and that of what it is."""
        return (self.group, self.curve.name) if self.group else (self.curve.name,)

    @property
    def _in_legend(self) -> bool:
        return not self.curve.dash

    def as_lines(self) -> list[Series]:
        """Measured: a line through filled marks; predicted: dashed through hollow ones; else a line alone."""
        width = 1.5 if self.curve.dash else 2.0
        line = Line(
            name=self._name,
            color=self.color,
            in_legend=False,
            keys=self._keys,
            x=self.x,
            y=self.y,
            dash=self.curve.dash,
            width=width,
        )
        if self.curve.dash not in ("", "dash"):
            # One point is no line.
            return [line] if len(self.x) > 1 else [self._marks(_shape(self.curve), self.x, True)]
        return [
            replace(line, readout=False),
            self._marks(_shape(self.curve), self.x, list(self.hollow) if not self.curve.dash else True),
        ]

    def as_bars(self, position: int, num_groups: int) -> list[Series]:
        """Measured: bars beside those of other groups; theory: a mark across each."""
        width = _BARS_SHARE / num_groups
        middles = [place - _BARS_SHARE / 2 + (position + 0.5) * width for place in self.x]
        if self.curve.dash:
            return [self._marks(_shape(self.curve), middles, self.curve.dash != "dot")]
        known = [index for index, value in enumerate(self.y) if value is not None]
        low, high = self.spread
        bars = Boxes(
            name=self._name,
            color=self.color,
            in_legend=self._in_legend,
            keys=self._keys,
            left=[middles[index] - 0.45 * width for index in known],
            right=[middles[index] + 0.45 * width for index in known],
            bottom=[0.0] * len(known),
            top=[self.y[index] for index in known],
            hollow=[self.hollow[index] for index in known],
            hover=[self.hover[index] for index in known],
        )
        ends = Marks(
            name=self._name,
            color=INK,
            in_legend=False,
            keys=self._keys,
            x=middles,
            y=[None] * len(middles),
            low=low,
            high=high,
        )
        return [bars, *([ends] if low else [])]

    def _marks(self, shape: Shape, x: Sequence[float], hollow: Sequence[bool] | bool) -> Marks:
        low, high = self.spread
        return Marks(
            name=self._name,
            color=self.color if x is self.x else INK,
            in_legend=self._in_legend,
            keys=self._keys,
            x=x,
            y=self.y,
            shape=shape,
            size=26.0 if shape == "stroke" else 9.0,
            hollow=hollow,
            low=low,
            high=high,
            hover=self.hover,
        )


def _shape(curve: _Curve) -> Shape:
    """Theory on a bar: a line across it for a bound, a diamond for the prediction, a triangle for what is derived from
    both."""
    shapes: Mapping[Dash, Shape] = {"": "circle", "dash": "diamond", "dot": "stroke", "dashdot": "triangle-up"}
    return shapes[curve.dash]


def _horizontal_axis(paths: Sequence[str], numbers: Mapping[str, float], labels: Sequence[str]) -> Axis:
    title = ", ".join(paths)
    if not numbers:
        ticks = {float(place): _wrapped(label) for place, label in enumerate(labels)}
        return Axis(title=title, ticks=ticks, categories=True, grid=False)
    wide = min(numbers.values()) > 0 and max(numbers.values()) / min(numbers.values()) > _LOG_RATIO
    return Axis(title=title, ticks={number: text for text, number in numbers.items()}, log=wide)


def _logarithmic(title: str, series: Sequence[Series]) -> Axis:
    drawn = itertools.chain.from_iterable(each.y for each in series if isinstance(each, Line | Marks))
    values = [value for value in drawn if value]
    return Axis(title=title, log=True, ticks=decades(min(values), max(values)))


def _wrapped(label: str) -> str:
    """In lines, broken where words and options end."""
    return re.sub(r" |(?<=,)|(?=\()", "\n", label)


def _spread(points: Sequence[ComparedPoint], scale: float) -> tuple[Sequence[Number], Sequence[Number]]:
    """From the 10th to the 90th percentile of one run's iterations, or over the medians of several."""

    def ends(field: str) -> list[Number]:
        rows: list[Row] = [point.row() for point in points]
        return [None if row[field] is None else rounded(scale * row[field]) for row in rows]

    return ends("iteration_time_low_s"), ends("iteration_time_high_s")


def _example(curve: _Curve, *, as_lines: bool) -> Series:
    """An entry of the legend that says what a way of drawing means, and hides what is drawn so."""
    if curve is _DEGRADED:
        # It hides nothing: no series has its name.
        shape: Shape = "circle" if as_lines else "square"
        return Marks(name=curve.name, color=GREY, x=[], y=[], shape=shape, hollow=True)
    if not as_lines:
        return Marks(name=curve.name, color=INK, x=[], y=[], shape=_shape(curve), hollow=curve.dash != "dot")
    if curve.dash in ("", "dash"):
        return Marks(name=curve.name, color=GREY, x=[], y=[], shape=_shape(curve), hollow=bool(curve.dash))
    return Line(name=curve.name, color=GREY, x=[], y=[], dash=curve.dash)


DEFINITIONS: Final[Mapping[str, str]] = {
    "iteration": "Mean iteration, with its 10th and 90th percentile (of several runs: the lowest and the highest "
    "mean). Hollow: degraded. Predicted, dashed with hollow diamonds: by the cost model, where computing takes a "
    "configured time. Theory: the compute-only time and the all-reduce, one after the other (nothing hidden), and the "
    "longer of the compute-only time and the bound (everything hidden). Where workers average every few iterations, "
    "each of these has its share of an all-reduce.",
    "command": "From the start of the first worker's process to the end of the last one's, in seconds (of several runs "
    "their median). Hollow: degraded.",
    "allreduce": f"{wording.DEFINITIONS['allreduce']} {wording.DEFINITIONS['predicted']} "
    "The bound counts bytes, no codec, no core, and no burst that a link lets through at once after a pause: short "
    "exchanges can take a little less.",
    "scaling": "Scaling factor: samples a second of n workers over n times those of one alone. Where workers take "
    "cores from each other at any point, network efficiency instead: the same workers on the same cores computing "
    "without communicating, over the iteration.",
    "breakdown": f"{wording.DEFINITIONS['iteration']} Exposed: {wording.DEFINITIONS['exposed']}",
}
"""What each figure says, for the page."""
