"""Figures of compared settings: by how much each differs from the first, every run, and the parts of iterations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from testbed.record.reader import load_frame
from testbed.record.summary import Summary
from testbed.report import wording
from testbed.report.differences.table import marked
from testbed.report.figures import (
    AMBER,
    GREY,
    INK,
    PALETTE,
    RED,
    TEAL,
    Axis,
    Dash,
    Figure,
    Line,
    Marks,
    Number,
    Rules,
    Series,
    Shape,
    decades,
    rounded,
)
from testbed.report.plots import parts_of_iterations, stacked
from testbed.report.terminal.results import interval_text, ratio_text, value_text
from testbed.store.compare import Compared, Finding, Setting
from testbed.store.differences import Difference
from testbed.store.metrics import Metric
from testbed.verdict.parts import measured_iterations

_COLORS: Final[Mapping[Finding, str]] = {
    "better": TEAL,
    "worse": RED,
    "not distinguishable from noise": GREY,
    "noise between runs not known": AMBER,
    "too few iterations to say": GREY,
}
_SURE: Final[frozenset[Finding]] = frozenset({"better", "worse"})
"""Filled; all others are hollow."""
_SHAPES: Final[Mapping[Finding, Shape]] = {"better": "diamond", "worse": "square", "too few iterations to say": "cross"}
"""Of all others: a circle."""
_RUN_SHAPES: Final[Sequence[Shape]] = ("circle", "square", "diamond", "triangle-up", "cross")
_LINE_HEIGHT: Final = 15
"""Pixels of a line of words beside a row."""
_NUM_ROWS: Final = 40
"""Runs of which the parts of an iteration are drawn side by side."""
NUM_PANELS: Final = 12
"""Settings of which a run is drawn iteration by iteration."""
_NUM_BARS: Final = 400
"""Of all these panels."""
_MOST_BARS: Final = 100
"""Of one panel."""


def differences(compared: Compared) -> Figure:
    """A row for the first setting, and one for each other: by how much it differs, with its interval of confidence.

    In per cent; where some setting has more than twice as much or less than half, times as much on a logarithmic axis.
    """
    first, *others = compared.settings
    values = [value for found in compared.differences for value in _known(found)]
    factors = not all(0.5 < value < 2 for value in values)

    def place(ratio: float) -> float:
        return rounded(ratio if factors else 100 * (ratio - 1))

    same = place(1.0)
    series: list[Series] = [
        Rules(name="no difference", color=INK, x=[same], width=1.0),
        Marks(
            name="first",
            color=INK,
            in_legend=False,
            x=[same],
            y=[0.0],
            size=8.0,
            hover=[f"{first.name}\nwhat the others are compared with"],
        ),
    ]
    found_rows = list(enumerate(zip(others, compared.differences, strict=True), start=1))
    for finding in _COLORS:
        rows = [(row, other, found) for row, (other, found) in found_rows if compared.finding(found) == finding]
        if rows:
            series += _intervals(finding, [(row, place(low), place(high)) for row, low, high in _ends(rows)])
            series.append(
                Marks(
                    name=finding,
                    color=_COLORS[finding],
                    x=[place(found.ratio) for _, _, found in rows],
                    y=[float(row) for row, _, _ in rows],
                    shape=_SHAPES.get(finding, "circle"),
                    size=10.0,
                    hollow=finding not in _SURE,
                    hover=[f"{marked(other)}\n{_numbers(found)}\n{finding}" for _, other, found in rows],
                )
            )
    names = [f"{_wrapped(marked(first))}\n{compared.metric}\n{value_text(compared.metric, first.mean)}"]
    names += [f"{_wrapped(marked(other))}\n{_numbers(found)}" for _, (other, found) in found_rows]
    if factors:
        low, high = min(*values, 1.0) / 1.15, max(*values, 1.0) * 1.15
        ticks = {at: text for at, text in decades(low, high).items() if low <= at <= high}
        x = Axis(title="times as much as the first", log=True, ticks=ticks, ends=(low, high))
    else:
        x = Axis(title="difference from the first", suffix=" %", zero=True)
    return Figure(
        title=f"Difference in {compared.metric} from {first.name}",
        height=20 + len(names) * (12 + _LINE_HEIGHT * _num_lines(names)),
        x=x,
        y=_rows({float(row): name for row, name in enumerate(names)}),
        series=series,
    )


def _rows(names: Mapping[float, str]) -> Axis:
    """A row for each name, the first on top."""
    # Lines of words go down from their row.
    return Axis(ticks=names, categories=True, ends=(max(names) + 0.8, min(names) - 0.5), grid=False)


def _known(found: Difference) -> list[float]:
    return [value for value in (found.ratio, found.low, found.high) if value is not None]


def _ends(rows: Sequence[tuple[int, Setting, Difference]]) -> Iterator[tuple[int, float, float]]:
    for row, _, found in rows:
        if found.low is not None and found.high is not None:
            yield row, found.low, found.high


def _intervals(finding: Finding, ends: Sequence[tuple[int, float, float]]) -> list[Series]:
    """A line from end to end for each; dotted where it does not know the noise between runs."""
    x: list[float] = []
    y: list[Number] = []
    for row, low, high in ends:
        x += [low, high, high]
        y += [float(row), float(row), None]
    dash: Dash = "dot" if finding == "noise between runs not known" else ""
    line = Line(name=finding, color=_COLORS[finding], x=x, y=y, dash=dash, width=3.0, in_legend=False, readout=False)
    return [line] if x else []


def _numbers(found: Difference) -> str:
    """What a picture without a pointer must say, too."""
    return "\n".join([ratio_text(found.ratio), *([interval_text(found)] if found.low is not None else [])])


def _wrapped(name: str) -> str:
    """In lines that a telephone has room for."""
    return name.replace(", ", ",\n").replace(" (", "\n(")


def _num_lines(names: Sequence[str]) -> int:
    return max(name.count("\n") + 1 for name in names)


def runs(compared: Compared) -> Figure:
    """The mean of every run, in the order in which runs were made: what drifts is seen, and what the intervals rest
    on."""
    made = sorted(values.started_at for setting in compared.settings for values in setting.values)
    scale, unit = _scale(compared.metric)
    series: list[Series] = []
    taken: set[int] = set()
    for number, setting in enumerate(compared.settings):
        places = []
        for values in setting.values:
            place = next(at for at, when in enumerate(made) if when == values.started_at and at not in taken)
            taken.add(place)
            places.append(place + 1.0)
        series.append(
            Marks(
                name=setting.name,
                color=PALETTE[number % len(PALETTE)],
                x=places,
                y=[rounded(scale * values.mean) for values in setting.values],
                shape=_RUN_SHAPES[number % len(_RUN_SHAPES)],
                size=10.0,
                hollow=[summary.outcome != "valid" for summary in setting.summaries],
                hover=[
                    f"{setting.name}\n{value_text(compared.metric, values.mean)}, run {summary.run_id}, "
                    f"{summary.outcome}"
                    for values, summary in zip(setting.values, setting.summaries, strict=True)
                ],
            )
        )
    if any(summary.outcome != "valid" for setting in compared.settings for summary in setting.summaries):
        series.append(Marks(name="not valid: hollow", color=GREY, x=[], y=[], hollow=True))
    return Figure(
        title=f"{compared.metric} of every run, in the order in which they were made",
        height=260,
        x=Axis(title="run, in the order in which they were made", whole=True, ends=(0.5, len(made) + 0.5)),
        y=Axis(title=f"{compared.metric.removesuffix('_s')}, {unit}" if unit else compared.metric),
        series=series,
    )


def _scale(metric: Metric) -> tuple[float, str]:
    """By what values are multiplied, and the unit that they have then."""
    if metric == "samples_per_s":
        return 1.0, ""
    return (1.0, "s") if metric == "command_time_s" else (1e3, "ms")


def parts(compared: Compared) -> Figure | None:
    """The parts of an iteration, means of each run, side by side by settings; None where there are only programs of
    the user's."""
    rows = _measured_runs(compared)[:_NUM_ROWS]
    if not rows:
        return None
    names, places, place = [], [], 0.0
    before: Setting | None = None
    for setting, number, summary in rows:
        # The first run of a setting has its name, and a little room above it.
        first = setting is not before
        mark = "" if summary.outcome == "valid" else f" ({summary.outcome})"
        names.append(_wrapped(f"{setting.name if first else f'run {number}'}{mark}"))
        place += 1.5 if first else 1.0
        places.append(place)
        before = setting
    times = [wording.parts(summary) for *_, summary in rows]
    columns = {
        name: [rounded(1e3 * time_s[column][1]) for time_s in times] for column, (name, *_) in enumerate(wording.PARTS)
    }
    hovers = [f"{setting.name}, run {number}: {summary.run_id}" for setting, number, summary in rows]
    num_lines = _num_lines(names)
    return Figure(
        title="Where an iteration goes, means of each run",
        height=round(20 + (10 + 14 * num_lines) * (places[-1] - places[0] + 1)),
        x=Axis(title="milliseconds of an iteration", zero=True),
        y=_rows(dict(zip(places, names, strict=True))),
        series=stacked(columns, places, 0.38, hovers, horizontal=True),
    )


