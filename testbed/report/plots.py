"""The report's figures as plain plotly JSON: data decided here, drawn by the browser.

Every function takes a record and returns `{"data": [...], "layout": {...}}`, or None where the run left nothing to
draw. Times are virtual seconds or milliseconds from the first measured iteration. Colours hold on light and dark
backgrounds; fonts and grids are coloured by the page.
"""

from typing import Any, Final

import numpy as np
import polars as pl

from testbed.experiment.synchronisation.base import SYNCHRONISATIONS
from testbed.record import number_text
from testbed.record.frames import iteration_parts, last_ready_s
from testbed.record.reader import Record
from testbed.record.summary import LinkSummary
from testbed.report import wording
from testbed.report.lanes import Lanes
from testbed.verdict.changes import RateHistory
from testbed.verdict.parts import PARTS, per_iteration

Figure = dict[str, Any]

BLUE: Final = "#4c8dd6"
NAVY: Final = "#2f63a8"
RED: Final = "#e4572e"
GREY: Final = "#9aa0a6"
AMBER: Final = "#f0b429"
TEAL: Final = "#2a9d8f"
DARK_TEAL: Final = "#1d6f65"
PURPLE: Final = "#8e6bbf"
_PART_COLORS: Final = {
    "data": TEAL,
    "host to device": DARK_TEAL,
    "forward": BLUE,
    "backward": NAVY,
    "waiting for slower workers": AMBER,
    "exposed communication": RED,
    "optimizer": PURPLE,
    "other": GREY,
}
PALETTE: Final = (BLUE, RED, TEAL, AMBER, PURPLE, "#d6619e", "#7a9a3a", GREY)
_HEAT: Final = [[0, "rgba(76,141,214,0.05)"], [0.5, "rgba(76,141,214,0.55)"], [0.9, BLUE], [1, NAVY]]

_NUM_LINES: Final = 8
"""More link directions than this overlap as lines and become a heat map."""
_NUM_POINTS: Final = 2000
"""Per direction. Counters are cumulative, so leaving samples out averages over the longer interval."""
_NUM_CHANGES: Final = 30
"""More changes than this are not marked: their words would cover the plot."""
_NUM_MARKS: Final = 150
"""More iterations than this are not marked one by one."""


def utilization(record: Record) -> Figure | None:
    """Every link direction over time, with the measured iterations' starts as light marks."""
    iterations, window = _measured(record), _window(record)
    if window is None or record.links.is_empty() or not record.summary.links:
        return None
    start_s, end_s = window
    shaped = [link for link in record.summary.links if link.utilization_mean is not None]
    series = {f"{link.from_} → {link.to}": _utilization(record, link, start_s, end_s) for link in shaped}
    series = {name: frame for name, frame in series.items() if frame.height}
    if not series:
        return None
    lines = len(series) <= _NUM_LINES
    marks = iterations["start_s"].to_list() if iterations.height <= _NUM_MARKS else []
    layout = {
        "height": 340 if lines else 150 + 17 * len(series),
        "xaxis": {"title": {"text": "seconds"}},
        "shapes": [
            {
                "type": "line",
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "x0": rounded((at_s - start_s) / record.summary.dilation),
                "x1": rounded((at_s - start_s) / record.summary.dilation),
                "line": {"width": 1, "color": "rgba(140,140,140,0.25)"},
                "layer": "below" if lines else "above",
            }
            for at_s in marks
        ],
    }
    _mark_changes(layout, record, end_s=(end_s - start_s) / record.summary.dilation)
    if lines:
        layout["yaxis"] = {"title": {"text": "utilisation"}, "ticksuffix": " %", "rangemode": "tozero"}
        return {"data": _utilization_lines(series), "layout": layout}
    layout["yaxis"] = {"autorange": "reversed", "automargin": True, "dtick": 1, "showgrid": False}
    return {"data": [_utilization_heat(series)], "layout": layout}


