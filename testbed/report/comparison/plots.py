"""A sweep's figures as plain plotly JSON: measured points, with what theory says of them drawn in.

The horizontal axis is the first that varies and is a quantity, with a line for each combination of the others; where
no axis is a quantity, the first that varies is spread out in groups of bars. None where there is nothing to draw.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from testbed.report import wording
from testbed.report.comparison.axes import grouped, horizontal, point_name
from testbed.report.comparison.points import ComparedPoint, Comparison
from testbed.report.plots import AMBER, BLUE, GREY, PALETTE, PURPLE, RED, TEAL, Figure, rounded

_LOG_RATIO: Final = 8
"""An axis whose values differ by more than this factor is logarithmic."""
_DARK: Final = "#565d66"
_PLOT_HEIGHT: Final = 330
_LEGEND_LINE_HEIGHT: Final = 19
"""Room for an entry of the legend above a plot: where names are long, each has a line of its own."""
_NUM_UPRIGHT: Final = 8
"""Names of more places stand on their side."""
_HOLLOW: Final = "rgba(0,0,0,0)"
_ONLY: Final = "all"
"""The group where there is no other: plotly takes an empty name for none, and puts each trace beside the others."""
_NUM_BARS: Final = 40
"""Points, of which the parts of an iteration are drawn."""

Row = Mapping[str, Any]
Value = Callable[[Row], float | None]


@dataclass(frozen=True, slots=True)
class _Curve:
    """A number of every point, and how it is drawn."""

    name: str
    value: Value
    dash: str = ""
    """Of theory; empty: measured."""


_DEGRADED: Final = _Curve("degraded: hollow", lambda row: row["iteration_time_s"])
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


def breakdown(comparison: Comparison) -> Figure | None:
    """The parts of each point's iteration, stacked."""
    points = [point for point in comparison.points if point.usable][:_NUM_BARS]
    if not points:
        return None
    rows = [point.row() for point in points]
    names = [f"{point_name(point, comparison.paths)}{_word(point)}" for point in points]
    colors = (BLUE, TEAL, AMBER, RED, PURPLE, GREY)
    parts = [
        (name, [float(row[field] or 0.0) for row in rows], color)
        for (name, field, *_), color in zip(wording.PARTS, colors, strict=True)
    ]
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": names,
                "x": [rounded(1e3 * value) for value in values],
                "marker": {"color": color, "line": {"width": 0}},
                "hovertemplate": "%{x:.4g} ms",
            }
            for name, values, color in parts
        ],
        "layout": {
            "height": 240 + 24 * len(points),  # its legend has a line for each part
            "barmode": "stack",
            "bargap": 0.25,
            "xaxis": {"title": {"text": "milliseconds of an iteration"}},
            "yaxis": {"autorange": "reversed", "dtick": 1, "showgrid": False},
        },
    }


def _word(point: ComparedPoint) -> str:
    return " (degraded)" if point.degraded else ""


def _all_hidden(row: Row) -> float | None:
    compute_s = row["compute_only_time_s"]
    return None if compute_s is None else max(compute_s, row["allreduce_bound_s"])


def _nothing_hidden(row: Row) -> float | None:
    compute_s = row["compute_only_time_s"]
    return None if compute_s is None else float(compute_s + row["allreduce_predicted_s"])


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
    axis, numbers = horizontal(comparison)
    groups = grouped(comparison, axis)
    data = []
    for position, (group, unsorted) in enumerate(groups.items()):
        points = sorted(unsorted, key=lambda point: numbers.get(point_name(point, axis), 0.0))
        color = PALETTE[position % len(PALETTE)]
        texts = [point_name(point, axis) for point in points]
        x: list[float] | list[str] = [numbers[text] for text in texts] if numbers else texts
        for curve in curves:
            values = [curve.value(point.row()) for point in points]
            if all(value is None for value in values):
                continue
            trace: Figure = {
                "name": group or curve.name,
                "legendgroup": group,
                "showlegend": bool(group) and not curve.dash,
                "x": x,
                "y": [None if value is None else rounded(scale * value) for value in values],
                "customdata": [f"{text}{_word(point)}" for text, point in zip(texts, points, strict=True)],
                "hovertemplate": f"{group or curve.name}, {curve.name}, %{{customdata}}: %{{y:.4g}}<extra></extra>",
            }
            error = _spread(points, scale) if low_high and not curve.dash else {}
            hollow = [point.degraded and not curve.dash for point in points]
            data.append({**trace, **error, **_drawn(curve, color, group, hollow, as_lines=bool(numbers))})
    first = next(iter(groups))
    data += [_legend(curve, first, as_lines=bool(numbers)) for curve in curves if curve.dash or "" in groups]
    if any(point.degraded for point in comparison.points):
        data.append(_legend(_DEGRADED, first, as_lines=bool(numbers)))
    top = max(measured)
    logarithmic = not linear and bool(numbers) and min(measured) > 0 and top / min(measured) > _LOG_RATIO
    vertical = {
        "title": {"text": title},
        **(_logarithmic(data) if logarithmic else {"rangemode": "tozero"}),
    }
    labels = list(dict.fromkeys(point_name(point, axis) for point in comparison.points))
    layout: Figure = {
        "height": _PLOT_HEIGHT + _LEGEND_LINE_HEIGHT * sum(trace.get("showlegend", True) for trace in data),
        "xaxis": _horizontal_axis(axis, numbers, labels),
        "yaxis": vertical,
    }
    if not numbers:
        layout |= {"barmode": "group", "scattermode": "group", "bargap": 0.3, "scattergap": 0.3}
    return {"data": data, "layout": layout}


