"""A figure as a Vega specification, as plain JSON: the same for the page, where it is drawn by the browser, and for
pictures beside it. Source: the Vega specification, version 6.

Colours of axes and words are the page's own variables of CSS, so that a page that turns dark, or is printed, draws
nothing again.
"""

import csv
import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from testbed.report.figures import INK, Axis, Boxes, Dash, Figure, Line, Marks, Rules, Series

Json = dict[str, Any]

_DASHES: Final[Mapping[Dash, list[int]]] = {"": [], "dash": [7, 5], "dot": [2, 3], "dashdot": [7, 4, 2, 4]}
_CHARACTER_WIDTH: Final = 6.6
_SYMBOL_WIDTH: Final = 42
_SWATCH_SIZE: Final = 110
"""Square pixels; one number for all entries."""
_LONG_STROKE: Final = "M-1.7,0H1.7"
"""In halves of a symbol's width: long enough for dashes to be told apart."""
_UPRIGHT_WIDTH: Final = 12
"""Pixels beside a label that lies; with less room they stand."""
_AXIS_WIDTH: Final = 60
"""Pixels of the vertical axis, about. What depends on the room that there is asks for that of the whole figure,
`outer`: between the axes it is only known when everything around them has been laid out."""
_LARGEST_LABEL: Final = 0.42
"""Of the whole width: a longer name on the vertical axis is cut, and whole beside the pointer."""
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_PICTURE_FONT: Final = "Arial, Helvetica, 'Liberation Sans', sans-serif"
"""The engine lays pictures out with one of these widths; who looks at them may have a wider one."""
_SPARE_WIDTH: Final = 1.2
"""Pixels that are left for each character of a picture's legend, therefore."""


def config(ink: str, line: str, grid: str, font: str) -> Json:
    """How what is not data looks: colours of words, of axes and of the grid."""
    words = {"labelColor": ink, "titleColor": ink, "labelFont": font, "titleFont": font, "labelFontSize": 12}
    return {
        "axis": {
            **words,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "gridColor": grid,
            "domainColor": line,
            "tickColor": line,
            "labelPadding": 4,
            "titlePadding": 8,
        },
        "legend": {**words, "rowPadding": 3, "offset": 8},
        "text": {"font": font},
        "style": {"cell": {"stroke": "transparent"}},
        "group": {"stroke": "transparent"},
    }


_INK: Final = "#1b1f24"
PAGE: Final = config("var(--ink)", "var(--line)", "var(--grid)", _FONT)
PAPER: Final = config(_INK, "#9aa3ad", "#e3e7eb", _PICTURE_FONT)


def on_page(figure: Figure) -> Json:
    """As wide as the element that it is drawn in, with zoom; `config` is :data:`PAGE`, once for the whole page."""
    size = "max(120, isFinite(containerSize()[0]) ? containerSize()[0] : 720)"
    sizes = [
        {"name": name, "init": size, "on": [{"events": "window:resize", "update": size}]} for name in ("outer", "width")
    ]
    made = replace(figure, series=[_inked(series, "var(--ink)") for series in figure.series])
    return _specification(made, [*sizes, *(_zoom() if figure.zoom else [])], brush=figure.zoom, spare=0.0)


def on_paper(figure: Figure, *, width: int, caption: str = "") -> Json:
    """`width` pixels, labels and legend included, dark on white; above it what must not be lost where the picture goes,
    in two lines at most."""
    still = [{"name": "xDomain", "value": None}] if figure.zoom else []
    made = replace(figure, series=[_inked(series, _INK) for series in figure.series])
    return {
        **_specification(made, [{"name": "outer", "value": width}, *still], brush=False, spare=_SPARE_WIDTH),
        **({"title": _caption(caption, width)} if caption else {}),
        "width": width,
        "background": "#ffffff",
        "config": PAPER,
    }


def _caption(text: str, width: int) -> Json:
    lines = textwrap.wrap(text, int(width / (_CHARACTER_WIDTH + _SPARE_WIDTH)), max_lines=2, placeholder=" ...")
    font = {"font": _PICTURE_FONT, "fontSize": 12, "fontWeight": "normal", "color": _INK}
    return {"text": lines, "anchor": "start", "frame": "bounds", "offset": 10, **font}


def _inked(series: Series, ink: str) -> Series:
    return replace(series, color=ink) if series.color == INK else series


def readouts(figure: Figure) -> Json | None:
    """What the page shows beside the pointer over lines: each one's data set, name and colour; None without lines."""
    shown = [
        {"data": f"s{number}", "name": series.name, "color": series.color}
        for number, series in enumerate(figure.series)
        if isinstance(series, Line) and series.readout
    ]
    return {"x": figure.x.title, "y": figure.y.suffix or f" {figure.y.title}", "lines": shown} if shown else None