def rates(record: Record) -> Figure | None:
    """Directions whose rate changed: the configured rate of each over time, and what it carried."""
    window = _window(record)
    changed = record.changes.filter(pl.col("setting").is_in(["rate", "carrier"])).select("link", "node").unique().rows()
    links = [link for link in record.summary.links if (link.name, link.from_) in set(changed)][:_NUM_LINES]
    if window is None or not links:
        return None
    start_s, end_s = window
    data: list[Figure] = []
    for position, link in enumerate(links):
        color, name = PALETTE[position % len(PALETTE)], f"{link.from_} → {link.to}"
        frame = _utilization(record, link, start_s, end_s)
        history = RateHistory(record.changes, link=link.name, node=link.from_, rate_bps=link.rate_bps)
        at_s = np.array([start_s, *frame["at_s"].to_numpy() * record.summary.dilation + start_s])
        could_bps = history.bits(at_s[:-1], at_s[1:]) / np.maximum(np.diff(at_s), 1e-9)
        used = frame["percent"].to_numpy() / 100 * could_bps
        edges_s, requested_bps = history.steps(start_s, end_s)
        for text, x, values, line in (
            ("requested", (edges_s - start_s) / record.summary.dilation, requested_bps, {"dash": "dot", "shape": "hv"}),
            ("used", frame["at_s"].to_numpy(), used, {}),
        ):
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": f"{name} {text}",
                    "x": [rounded(float(value)) for value in x],
                    "y": [rounded(float(value) / 1e6) for value in values],
                    "line": {"color": color, "width": 1.5, **line},
                    "hovertemplate": "%{y:.4g} Mbit/s at %{x:.2f} s",
                }
            )
    layout: Figure = {
        "height": 340,
        "xaxis": {"title": {"text": "seconds"}},
        "yaxis": {"title": {"text": "Mbit/s"}, "rangemode": "tozero"},
        "shapes": [],
    }
    _mark_changes(layout, record, end_s=(end_s - start_s) / record.summary.dilation)
    return {"data": data, "layout": layout}


def _mark_changes(layout: Figure, record: Record, *, end_s: float) -> None:
    """A vertical line and its words at every change within the measured iterations; a trace has one, at its first."""
    found = [change for change in record.summary.changes if 0 <= change.at_s <= end_s][:_NUM_CHANGES]
    for change in found:
        at = rounded(change.at_s)
        layout["shapes"].append(
            {
                "type": "line",
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "x0": at,
                "x1": at,
                "line": {"width": 1.5, "dash": "dash", "color": PURPLE},
            }
        )
        layout.setdefault("annotations", []).append(
            {
                "x": at,
                "y": 1,
                "yref": "paper",
                "text": wording.change_text(change, short=True),
                "textangle": -90,
                "xanchor": "right",
                "yanchor": "top",
                "showarrow": False,
                "font": {"size": 11, "color": PURPLE},
            }
        )


def breakdown(record: Record) -> Figure | None:
    """The parts of every measured iteration, stacked: means over workers."""
    iterations = _measured(record)
    if iterations.is_empty():
        return None
    colors = (BLUE, TEAL, AMBER, RED, PURPLE, GREY)
    names = (name for name, *_ in wording.PARTS)
    parts = tuple(zip(names, PARTS, colors, strict=True))
    return {
        "data": [
            {
                "type": "bar",
                "name": name,
                "x": iterations["index"].to_list(),
                "y": _milliseconds(iterations[column]),
                "marker": {"color": color, "line": {"width": 0}},
                "hovertemplate": "%{y:.4g} ms",
            }
            for name, column, color in parts
        ]
        + _predicted_line(record, iterations["index"].to_list()),
        "layout": {
            "height": 320,
            "barmode": "stack",
            "bargap": 0.15 if iterations.height <= _NUM_MARKS else 0,
            "hovermode": "x unified",
            "xaxis": {"title": {"text": "measured iteration"}},
            "yaxis": {"title": {"text": "milliseconds"}},
        },
    }


def _predicted_line(record: Record, indices: list[int]) -> list[Figure]:
    """The predicted mean of all iterations, dashed; nothing where none was predicted."""
    prediction = record.summary.prediction
    if prediction is None or prediction.iteration_time_s is None:
        return []
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "predicted mean",
            "x": [indices[0] - 0.5, indices[-1] + 0.5],
            "y": [rounded(1e3 * prediction.iteration_time_s)] * 2,
            "line": {"color": GREY, "width": 1.5, "dash": "dash"},
            "hovertemplate": "%{y:.4g} ms",
        }
    ]