def _measured_runs(compared: Compared) -> list[tuple[Setting, int, Summary]]:
    """Every run that has iterations, with its setting and its number among that one's runs."""
    return [
        (setting, number, summary)
        for setting in compared.settings
        for number, summary in enumerate(setting.summaries, start=1)
        if summary.iteration_time_s is not None
    ]


def num_runs_left_out(compared: Compared) -> int:
    """Runs that :func:`parts` has no room for."""
    return max(0, len(_measured_runs(compared)) - _NUM_ROWS)


def iterations(compared: Compared) -> list[tuple[Setting, Summary, Figure]]:
    """Of each setting, twelve at most, one run iteration by iteration, all on the same scale: the one whose mean
    iteration is the median of its runs'. Raises SpecError for a record that cannot be read."""
    chosen = [(setting, summary) for setting in compared.settings if (summary := median_run(setting)) is not None]
    chosen = chosen[:NUM_PANELS]
    most = min(_MOST_BARS, _NUM_BARS // max(1, len(chosen)))
    drawn = []
    for setting, summary in chosen:
        rows = measured_iterations(load_frame(Path(summary.record), "iterations"), summary)
        if not rows.is_empty():
            drawn.append((setting, summary, parts_of_iterations(rows, most=most)))
    top = 1.02 * max((figure.domain("y")[1] for *_, figure in drawn), default=1.0)
    return [(setting, summary, _panel(setting, figure, top)) for setting, summary, figure in drawn]


def _panel(setting: Setting, figure: Figure, top: float) -> Figure:
    """Without a legend: the colours are those of :func:`parts`."""
    return replace(
        figure,
        title=f"The parts of iterations, {setting.name}",
        height=160,
        y=replace(figure.y, ends=(0.0, rounded(top))),
        series=[replace(each, in_legend=False) for each in figure.series],
    )


def median_run(setting: Setting) -> Summary | None:
    """The run whose mean iteration is the middle one's, the lower of two; None without iterations."""
    measured = [
        (summary.iteration_time_s.mean, number, summary)
        for number, summary in enumerate(setting.summaries)
        if summary.iteration_time_s is not None
    ]
    return sorted(measured)[(len(measured) - 1) // 2][2] if measured else None