def _horizontal_axis(paths: Sequence[str], numbers: Mapping[str, float], labels: Sequence[str]) -> Figure:
    axis: Figure = {"title": {"text": ", ".join(paths)}}
    if numbers:
        axis |= {"tickvals": list(numbers.values()), "ticktext": list(numbers)}
        if min(numbers.values()) > 0 and max(numbers.values()) / min(numbers.values()) > _LOG_RATIO:
            axis["type"] = "log"
    else:
        axis |= {"type": "category", "tickvals": labels, "ticktext": [_wrapped(label) for label in labels]}
        axis["tickangle"] = 0 if len(labels) <= _NUM_UPRIGHT else 90
    return axis


def _logarithmic(traces: Sequence[Figure]) -> Figure:
    """Every line at 1, 2 or 5 has its whole number: plotly leaves the zeros out between powers of ten."""
    values = [value for trace in traces for value in trace["y"] if value]
    decades = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    marks = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    return {"type": "log", "tickvals": marks, "ticktext": [f"{mark:g}" for mark in marks]}


def _wrapped(label: str) -> str:
    """In lines, broken where words and options end."""
    return re.sub(r" |(?<=,)|(?=\()", "<br>", label)


def _drawn(curve: _Curve, color: str, group: str, hollow: Sequence[bool], *, as_lines: bool) -> Figure:
    """How a curve's points look; hollow ones are those of degraded runs."""
    if as_lines:
        if curve.dash:
            line = {"line": {"color": color, "width": 1.5, "dash": curve.dash}}
            diamonds = {"mode": "lines+markers", "marker": {"symbol": "diamond-open", "size": 9}}
            return {"type": "scatter", **(diamonds if curve.dash == "dash" else {"mode": "lines"}), **line}
        symbols = ["circle-open" if each else "circle" for each in hollow]
        marker = {
            "symbol": symbols,
            "size": 9,
            "line": {"color": color, "width": [2 if each else 0 for each in hollow]},
        }
        return {"type": "scatter", "mode": "lines+markers", "marker": marker, "line": {"color": color, "width": 2}}
    if curve.dash:
        return {"type": "scatter", "mode": "markers", "offsetgroup": group or _ONLY, "marker": _tick(curve)}
    fill = [_HOLLOW if each else color for each in hollow]
    marker = {"color": fill, "line": {"color": color, "width": [2 if each else 0 for each in hollow]}}
    return {"type": "bar", "offsetgroup": group or _ONLY, "marker": marker}


def _tick(curve: _Curve) -> Figure:
    """Theory on a bar, hollow: a line across it for a bound, a diamond for the prediction, a triangle for what is
    derived from both."""
    if curve.dash == "dot":
        return {"symbol": "line-ew", "size": 26, "line": {"color": _DARK, "width": 3}}
    symbol = "diamond-open" if curve.dash == "dash" else "triangle-up-open"
    return {"symbol": symbol, "size": 10, "color": _DARK, "line": {"color": _DARK, "width": 2}}


def _spread(points: Sequence[ComparedPoint], scale: float) -> Figure:
    """From the 10th to the 90th percentile of one run's iterations, or over the medians of several."""
    rows = [point.row() for point in points]

    def away(row: Row, end: str) -> float | None:
        middle, at = row["iteration_time_s"], row[f"iteration_time_{end}_s"]
        return None if middle is None or at is None else rounded(scale * abs(at - middle))

    ends = {"array": [away(row, "high") for row in rows], "arrayminus": [away(row, "low") for row in rows]}
    return {"error_y": {"type": "data", "symmetric": False, "thickness": 1, "width": 4, **ends}}


def _legend(curve: _Curve, group: str, *, as_lines: bool) -> Figure:
    """An entry that says what a way of drawing means. It takes no place of its own beside that group's."""
    if not as_lines:
        symbol = "square-open" if curve is _DEGRADED else "square"
        shape: Figure = {
            "offsetgroup": group or _ONLY,
            "mode": "markers",
            "marker": _tick(curve) if curve.dash else {"symbol": symbol, "size": 12, "color": PALETTE[0]},
        }
    elif curve.dash:
        shape = _drawn(curve, GREY, group, [], as_lines=True)
    elif curve is _DEGRADED:
        shape = {"mode": "markers", "marker": {"symbol": "circle-open", "size": 9, "color": GREY}}
    else:
        shape = {"mode": "lines+markers", "line": {"color": PALETTE[0]}}
    return {"type": "scatter", "name": curve.name, "x": [None], "y": [None], "legendgroup": curve.name, **shape}


DEFINITIONS: Final[Mapping[str, str]] = {
    "iteration": "Mean iteration, with its 10th and 90th percentile (of several runs: the lowest and the highest "
    "mean). Hollow: degraded. Predicted, dashed with hollow diamonds: by the cost model, where computing takes a "
    "configured time. Theory: the compute-only time and the all-reduce, one after the other (nothing hidden), and the "
    "longer of the compute-only time and the bound (everything hidden).",
    "allreduce": f"{wording.DEFINITIONS['allreduce']} {wording.DEFINITIONS['predicted']} "
    "Theory counts bytes and rounds, no codec and no core.",
    "scaling": "Scaling factor: samples a second of n workers over n times those of one alone. Where workers take "
    "cores from each other at any point, network efficiency instead: the same workers on the same cores computing "
    "without communicating, over the iteration.",
    "breakdown": f"{wording.DEFINITIONS['iteration']} Exposed: {wording.DEFINITIONS['exposed']}",
}
"""What each figure says, for the page."""
