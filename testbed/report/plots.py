"""The figures of a run, in the record's own numbers.

Every function takes a record and returns a figure, or None where the run left nothing to draw. Times are virtual
seconds or milliseconds from the first measured iteration.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl

from testbed.record import number_text
from testbed.record.frames import iteration_parts, last_ready_s
from testbed.record.reader import Record
from testbed.record.summary import LinkSummary
from testbed.report import wording
from testbed.report.critical_path import Step
from testbed.report.critical_path import critical_path as find_critical_path
from testbed.report.figures import (
    AMBER,
    BLUE,
    DARK_TEAL,
    GREY,
    NAVY,
    PALETTE,
    PURPLE,
    RED,
    TEAL,
    Axis,
    Boxes,
    Figure,
    Line,
    Marks,
    Rules,
    Series,
    decades,
    rounded,
)
from testbed.report.lanes import Lanes
from testbed.verdict.changes import RateHistory
from testbed.verdict.parts import PARTS, losses, measured_iterations

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
PARTS_COLORS: Final = (BLUE, TEAL, AMBER, RED, PURPLE, GREY)
"""Of the parts of an iteration, in their order."""
WHOLE: Final = "whole bars"
"""The name of what only hovering shows."""

_NUM_LINES: Final = 8
"""More link directions than this overlap as lines and become a heat map."""
_NUM_POINTS: Final = 2000
"""Per direction. Counters are cumulative, so leaving samples out averages over the longer interval."""
_NUM_CELLS: Final = 5000
"""Of a heat map: with more, a browser draws for seconds."""
_NUM_COLUMNS: Final = 220
"""Of a heat map, at most: each is some pixels wide."""
_NUM_SPANS: Final = 4000
"""Of workers' computing and buckets; beyond it only some of the workers are drawn."""
_NUM_CHANGES: Final = 30
"""Changes after so many are not marked: their words would cover the plot."""
_NUM_BARS: Final = 400
"""More iterations than this are drawn as means of some."""
_NUM_MARKS: Final = 150
"""More iterations than this are not marked one by one."""