def loss(record: Record) -> Figure | None:
    """Mean over workers, warm-up and measured iterations in the order in which they trained."""
    summary = record.summary
    data, offset = [], 0
    for phase, name, color in (("warmup", "warm-up", GREY), ("measured", "measured", BLUE)):
        frame = per_iteration(
            record.iterations, num_workers=summary.num_workers, dilation=summary.dilation, phase=phase
        ).filter(pl.col("loss").is_finite())
        if frame.is_empty():
            continue
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if frame.height <= _NUM_MARKS else "lines",
                "name": name,
                "x": (frame["index"] + offset).to_list(),
                "y": [rounded(value) for value in frame["loss"]],
                "line": {"color": color, "width": 2},
                "marker": {"size": 4},
                "hovertemplate": "%{y:.4g}",
            }
        )
        offset += frame.height
    if not data:
        return None
    axes = {"xaxis": {"title": {"text": "iteration, warm-up included"}}, "yaxis": {"title": {"text": "loss"}}}
    return {"data": data, "layout": {"height": 320, "hovermode": "x unified", **axes}}


def timeline(record: Record) -> Figure | None:
    """One median iteration: what each worker computed, and each of its buckets waiting and in service."""
    iterations = _measured(record)
    index = median_iteration(record)
    if index is None:
        return None
    origin_s = float(iterations.filter(pl.col("index") == index)["start_s"][0])
    this = (pl.col("phase") == "measured") & (pl.col("index") == index)
    bars = _Bars(origin_s, record.summary.dilation)
    rows = last_ready_s(record.iterations.filter(this), in_step=_in_step(record)).sort("rank")
    for row in rows.iter_rows(named=True):
        worker = f"w{row['rank']}"
        for name, begin_s, end_s in iteration_parts(row, row["last_s"]):
            bars.add(name, _PART_COLORS[name], row["rank"] - 0.21, 0.36, begin_s, end_s, f"{worker} {name}")
    for (rank,), buckets in (
        record.buckets.filter(this).sort("rank", "enqueued_s").group_by("rank", maintain_order=True)
    ):
        _draw_buckets(bars, int(rank), buckets)
    num_workers = record.summary.num_workers
    return {
        "data": list(bars.traces.values()),
        "layout": {
            "height": 140 + num_workers * round(max(24.0, min(70.0, 900 / num_workers))),
            "barmode": "overlay",
            "hovermode": "closest",
            "xaxis": {"title": {"text": "milliseconds"}, "rangemode": "tozero"},
            "yaxis": {
                "tickvals": list(range(num_workers)),
                "ticktext": [f"w{rank}" for rank in range(num_workers)],
                "range": [num_workers - 0.5, -0.5],
                "showgrid": False,
                "zeroline": False,
            },
        },
    }


def _draw_buckets(bars: "_Bars", rank: int, buckets: pl.DataFrame) -> None:
    """Below a worker's computation a lane for what is in service (more where a stack works on several at once), and
    below that the buckets that wait, one under the other, so that a queue shows as a staircase."""
    serving, waiting = Lanes(), Lanes()
    rows = buckets.to_dicts()
    service_lanes = [serving.take(row["started_s"], row["done_s"]) for row in rows]
    wait_lanes = [waiting.take(row["enqueued_s"], row["started_s"]) for row in rows]
    service_height, wait_height = 0.18 / len(serving), 0.23 / len(waiting)
    for number, (row, service_lane, wait_lane) in enumerate(zip(rows, service_lanes, wait_lanes, strict=True)):
        text = f"w{rank} bucket {number}, {number_text.size_text(row['size_bytes'])}"
        position = rank + 0.2 + wait_height * (wait_lane + 0.5)
        bars.add(
            "bucket waits", AMBER, position, 0.9 * wait_height, row["enqueued_s"], row["started_s"], f"{text}: waits"
        )
        position = rank + service_height * (service_lane + 0.5)
        color = (TEAL, DARK_TEAL)[number % 2]
        bars.add(
            "bucket in service",
            color,
            position,
            0.9 * service_height,
            row["started_s"],
            row["done_s"],
            f"{text}: in service",
        )


def _in_step(record: Record) -> bool:
    requested = record.summary.synchronisation
    return requested is None or SYNCHRONISATIONS[requested.kind].in_step


def median_iteration(record: Record) -> int | None:
    """The measured iteration whose time is nearest the median; None without one."""
    iterations = _measured(record)
    if iterations.is_empty():
        return None
    distance = (pl.col("time_s") - pl.col("time_s").median()).abs()
    return int(iterations.sort(distance)["index"][0])