def _specification(figure: Figure, signals: Sequence[Json], *, brush: bool, spare: float) -> Json:
    legend = figure.legend
    swatches = [{"name": "swatches", "value": [_swatch(series) for series in legend]}] if legend else []
    return {
        "$schema": "https://vega.github.io/schema/vega/v6.json",
        "description": figure.title,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": 5,
        "height": figure.height,
        "signals": [*signals, *(_toggled() if legend else []), *_tick_signals(figure), *swatches],
        "data": [
            *([_HIDDEN] if legend else []),
            *(_data(number, series, toggled=bool(legend)) for number, series in enumerate(figure.series)),
        ],
        "scales": [
            _scale("x", figure),
            _scale("y", figure),
            *(
                [{"name": "legend", "type": "ordinal", "domain": names, "range": [each.color for each in legend]}]
                if (names := [series.name for series in legend])
                else []
            ),
        ],
        "axes": [_horizontal(figure.x), _vertical(figure.y)],
        "legends": [_legend(names, figure.y, spare)] if names else [],
        "marks": [
            *(mark for number, series in enumerate(figure.series) for mark in _marks(number, series)),
            *([_BRUSH] if brush else []),
        ],
    }


def _toggled() -> list[Json]:
    events = "@swatch:click, @label:click"
    return [
        {"name": "toggled", "value": None, "on": [{"events": events, "update": "{value: datum.value}", "force": True}]}
    ]


_HIDDEN: Final[Json] = {"name": "hidden", "on": [{"trigger": "toggled", "toggle": "toggled"}]}
"""Entries of the legend that were clicked on, once or three times."""


def _zoom() -> list[Json]:
    """Dragging chooses a stretch of the horizontal axis, a double click the whole again."""
    at = "clamp(x(), 0, width)"
    return [
        {
            "name": "brush",
            "value": [0, 0],
            "on": [
                {"events": "mousedown", "update": f"[{at}, {at}]"},
                {"events": "[mousedown, window:mouseup] > window:mousemove!", "update": f"[brush[0], {at}]"},
                {"events": {"signal": "xDomain"}, "update": "[0, 0]"},
            ],
        },
        {
            "name": "xDomain",
            "value": None,
            "on": [
                {
                    "events": "window:mouseup",
                    "update": "abs(brush[1] - brush[0]) > 5 ? "
                    "[invert('x', min(brush[0], brush[1])), invert('x', max(brush[0], brush[1]))] : xDomain",
                },
                {"events": "dblclick", "update": "null"},
            ],
        },
    ]


_BRUSH: Final[Json] = {
    "type": "rect",
    "interactive": False,
    "encode": {
        "update": {
            "x": {"signal": "brush[0]"},
            "x2": {"signal": "brush[1]"},
            "y": {"value": 0},
            "y2": {"signal": "height"},
            "fill": {"value": "#888888"},
            "fillOpacity": {"value": 0.2},
        }
    },
}


def _scale(name: str, figure: Figure) -> Json:
    axis = figure.x if name == "x" else figure.y
    scale: Json = {
        "name": name,
        "type": "log" if axis.log else "linear",
        "domain": list(figure.domain("x" if name == "x" else "y")),
        "range": "width" if name == "x" else "height",
        "zero": False,
    }
    if name == "x" and figure.zoom:
        scale["domainRaw"] = {"signal": "xDomain"}
    elif axis.ends is None and not axis.categories:
        # Room for marks at the ends of the horizontal axis, round ends of the vertical one.
        scale |= {"padding": 14} if name == "x" else {"nice": not axis.ticks} if not axis.log else {"padding": 10}
    return scale


def _tick_signals(figure: Figure) -> list[Json]:
    return [
        signal
        for name, axis in (("x", figure.x), ("y", figure.y))
        if axis.ticks
        for signal in (
            {"name": f"{name}Values", "value": list(axis.ticks)},
            {"name": f"{name}Labels", "value": [text.split("\n") for text in axis.ticks.values()]},
        )
    ]


def _axis(name: str, axis: Axis) -> Json:
    described: Json = {"scale": name, "title": axis.title or None, "grid": axis.grid, "zindex": 0}
    if axis.ticks:
        described["values"] = list(axis.ticks)
        described["labelOverlap"] = False if axis.categories else "greedy"
        text = f"{name}Labels[indexof({name}Values, datum.value)]"
    else:
        text = f"datum.label + '{axis.suffix}'"
    return {**described, "encode": {"labels": {"update": {"text": {"signal": text}}}}}