def utilization(record: Record) -> Figure | None:
    """Every link direction over time, with the measured iterations' starts as light marks."""
    iterations, window = _measured(record), _window(record)
    if window is None or record.links.is_empty() or not record.summary.links:
        return None
    start_s, end_s = window
    shaped = [link for link in record.summary.links if link.utilization_mean is not None]
    lines = len(shaped) <= _NUM_LINES
    most = _NUM_POINTS if lines else min(_NUM_COLUMNS, _NUM_CELLS // len(shaped))
    frames = {f"{link.from_} → {link.to}": _utilization(record, link, start_s, end_s, most) for link in shaped}
    frames = {name: frame for name, frame in frames.items() if frame.height}
    if not frames:
        return None
    starts = iterations["start_s"].to_list() if iterations.height <= _NUM_MARKS else []
    at_s = [rounded((moment_s - start_s) / record.summary.dilation) for moment_s in starts]
    marks = Rules(name="starts of iterations", color="#8c8c8c40", x=at_s)
    changes, among = _changes(record, end_s=(end_s - start_s) / record.summary.dilation)
    title = "Utilization of links"
    if lines:
        share = Axis(title="utilization", suffix=" %", zero=True)
        series: list[Series] = [marks, *_utilization_lines(frames), *changes]
        return Figure(title=title, height=260, x=Axis(title=f"seconds{among}"), y=share, series=series, zoom=True)
    return Figure(
        title=title,
        height=20 + 17 * len(frames),
        x=Axis(title=f"seconds{among}", grid=False),
        y=_rows(list(frames)),
        series=[_utilization_heat(frames), marks, *changes],
        zoom=True,
    )


def _rows(names: Sequence[str]) -> Axis:
    """A row for each name, the first on top."""
    return Axis(ticks=dict(enumerate(names)), categories=True, ends=(len(names) - 0.5, -0.5), grid=False)


def rates(record: Record) -> Figure | None:
    """Directions whose rate changed: the configured rate of each over time, and what it carried."""
    window = _window(record)
    changed = record.changes.filter(pl.col("setting").is_in(["rate", "carrier"])).select("link", "node").unique().rows()
    links = [link for link in record.summary.links if (link.name, link.from_) in set(changed)]
    if window is None or not links:
        return None
    start_s, end_s = window
    series: list[Series] = []
    for position, link in enumerate(links[:_NUM_LINES]):
        color, name = PALETTE[position % len(PALETTE)], f"{link.from_} → {link.to}"
        frame = _utilization(record, link, start_s, end_s, _NUM_POINTS)
        history = RateHistory(record.changes, link=link.name, node=link.from_, rate_bps=link.rate_bps)
        at_s = np.array([start_s, *frame["at_s"].to_numpy() * record.summary.dilation + start_s])
        could_bps = history.bits(at_s[:-1], at_s[1:]) / np.maximum(np.diff(at_s), 1e-9)
        used_bps = frame["percent"].to_numpy() / 100 * could_bps
        edges_s, requested_bps = history.steps(start_s, end_s)
        requested = Line(
            name=f"{name} requested",
            color=color,
            x=[rounded(float(edge_s - start_s) / record.summary.dilation) for edge_s in edges_s],
            y=[rounded(float(rate_bps) / 1e6) for rate_bps in requested_bps],
            dash="dot",
            step=True,
        )
        used = Line(
            name=f"{name} used",
            color=color,
            x=[rounded(value) for value in frame["at_s"]],
            y=[rounded(float(rate_bps) / 1e6) for rate_bps in used_bps],
        )
        series += [requested, used]
    changes, among_changes = _changes(record, end_s=(end_s - start_s) / record.summary.dilation)
    among_links = wording.among_text(_NUM_LINES, len(links), "directions")
    return Figure(
        title="Rates of links that changed",
        height=260,
        x=Axis(title=f"seconds{among_links}{among_changes}"),
        y=Axis(title="Mbit/s", zero=True),
        series=[*series, *changes],
        zoom=True,
    )


def _changes(record: Record, *, end_s: float) -> tuple[list[Rules], str]:
    """A vertical line and its words at every change within the measured iterations; a trace has one, at its first. And
    for the axis, which of them are marked."""
    found = [change for change in record.summary.changes if 0 <= change.at_s <= end_s]
    if not found:
        return [], ""
    marked = found[:_NUM_CHANGES]
    texts = [wording.change_text(change, short=True) for change in marked]
    at_s = [rounded(change.at_s) for change in marked]
    rules = Rules(name="changes", color=PURPLE, x=at_s, texts=texts, width=1.5, dash="dash")
    return [rules], wording.among_text(_NUM_CHANGES, len(found), "changes")


def breakdown(record: Record) -> Figure | None:
    """The parts of every measured iteration, stacked: means over workers; of a long run means over some iterations."""
    iterations = _measured(record)
    if iterations.is_empty():
        return None
    drawn = parts_of_iterations(iterations, most=_NUM_BARS)
    return replace(drawn, series=[*drawn.series, *_predicted_line(record, iterations["index"].to_list())])


def parts_of_iterations(iterations: pl.DataFrame, *, most: int) -> Figure:
    """Of rows as of :func:`testbed.verdict.parts.measured_iterations`, at least one: their parts, stacked; where they
    are more than `most`, means of some."""
    each = math.ceil(iterations.height / most)
    grouped = iterations.with_columns(bar=pl.col("index") // each).group_by("bar", maintain_order=True)
    bars = grouped.agg(pl.col(*PARTS).mean(), first=pl.col("index").min(), last=pl.col("index").max())
    parts = {name: _milliseconds(bars[column]) for (name, *_), column in zip(wording.PARTS, PARTS, strict=True)}
    names = [
        f"iteration {first}" if first == last else f"iterations {first} to {last}, mean"
        for first, last in zip(bars["first"], bars["last"], strict=True)
    ]
    places = [(first + last) / 2 for first, last in zip(bars["first"], bars["last"], strict=True)]
    half = each * (0.42 if bars.height <= _NUM_MARKS else 0.5)
    indices: list[int] = iterations["index"].to_list()
    return Figure(
        title="The parts of every iteration",
        height=250,
        x=Axis(
            title="measured iteration" if each == 1 else f"measured iteration, means of {each}",
            ends=(indices[0] - 0.6, indices[-1] + 0.6),
            whole=True,
            grid=False,
        ),
        y=Axis(title="milliseconds", zero=True),
        series=stacked(parts, places, half, names),
    )


def stacked(
    parts: Mapping[str, Sequence[float]],
    places: Sequence[float],
    half: float,
    names: Sequence[str],
    *,
    horizontal: bool = False,
) -> list[Boxes]:
    """Bars around the places, `half` to each side, whose pieces are the parts of an iteration, in milliseconds, one
    upon the other. A box around each whole bar, which cannot be seen, says its name and all parts."""
    before, after = [place - half for place in places], [place + half for place in places]

    def box(name: str, color: str, low: Sequence[float], high: Sequence[float], **more: Any) -> Boxes:
        left, right, bottom, top = (low, high, before, after) if horizontal else (before, after, low, high)
        return Boxes(name=name, color=color, left=left, right=right, bottom=bottom, top=top, **more)

    made, reached = [], np.zeros(len(places))
    for (name, values), color in zip(parts.items(), PARTS_COLORS, strict=True):
        low, reached = reached, reached + np.array(values)
        made.append(box(name, color, [rounded(value) for value in low], [rounded(value) for value in reached]))
    texts = [
        "\n".join((name, *(f"{part} {value:.4g} ms" for part, value in zip(parts, values, strict=True))))
        for name, *values in zip(names, *parts.values(), strict=True)
    ]
    whole = [rounded(value) for value in reached]
    return [*made, box(WHOLE, "transparent", [0.0] * len(places), whole, in_legend=False, hover=texts)]


def _predicted_line(record: Record, indices: Sequence[int]) -> list[Line]:
    """The predicted mean of all iterations, dashed; nothing where none was predicted."""
    prediction = record.summary.prediction
    if prediction is None or prediction.iteration_time_s is None:
        return []
    ends, predicted_ms = [indices[0] - 0.5, indices[-1] + 0.5], rounded(1e3 * prediction.iteration_time_s)
    return [Line(name="predicted mean", color=GREY, x=ends, y=[predicted_ms] * 2, dash="dash", readout=False)]


def loss(record: Record) -> Figure | None:
    """Mean over workers, warm-up and measured iterations, over the time that training took until then."""
    series: list[Series] = []
    every = losses(record.iterations, record.summary).with_row_index("number")
    for phase, name, color in (("warmup", "warm-up", GREY), ("measured", "measured", BLUE)):
        frame = every.filter(pl.col("phase") == phase)
        if frame.is_empty():
            continue
        known = frame.filter(pl.col("loss").is_finite()).gather_every(1 + frame.height // _NUM_POINTS)
        until_s, values = ([rounded(value) for value in known[column]] for column in ("until_s", "loss"))
        series.append(Line(name=name, color=color, x=until_s, y=values, width=2))
        if 0 < known.height <= _NUM_MARKS:
            texts = [f"iteration {number}, {value:.4g}" for number, value in zip(known["number"], values, strict=True)]
            series.append(
                Marks(name=name, color=color, x=until_s, y=values, size=5, in_legend=False, keys=(name,), hover=texts)
            )
    if not any(len(each.x) for each in series if isinstance(each, Line)):
        return None
    time = Axis(title="seconds of training, warm-up included")
    return Figure(title="Loss", height=250, x=time, y=Axis(title="loss"), series=series, zoom=True)


def slot_latency(record: Record) -> Figure | None:
    """How long uses of aggregator slots took: what share of the chunks each bucket holds, of each aggregator, with
    their medians and 99th percentiles; None where no switch aggregates."""
    found = [(each.name, each.slot_latency) for each in record.summary.aggregators if each.slot_latency is not None]
    if not found:
        return None
    series: list[Series] = []
    for position, (name, latency) in enumerate(found[:_NUM_LINES]):
        color = PALETTE[position % len(PALETTE)]
        edges_ms = [rounded(1e3 * edge_s) for edge_s in latency.edges_s]
        shares = [rounded(100 * count / latency.num_chunks) for count in latency.counts]
        # Closed at both ends, so that a histogram of one bucket is one, too.
        x, y = [edges_ms[0], *edges_ms, edges_ms[-1]], [0.0, *shares, 0.0, 0.0]
        series.append(Line(name=name, color=color, x=x, y=y, step=True, width=2.0))
        moments = [rounded(1e3 * latency.median_s), rounded(1e3 * latency.p99_s)]
        texts = [f"{name} {what}" if len(found) > 1 else what for what in ("median", "99 %")]
        series.append(Rules(name=name, color=color, x=moments, texts=texts, dash="dash"))
    every_ms = [value for each in series if isinstance(each, Line) for value in each.x]
    low, high = min(every_ms), max(every_ms)
    among = wording.among_text(_NUM_LINES, len(found), "aggregators")
    ticks = {at: text for at, text in decades(low, high).items() if low / 1.3 <= at <= high * 1.3}
    return Figure(
        title="Latency of aggregator slots",
        height=200,
        x=Axis(title=f"milliseconds{among}", log=True, ticks=ticks, ends=(low / 1.3, high * 1.3)),
        y=Axis(title="of the chunks", suffix=" %", zero=True),
        series=series,
    )


def timeline(record: Record) -> Figure | None:
    """One median iteration: what each worker computed, and each of its buckets waiting and in service."""
    iterations = _measured(record)
    index = median_iteration(record)
    if index is None:
        return None
    origin_s = float(iterations.filter(pl.col("index") == index)["start_s"][0])
    this = (pl.col("phase") == "measured") & (pl.col("index") == index)
    bars = _Bars(origin_s, record.summary.dilation)
    rows = last_ready_s(record.iterations, ends_together=record.summary.ends_together).filter(this).sort("rank")
    # A bucket waits and is in service; computing has some parts.
    num_spans = 2 * record.buckets.filter(this).height / rows.height + 6
    num_drawn = min(rows.height, max(1, math.floor(_NUM_SPANS / num_spans)))
    this, rows = this & (pl.col("rank") < num_drawn), rows.filter(pl.col("rank") < num_drawn)
    for row in rows.iter_rows(named=True):
        worker = f"w{row['rank']}"
        for name, begin_s, end_s in iteration_parts(row, last_s=row["last_s"], before_s=row["before_s"]):
            bars.add(name, _PART_COLORS[name], row["rank"] - 0.21, 0.36, begin_s, end_s, f"{worker} {name}")
    for (rank,), buckets in (
        record.buckets.filter(this).sort("rank", "enqueued_s").group_by("rank", maintain_order=True)
    ):
        _draw_buckets(bars, int(rank), buckets)
    num_workers = record.summary.num_workers
    among = wording.among_text(num_drawn, num_workers, "workers")
    return Figure(
        title=f"One median iteration, number {index}",
        height=20 + num_drawn * round(max(24.0, min(70.0, 900 / num_drawn))),
        x=Axis(title=f"milliseconds{among}", zero=True),
        y=_rows([f"w{rank}" for rank in range(num_drawn)]),
        series=bars.series(),
        zoom=True,
    )


def critical_path(record: Record) -> list[Step]:
    """Of the median iteration, in virtual seconds from its first step on; empty where workers do not wait for each
    other, or nothing was exchanged."""
    index = median_iteration(record)
    if index is None or not record.summary.in_step:
        return []
    this = (pl.col("phase") == "measured") & (pl.col("index") == index)
    steps = find_critical_path(record.iterations.filter(this), record.buckets.filter(this))
    dilation = record.summary.dilation
    return [
        Step(step.what, (step.begin_s - steps[0].begin_s) / dilation, (step.end_s - steps[0].begin_s) / dilation)
        for step in steps
    ]


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


def median_iteration(record: Record) -> int | None:
    """The measured iteration whose time is nearest the median; None without one."""
    iterations = _measured(record)
    if iterations.is_empty():
        return None
    distance = (pl.col("time_s") - pl.col("time_s").median()).abs()
    return int(iterations.sort(distance)["index"][0])


class _Bars:
    """Horizontal bars from begin to end, a series for each name; the legend takes the first bar's colour."""

    def __init__(self, origin_s: float, dilation: float) -> None:
        self._origin_s = origin_s
        self._dilation = dilation
        self._bars: dict[str, list[tuple[float, float, float, float, str, str]]] = {}

    def add(
        self, name: str, color: str, position: float, height: float, begin_s: float, end_s: float, text: str
    ) -> None:
        base_s, length_s = (begin_s - self._origin_s) / self._dilation, (end_s - begin_s) / self._dilation
        text = f"{text} {number_text.time_text(length_s)}, from {number_text.time_text(base_s)}"
        spans = (1e3 * base_s, 1e3 * (base_s + length_s), position - height / 2, position + height / 2)
        left, right, low, high = map(rounded, spans)
        self._bars.setdefault(name, []).append((left, right, low, high, color, text))

    def series(self) -> list[Series]:
        made: list[Series] = []
        for name, bars in self._bars.items():
            left, right, low, high, colors, texts = (list(column) for column in zip(*bars, strict=True))
            one = len(set(colors)) == 1
            made.append(
                Boxes(
                    name=name,
                    color=colors[0],
                    left=left,
                    right=right,
                    bottom=low,
                    top=high,
                    colors=[] if one else colors,
                    hover=texts,
                )
            )
        return made


def _measured(record: Record) -> pl.DataFrame:
    return measured_iterations(record.iterations, record.summary)


def _window(record: Record) -> tuple[float, float] | None:
    """The measured iterations, or a command from start to end; wall seconds since the epoch. None: there is neither."""
    iterations, command = _measured(record), record.summary.command
    if not iterations.is_empty():
        return float(iterations["start_s"][0]), float(iterations["end_s"][-1])
    if command is not None:
        return command.start_s, command.start_s + command.time_s * record.summary.dilation
    return None


def _utilization(record: Record, link: LinkSummary, start_s: float, end_s: float, most: int) -> pl.DataFrame:
    """Columns at_s (virtual, the end of the interval) and percent; no more rows than `most`."""
    mine = (pl.col("link") == link.name) & (pl.col("node") == link.from_)
    frame = record.links.filter(mine & pl.col("at_s").is_between(start_s, end_s)).sort("at_s")
    frame = frame.gather_every(1 + frame.height // most)
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


def _utilization_lines(frames: Mapping[str, pl.DataFrame]) -> list[Line]:
    return [
        Line(
            name=name,
            color=PALETTE[position % len(PALETTE)],
            x=[rounded(value) for value in frame["at_s"]],
            y=[rounded(value) for value in frame["percent"]],
        )
        for position, (name, frame) in enumerate(frames.items())
    ]


def _utilization_heat(frames: Mapping[str, pl.DataFrame]) -> Boxes:
    """A cell for each direction and interval, the fuller the link the deeper."""
    cells = [
        (rounded(begin_s), rounded(end_s), row, percent, f"{name}\n{percent:.1f} % at {end_s:.2f} s")
        for row, (name, frame) in enumerate(frames.items())
        for begin_s, end_s, percent in zip(
            [0.0, *frame["at_s"].to_list()[:-1]], frame["at_s"], frame["percent"], strict=True
        )
    ]
    left, right, rows, percents, texts = (list(column) for column in zip(*cells, strict=True))
    return Boxes(
        name="utilization: faint 0 %, full colour 100 %",
        color=NAVY,
        left=left,
        right=right,
        bottom=[row - 0.48 for row in rows],
        top=[row + 0.48 for row in rows],
        opacity=[round(0.04 + 0.96 * min(max(percent, 0.0), 100.0) / 100, 3) for percent in percents],
        hover=texts,
    )


def _milliseconds(column: pl.Series) -> list[float]:
    return [rounded(1e3 * value) for value in column]