class _Bars:
    """Horizontal bars from begin to end, one trace for each name; the legend takes the first bar's colour."""

    def __init__(self, origin_s: float, dilation: float) -> None:
        self._origin_s = origin_s
        self._dilation = dilation
        self.traces: dict[str, Figure] = {}

    def add(
        self, name: str, color: str, position: float, height: float, begin_s: float, end_s: float, text: str
    ) -> None:
        empty: Figure = {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "marker": {"color": [], "line": {"width": 0}},
        }
        lists: Figure = {"x": [], "base": [], "y": [], "width": [], "customdata": []}
        hover = {"hovertemplate": "%{customdata}<extra></extra>"}
        trace = self.traces.setdefault(name, {**empty, **lists, **hover})
        base_s, length_s = (begin_s - self._origin_s) / self._dilation, (end_s - begin_s) / self._dilation
        trace["x"].append(rounded(1e3 * length_s))
        trace["base"].append(rounded(1e3 * base_s))
        trace["y"].append(rounded(position))
        trace["width"].append(rounded(height))
        trace["marker"]["color"].append(color)
        trace["customdata"].append(f"{text} {number_text.time_text(length_s)}, from {number_text.time_text(base_s)}")


def _measured(record: Record) -> pl.DataFrame:
    summary = record.summary
    return per_iteration(
        record.iterations, num_workers=summary.num_workers, dilation=summary.dilation, in_step=_in_step(record)
    )


def _window(record: Record) -> tuple[float, float] | None:
    """The measured iterations, or a command from start to end; wall seconds since the epoch. None: there is neither."""
    iterations, command = _measured(record), record.summary.command
    if not iterations.is_empty():
        return float(iterations["start_s"][0]), float(iterations["end_s"][-1])
    if command is not None:
        return command.start_s, command.start_s + command.time_s * record.summary.dilation
    return None


def _utilization(record: Record, link: LinkSummary, start_s: float, end_s: float) -> pl.DataFrame:
    """Columns at_s (virtual, the end of the interval) and percent."""
    mine = (pl.col("link") == link.name) & (pl.col("node") == link.from_)
    frame = record.links.filter(mine & pl.col("at_s").is_between(start_s, end_s)).sort("at_s")
    frame = frame.gather_every(1 + frame.height // _NUM_POINTS)
    history = RateHistory(record.changes, link=link.name, node=link.from_, rate_bps=link.rate_bps)
    at_s = frame["at_s"].to_numpy()
    could_bits = pl.Series("could", history.bits(at_s[:-1], at_s[1:]))
    return (
        frame.select(
            ((pl.col("at_s") - start_s) / record.summary.dilation).alias("at_s"),
            (record.summary.dilation * 8 * pl.col("class_bytes").diff()).alias("bits"),
        )
        .slice(1)
        .select("at_s", (100 * pl.col("bits") / could_bits).alias("percent"))
    )


def _utilization_lines(series: dict[str, pl.DataFrame]) -> list[Figure]:
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": [rounded(value) for value in frame["at_s"]],
            "y": [rounded(value) for value in frame["percent"]],
            "line": {"color": PALETTE[position % len(PALETTE)], "width": 1.5},
            "hovertemplate": "%{y:.1f} % at %{x:.2f} s",
        }
        for position, (name, frame) in enumerate(series.items())
    ]


def _utilization_heat(series: dict[str, pl.DataFrame]) -> Figure:
    # One sampler reads all links in a row, so the n-th samples of all directions belong to the same moment.
    num_columns = min(frame.height for frame in series.values())
    return {
        "type": "heatmap",
        "x": [rounded(value) for value in next(iter(series.values()))["at_s"].head(num_columns)],
        "y": list(series),
        "z": [[rounded(value) for value in frame["percent"].head(num_columns)] for frame in series.values()],
        "zmin": 0,
        "zmax": 100,
        "colorscale": _HEAT,
        "colorbar": {"ticksuffix": " %", "thickness": 12},
        "hovertemplate": "%{y}<br>%{z:.1f} % at %{x:.2f} s<extra></extra>",
    }


def _milliseconds(column: pl.Series) -> list[float]:
    return [rounded(1e3 * value) for value in column]


def rounded(value: float) -> float:
    """Six significant digits: what a screen can show, at a third of the size."""
    return float(f"{value:.6g}")