def _horizontal(axis: Axis) -> Json:
    made = {**_axis("x", axis), "orient": "bottom"}
    if not axis.ticks:
        whole = {"tickMinStep": 1} if axis.whole else {}
        return {**made, "tickCount": {"signal": "ceil(width / 90)"}, "labelFlush": True, **whole}
    if not axis.categories:
        return made
    longest = max(len(line) for text in axis.ticks.values() for line in text.split("\n"))
    lies = f"(outer - {_AXIS_WIDTH}) / {len(axis.ticks)} > {round(longest * _CHARACTER_WIDTH + _UPRIGHT_WIDTH)}"
    return {
        **made,
        "labelAngle": {"signal": f"{lies} ? 0 : -90"},
        "labelAlign": {"signal": f"{lies} ? 'center' : 'right'"},
        "labelBaseline": {"signal": f"{lies} ? 'top' : 'middle'"},
        "labelLimit": 260,
    }


def _vertical(axis: Axis) -> Json:
    made = {**_axis("y", axis), "orient": "left"}
    if axis.ticks:
        return {**made, "labelLimit": {"signal": f"{_LARGEST_LABEL} * outer"}}
    return {**made, "tickCount": {"signal": "ceil(height / 50)"}}


def _legend(names: Sequence[str], beside: Axis, spare: float) -> Json:
    """In as many columns as there is room for right of the vertical axis."""
    longest = max((len(text) for text in beside.ticks.values()), default=0)
    axis = f"max({_AXIS_WIDTH}, min({_LARGEST_LABEL} * outer, {round(longest * _CHARACTER_WIDTH + 10)}))"
    num_characters = max(len(name) for name in names)
    column = round(num_characters * (_CHARACTER_WIDTH + spare) + _SYMBOL_WIDTH)
    # Vega wants to know what room symbols take before there are entries with an index.
    each = "swatches[datum.index || 0]"
    gone = "indata('hidden', 'value', datum.value)"
    symbol = {key: {"signal": f"{each}.{key}"} for key in ("shape", "fill", "stroke", "strokeDash", "strokeWidth")}
    pointer = {"cursor": {"value": "pointer"}, "opacity": {"signal": f"{gone} ? 0.3 : 1"}}
    return {
        "fill": "legend",
        "orient": "top",
        "direction": "horizontal",
        "symbolSize": _SWATCH_SIZE,
        "labelOffset": 9,
        "labelLimit": {"signal": f"max(80, outer - {axis} - {_SYMBOL_WIDTH})"},
        "columnPadding": round(14 + spare * num_characters),
        "columns": {"signal": f"max(1, floor((outer - {axis}) / {column}))"},
        "encode": {
            "symbols": {"name": "swatch", "interactive": True, "update": {**symbol, **pointer}},
            "labels": {
                "name": "label",
                "interactive": True,
                "update": {**pointer, "tooltip": {"signal": "datum.value"}},
            },
        },
    }


def _swatch(series: Series) -> Json:
    """What the legend shows of a series."""
    if isinstance(series, Line | Rules):
        shape, hollow, width, dash = _LONG_STROKE, True, 2, _DASHES[series.dash]
    elif isinstance(series, Boxes):
        shape, hollow, width, dash = "square", series.all_hollow, 1, []
    else:
        shape, hollow, width, dash = series.shape, series.all_hollow, 3 if series.shape == "stroke" else 2, []
    fill = "transparent" if hollow else series.color
    return {"shape": shape, "fill": fill, "stroke": series.color, "strokeDash": dash, "strokeWidth": width}


def _data(number: int, series: Series, *, toggled: bool) -> Json:
    columns = _columns(series)
    rows = list(zip(*columns.values(), strict=True))
    if isinstance(series, Marks) and _has_symbols(series):
        # A symbol without a value would have no place on a logarithmic axis.
        rows = [row for row, value in zip(rows, series.y, strict=True) if value is not None]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    hidden = " || ".join(f"indata('hidden', 'value', {_quoted(key)})" for key in series.hidden_by)
    return {
        "name": f"s{number}",
        "values": text.getvalue(),
        "format": {"type": "csv", "parse": {name: "number" for name in columns if name not in _WORDS}},
        **({"transform": [{"type": "filter", "expr": f"!({hidden})"}]} if toggled else {}),
    }


_WORDS: Final = ("text", "color")


def _columns(series: Series) -> Mapping[str, Sequence[Any]]:
    """A column for each thing that differs from point to point."""
    if isinstance(series, Rules):
        return {"x": series.x, "text": series.texts or [""] * len(series.x)}
    columns: dict[str, Sequence[Any]]
    if isinstance(series, Boxes):
        columns = {"x": series.left, "x2": series.right, "y": series.bottom, "y2": series.top}
        extra: dict[str, Sequence[Any]] = {
            "color": series.colors,
            "opacity": series.opacity,
            **_own(series),
        }
    elif isinstance(series, Line):
        columns, extra = {"x": series.x, "y": series.y}, {}
    else:
        columns = {"x": series.x, "y": series.y}
        extra = {"low": series.low, "high": series.high, **_own(series)}
    return {**columns, **{name: values for name, values in extra.items() if len(values)}}


