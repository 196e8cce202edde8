"""Where the time of an iteration went: parts of the same iterations that add up to them. Pure.

A worker's iteration lasts from its start to the start of its next one (the last of a phase to its own end), so that
nothing between two iterations is lost and a worker that began late is not slower for it. Its parts, in the order in
which they come:

    data             loading the batch, and copying it to where it is computed with
    compute          forward pass, and backward pass until the worker's own last gradient
    waiting          from there to the last worker's last gradient, as far as this worker waited
    exposed          from there until the last gradient is reduced; and what a forward pass waited for gradients
    optimizer        its step
    other            the rest: bookkeeping

docs/definitions.md says them with their reasons.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from testbed.metrics.families import ITERATION_PART_NAMES
from testbed.record.frames import iteration_parts, last_ready_s
from testbed.record.summary import Summary

PARTS: Final = ("compute_s", "data_s", "waiting_s", "exposed_s", "optimizer_s", "other_s")
DETAILS: Final = ("host_to_device_s", "forward_s", "backward_s")
"""The part of `data_s` in which it is copied, and what `compute_s` consists of."""

_NAMES: Final[Mapping[str, str]] = {
    "data": "data",
    "host to device": "data",
    "forward": "compute",
    "backward": "compute",
    "waiting for slower workers": "waiting",
    "exposed communication": "exposed_communication",
    "optimizer": "optimizer",
    "other": "other",
}
"""ITERATION_PART_NAMES by those of testbed.record.frames.iteration_parts."""


def worker_parts(
    iterations: pl.DataFrame, *, num_workers: int, phase: str = "measured", ends_together: bool = True
) -> pl.DataFrame:
    """A row for each worker and iteration that every worker finished: rank, index, start_s, end_s, num_samples, loss,
    slowdown (as in ITERATION_SCHEMA), and in wall seconds time_s = the sum of PARTS, and DETAILS.

    Workers of which each ends an iteration by itself (not `ends_together`) have no waiting. Where the next forward pass
    waits for gradients (forward_stall_s), what of it lies before the last worker's last gradient of the iteration
    before counts as waiting.
    """
    ready_s, reduced_s, next_s = pl.col("backward_compute_end_s"), pl.col("backward_end_s"), pl.col("next_s")
    rows = (
        iterations.filter(pl.col("phase") == phase)
        .sort("rank", "index")
        .with_columns(next_s=pl.col("start_s").shift(-1).over("rank").fill_null(pl.col("end_s")))
        .filter(pl.len().over("index") == num_workers)
        .pipe(last_ready_s, ends_together=ends_together)
    )
    stall_s = pl.col("forward_stall_s")
    stalled_early_s = pl.min_horizontal(stall_s, pl.col("before_s") - pl.col("host_to_device_end_s")).clip(
        lower_bound=0
    )
    waited_s = (pl.min_horizontal(pl.col("last_s"), reduced_s) - ready_s).clip(lower_bound=0)
    return (
        rows.with_columns(
            time_s=next_s - pl.col("start_s"),
            data_s=pl.col("host_to_device_end_s") - pl.col("start_s"),
            compute_s=ready_s - pl.col("host_to_device_end_s") - stall_s,
            host_to_device_s=pl.col("host_to_device_end_s") - pl.col("data_end_s"),
            forward_s=pl.col("forward_end_s") - pl.col("host_to_device_end_s") - stall_s,
            backward_s=ready_s - pl.col("forward_end_s"),
            waiting_s=waited_s + stalled_early_s,
            exposed_s=reduced_s - ready_s - waited_s + stall_s - stalled_early_s,
            optimizer_s=pl.col("optimizer_end_s") - reduced_s,
            other_s=next_s - pl.col("optimizer_end_s"),
        )
        .select("rank", "index", "start_s", "end_s", "time_s", *PARTS, *DETAILS, "num_samples", "loss", "slowdown")
        .sort("index", "rank")
    )


class PartsMeanwhile:
    """The parts of a phase's iterations while it goes on, in the order of the iterations.

    When a worker's next iteration begins is not known yet when one is over: what lies between two iterations is
    reported with the later one, so that all parts so far are those that :func:`worker_parts` has of the rows so far.
    """

    def __init__(self, *, ends_together: bool) -> None:
        self._ends_together = ends_together
        self._before_s = -math.inf
        """When the last worker's last gradient of the iteration before was ready."""
        self._ended_s: dict[int, float] = {}
        """When each worker's iteration before ended, by its rank."""

    def of(self, rows: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
        """Of the next iteration, given all workers' rows of ITERATION_SCHEMA: by rank, in wall seconds by
        the names of ITERATION_PART_NAMES."""
        latest_s = max(row["backward_compute_end_s"] for row in rows)
        found = {}
        for row in rows:
            last_s = latest_s if self._ends_together else row["backward_compute_end_s"]
            parts_s = dict.fromkeys(ITERATION_PART_NAMES, 0.0)
            for name, begin_s, end_s in iteration_parts(row, last_s=last_s, before_s=self._before_s):
                parts_s[_NAMES[name]] += end_s - begin_s
            parts_s["other"] += row["start_s"] - self._ended_s.get(row["rank"], row["start_s"])
            self._ended_s[row["rank"]] = row["end_s"]
            found[row["rank"]] = parts_s
        if self._ends_together:
            self._before_s = latest_s
        return found


def per_iteration(
    iterations: pl.DataFrame, *, num_workers: int, dilation: float, phase: str = "measured", ends_together: bool = True
) -> pl.DataFrame:
    """One row per iteration that every worker finished: index, start_s of the first and end_s of the last worker
    (wall), num_samples of all, loss; and as means over workers in virtual seconds time_s = the sum of PARTS."""
    parts = worker_parts(iterations, num_workers=num_workers, phase=phase, ends_together=ends_together)
    return (
        parts.group_by("index")
        .agg(
            pl.col("start_s").min(),
            pl.col("end_s").max(),
            pl.col("time_s", *PARTS).mean() / dilation,
            pl.col("num_samples").sum(),
            pl.col("loss").mean(),
        )
        .sort("index")
    )


def measured_iterations(iterations: pl.DataFrame, summary: Summary) -> pl.DataFrame:
    """The rows of :func:`per_iteration` of a run's measured iterations."""
    return per_iteration(
        iterations, num_workers=summary.num_workers, dilation=summary.dilation, ends_together=summary.ends_together
    )


def losses(iterations: pl.DataFrame, summary: Summary) -> pl.DataFrame:
    """A row for each iteration of warm-up and measurement, in their order: phase, index, loss (mean over workers), and
    until_s, the virtual seconds that training has taken to the end of it, without what lies between the phases."""
    phases = [
        per_iteration(iterations, num_workers=summary.num_workers, dilation=summary.dilation, phase=phase)
        .select("index", "time_s", "loss")
        .with_columns(phase=pl.lit(phase))
        for phase in ("warmup", "measured")
    ]
    return pl.concat(phases).select("phase", "index", "loss", until_s=pl.col("time_s").cum_sum())


def by_rounds(iterations: pl.DataFrame, every: int | None) -> pl.DataFrame:
    """Of `per_iteration`'s rows one for each round of so many iterations that exchange once, their mean: workers that
    average now and then have iterations of two kinds, and a median would be that of one kind. A last round
    that is shorter counts only where it is the only one."""
    if every is None:
        return iterations
    rounds = (
        iterations.with_row_index("row")
        .group_by(pl.col("row") // every)
        .agg(pl.len().alias("num_rows"), pl.col("time_s", *PARTS, "num_samples").mean())
        .sort("row")
    )
    whole = rounds.filter(pl.col("num_rows") == every)
    return whole if whole.height else rounds
