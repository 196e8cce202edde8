"""How soon the points of a sweep reach a loss: time to accuracy, by what every run records of its training.

An iteration that is twice as fast is worth nothing where twice as many are needed: compression, staleness and larger
batches trade one for the other, and the time to a loss counts both. The loss of single batches jumps, so it is averaged
over the last `window` iterations, a tenth of the shortest run's, for all runs alike.

Unless a loss is given it is the lowest that all points reach, of those whose training lowered it at all: the highest of
the losses that they end with. So one point that diverges does not make it the loss that training begins with.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from testbed.errors import SpecError
from testbed.record.number_text import DASH, digits, time_text
from testbed.record.reader import load_frame
from testbed.record.summary import Summary
from testbed.report.comparison.axes import namer
from testbed.report.comparison.points import ComparedPoint, Comparison
from testbed.report.figures import GREY, PALETTE, Axis, Figure, Line, Marks, Series, rounded
from testbed.verdict.parts import losses

_NUM_LINES: Final = 8
"""Points whose losses are drawn."""
_NUM_POINTS: Final = 300
"""Of each line."""
_SHARE_OF_WINDOW: Final = 10
"""One of so many iterations of the shortest run."""
HEADERS: Final = ("time to it", "iterations", "speed-up", "loss in the end", "note")
"""Of :func:`time_rows`, after the settings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLosses:
    """The losses of one run's training, means over workers and some iterations."""

    until_s: np.ndarray
    """Virtual seconds of training until the end of each iteration from the first that has `loss`; warm-up included."""
    loss: np.ndarray
    first_iteration: int
    """How many iterations have passed at the first of them."""

    @property
    def end(self) -> float:
        """Not finite: training has diverged."""
        return float(self.loss[-1])

    @property
    def lowered(self) -> bool:
        """Whether it ends with less than it began with."""
        return bool(self.loss[-1] < self.loss[0])

    def reached(self, target: float) -> int | None:
        """Where in `loss` it is first at most that; None: never, or training has diverged in the end."""
        below = np.flatnonzero(self.loss <= target)
        return int(below[0]) if len(below) and np.isfinite(self.end) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class PointLosses:
    """One point's runs."""

    point: ComparedPoint
    runs: tuple[RunLosses, ...]
    """Of those whose numbers stand and that have a loss."""
    time_s: float | None
    """Until the loss is reached: mean over its runs; None: some run never reaches it."""
    low_s: float | None
    high_s: float | None
    """Of its runs."""
    num_iterations: float | None
    """Until then, warm-up included: mean over its runs."""
    note: str
    """Why there is no time, or how much runs differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeToLoss:
    """When each point of a sweep reaches one loss."""

    target: float
    given: bool
    """Whether somebody chose it."""
    window: int
    """Iterations over which a loss is a mean."""
    points: tuple[PointLosses, ...]
    """In the order of the sweep; all that have runs which stand."""

    @property
    def text(self) -> str:
        """What is reached, and how it is counted."""
        why = (
            "as requested"
            if self.given
            else "the lowest that all points reach, of those whose training lowered it at all"
        )
        over = f"and {self.window} iterations" if self.window > 1 else "of one iteration"
        return (
            f"Loss {digits(self.target, 4)}: {why}. A loss is the mean over workers {over}; time is that of training, "
            "in virtual seconds, warm-up included, of several runs their mean. Speed-up: the time of the first point "
            "that reaches it over this one's."
        )


def time_to_loss(comparison: Comparison) -> TimeToLoss | None:
    """Of all points, from their records; None where fewer than two have a loss, or none lowered it and no loss is
    given."""
    target = comparison.target_loss
    points = [point for point in comparison.points if point.usable]
    trained = [[run for run in point.usable if run.loss is not None] for point in points]
    lengths = [run.num_iterations for runs in trained for run in runs]
    if sum(bool(runs) for runs in trained) < 2:
        return None
    window = max(1, min(lengths) // _SHARE_OF_WINDOW)
    found, notes = [], []
    for runs in trained:
        try:
            found.append(tuple(_losses(run, window) for run in runs))
            notes.append("" if runs else "it has no loss")
        except SpecError as error:
            found.append(())
            notes.append(f"not known: {error}")
    lowest = [max(run.end for run in runs) for runs in found if runs and all(run.lowered for run in runs)]
    if target is None and not lowest:
        return None
    at = max(lowest) if target is None else target
    return TimeToLoss(
        target=at,
        given=target is not None,
        window=window,
        points=tuple(_point(*each, at) for each in zip(points, found, notes, strict=True)),
    )


def _losses(run: Summary, window: int) -> RunLosses:
    """Raises SpecError where its record cannot be read."""
    frame = losses(load_frame(Path(run.record), "iterations"), run)
    sums = np.concatenate([[0.0], frame["loss"].to_numpy().astype(float).cumsum()])
    if len(sums) <= window:
        raise SpecError(f"{run.record}: it has no {window} iterations")
    # What is no number once makes all that follows none.
    with np.errstate(invalid="ignore"):
        means = (sums[window:] - sums[:-window]) / window
    return RunLosses(until_s=frame["until_s"].to_numpy()[window - 1 :], loss=means, first_iteration=window)


def _point(point: ComparedPoint, runs: tuple[RunLosses, ...], note: str, target: float) -> PointLosses:
    reached = [(run, at) for run in runs if (at := run.reached(target)) is not None]
    times_s = [float(run.until_s[at]) for run, at in reached]
    if runs and len(reached) < len(runs):
        ends = [run.end for run in runs]
        diverged = "diverged" if not all(map(np.isfinite, ends)) else f"ends with {digits(max(ends), 4)}"
        note = f"never reached: {diverged}" if not reached else f"reached by {len(reached)} of {len(runs)} runs"
        times_s = []
    elif len(runs) > 1:
        note = f"{len(runs)} runs, {time_text(min(times_s))} to {time_text(max(times_s))}"
    return PointLosses(
        point=point,
        runs=runs,
        time_s=fmean(times_s) if times_s else None,
        low_s=min(times_s, default=None),
        high_s=max(times_s, default=None),
        num_iterations=fmean(run.first_iteration + at for run, at in reached) if times_s else None,
        note=note,
    )


def time_rows(found: TimeToLoss) -> Iterator[tuple[ComparedPoint, list[str]]]:
    """A row for each point: when it reaches the loss, after how many iterations, how many times as soon as the first,
    with what loss it ends, and what is to be said of it."""
    first_s = next((each.time_s for each in found.points if each.time_s is not None), None)
    for each in found.points:
        ends = [run.end for run in each.runs]
        speed_up = f"{digits(first_s / each.time_s)} x" if first_s is not None and each.time_s else DASH
        iterations = DASH if each.num_iterations is None else digits(each.num_iterations, 4)
        end = DASH if not ends or not all(map(np.isfinite, ends)) else digits(fmean(ends), 4)
        note = "; ".join(filter(None, ("degraded" if each.point.degraded else "", each.note)))
        yield each.point, [time_text(each.time_s), iterations, speed_up, end, note]


def loss_figure(found: TimeToLoss, paths: Sequence[str]) -> Figure | None:
    """Losses over the time that training takes, with marks where the loss is reached: the first point and those that
    reach it soonest, eight at most; of each its first run. None where no record can be read."""
    known = [(number, each) for number, each in enumerate(found.points) if each.runs]
    if not known:
        return None
    first, *others = known
    soonest = sorted(others, key=lambda item: (item[1].time_s is None, item[1].time_s or 0.0))
    name_of = namer([each.point for each in found.points], paths)
    series: list[Series] = []
    longest_s = 0.0
    for position, (_, each) in enumerate(sorted([first, *soonest[: _NUM_LINES - 1]], key=lambda item: item[0])):
        run, color = each.runs[0], PALETTE[position % len(PALETTE)]
        name = f"{name_of(each.point)}{' (degraded)' if each.point.degraded else ''}"
        step = 1 + len(run.loss) // _NUM_POINTS
        shown = [at for at in {*range(0, len(run.loss), step), len(run.loss) - 1} if np.isfinite(run.loss[at])]
        shown.sort()
        x, y = [rounded(float(run.until_s[at])) for at in shown], [rounded(float(run.loss[at])) for at in shown]
        series.append(Line(name=name, color=color, x=x, y=y, width=2.0))
        longest_s = max([longest_s, *x[-1:]])
        if each.time_s is not None and (at := run.reached(found.target)) is not None:
            series.append(
                Marks(
                    name=name,
                    color=color,
                    in_legend=False,
                    x=[rounded(float(run.until_s[at]))],
                    y=[rounded(float(run.loss[at]))],
                    size=11.0,
                    hover=[f"{name}\n{digits(found.target, 4)} after {time_text(float(run.until_s[at]))}"],
                )
            )
    target = f"loss {digits(found.target, 4)}"
    ends = [0.0, rounded(longest_s)]
    series.append(Line(name=target, color=GREY, x=ends, y=[rounded(found.target)] * 2, dash="dot", readout=False))
    among = f", {_NUM_LINES} of {len(known)} points" if len(known) > _NUM_LINES else ""
    return Figure(
        title="Loss over the time that training takes",
        height=280,
        x=Axis(title=f"seconds of training, warm-up included{among}", zero=True),
        y=Axis(title=f"loss, mean of {found.window} iterations" if found.window > 1 else "loss"),
        series=series,
        zoom=True,
    )