def _quoted(text: str) -> str:
    """As Vega's expressions write it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def _marks(number: int, series: Series) -> list[Json]:
    match series:
        case Line():
            return [_line(number, series)]
        case Marks():
            error = [_error(number, series)] if series.low else []
            return [*error, *([_symbols(number, series)] if _has_symbols(series) else [])]
        case Boxes():
            return [_boxes(number, series)]
        case Rules():
            return _rules(number, series)


def _has_symbols(series: Marks) -> bool:
    """Else it has bars of error alone."""
    return any(value is not None for value in series.y)


def _mark(kind: str, number: int, encode: Json, *, interactive: bool = False) -> Json:
    return {
        "type": kind,
        "from": {"data": f"s{number}"},
        "clip": True,
        "aria": False,
        "interactive": interactive,
        "encode": {"update": encode},
    }


def _at(axis: str, field: str) -> Json:
    return {"scale": axis, "field": field}


def _line(number: int, series: Line) -> Json:
    encode = {
        "x": _at("x", "x"),
        "y": _at("y", "y"),
        "defined": {"signal": "isValid(datum.y)"},
        "stroke": {"value": series.color},
        "strokeWidth": {"value": series.width},
        "strokeDash": {"value": _DASHES[series.dash]},
        "strokeJoin": {"value": "round"},
        **({"interpolate": {"value": "step-after"}} if series.step else {}),
    }
    return _mark("line", number, encode)


def _shown(condition: str, then: Any, otherwise: Any) -> list[Json]:
    return [{"test": condition, "value": then}, {"value": otherwise}]


def _own(series: Marks | Boxes) -> dict[str, Sequence[Any]]:
    """The columns that :func:`_look` reads."""
    return {"hollow": [int(each) for each in series.hollow_each], "text": series.hover}


def _look(series: Marks | Boxes, color: Json) -> Json:
    """How a symbol or a box is filled, and what it says."""
    clear: Json = {"value": "transparent"}
    each = [{"test": "datum.hollow == 1", **clear}, color]
    fill = each if series.hollow_each else clear if series.hollow else color
    return {"fill": fill, **({"tooltip": {"field": "text"}} if series.hover else {})}


def _symbols(number: int, series: Marks) -> Json:
    encode = {
        "x": _at("x", "x"),
        "y": _at("y", "y"),
        "shape": {"value": series.shape},
        "size": {"value": series.size**2},
        "stroke": {"value": series.color},
        "strokeWidth": {"value": 3 if series.shape == "stroke" else 2},
        **_look(series, {"value": series.color}),
    }
    return {**_mark("symbol", number, encode, interactive=bool(series.hover)), "clip": False}


def _error(number: int, series: Marks) -> Json:
    encode = {
        "x": _at("x", "x"),
        "y": _at("y", "low"),
        "y2": _at("y", "high"),
        "stroke": {"value": series.color},
        "strokeWidth": {"value": 1.5},
        "opacity": _shown("isValid(datum.low) && isValid(datum.high)", 1, 0),
    }
    return _mark("rule", number, encode)


def _boxes(number: int, series: Boxes) -> Json:
    color: Json = {"field": "color"} if series.colors else {"value": series.color}
    encode: Json = {
        "x": _at("x", "x"),
        "x2": _at("x", "x2"),
        "y": _at("y", "y"),
        "y2": _at("y", "y2"),
        **_look(series, color),
    }
    if series.opacity:
        encode["fillOpacity"] = {"field": "opacity"}
    if series.hollow_each:
        encode |= {"stroke": color, "strokeWidth": _shown("datum.hollow == 1", 2, 0)}
    return _mark("rect", number, encode, interactive=bool(series.hover))


def _rules(number: int, series: Rules) -> list[Json]:
    rule = {
        "x": _at("x", "x"),
        "y": {"value": 0},
        "y2": {"signal": "height"},
        "stroke": {"value": series.color},
        "strokeWidth": {"value": series.width},
        "strokeDash": {"value": _DASHES[series.dash]},
    }
    words = {
        "x": _at("x", "x"),
        "y": {"value": 4},
        "dx": {"value": 0},
        "dy": {"value": -4},
        "text": {"field": "text"},
        "angle": {"value": -90},
        "align": {"value": "right"},
        "fill": {"value": series.color},
        "fontSize": {"value": 11},
    }
    return [_mark("rule", number, rule), *([_mark("text", number, words)] if series.texts else [])]
