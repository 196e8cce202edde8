"""Figures that no network can have: what was measured against what is physically possible. Pure.

A token bucket of a rate and a burst lets through at most rate x time + burst, over any time (net/sched/sch_htb.c), and
a packet that it has begun. Whatever sent more had another rate for a while, whoever changed it and put it back.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import polars as pl

from testbed.experiment.link import beyond_shaping
from testbed.record.number_text import digits, time_text
from testbed.record.summary import Results
from testbed.verdict.thresholds import BOUND_TOLERANCE, EFFICIENCY_LIMIT, SENT_TOLERANCE

_SPANS: Final = (1, 3, 10)
"""Of samples, over which sent bytes are compared: short ones find short changes, long ones small changes."""


class Overspeed(NamedTuple):
    """A direction that sent more than its rate allows, where it did so most."""

    link: str
    node: str
    """The sending one."""
    sent_bytes: int
    possible_bytes: float
    time_s: float
    """From before the first counter was read to after the last one was."""


def overspeeds(
    samples: pl.DataFrame,
    changes: pl.DataFrame,
    burst_bytes: Mapping[tuple[str, str], int],
    granule_bytes: int,
    *,
    dilation: float = 1.0,
) -> list[Overspeed]:
    """Of each direction in `samples` (LINK_SCHEMA) that sent more than is possible, its worst case, with the rates that
    samples saw and those of `changes` (CHANGE_SCHEMA) in between.

    `burst_bytes`: what may leave at once, by link and sending node; directions that are not in it have no rate.
    `granule_bytes`: the largest packet, which is sent whole once it has begun. `dilation`: rates of samples are
    virtual, their times are those of the wall; what is found is in virtual time.
    """
    virtual = samples.with_columns(pl.col("at_s", "read_from_s") / dilation)
    found = []
    for (link, node), unsorted in virtual.group_by("link", "node", maintain_order=True):
        burst = burst_bytes.get((str(link), str(node)))
        mine = (pl.col("link") == link) & (pl.col("node") == node)
        rows = _with_changes(unsorted.sort("at_s"), changes if changes.is_empty() else changes.filter(mine), dilation)
        if burst is None or rows.is_empty() or beyond_shaping(float(rows["rate_bps"].to_numpy().max())):
            continue
        worst = max(
            (each for span in _SPANS if (each := _worst(rows, span, burst + granule_bytes)) is not None),
            key=lambda each: each[0] / each[1],
            default=None,
        )
        if worst is not None and worst[0] > worst[1]:
            found.append(Overspeed(str(link), str(node), *worst))
    return found


def _with_changes(rows: pl.DataFrame, changes: pl.DataFrame, dilation: float) -> pl.DataFrame:
    """With the highest rate of each sample or since the one before: a faster one may have come and gone unsampled."""
    if changes.is_empty():
        return rows
    moments = changes.select(pl.col("at_s") / dilation, "rate_bps").sort("at_s")
    # The first sample at or after a change is the one that it came before.
    number = pl.Series("number", rows["at_s"].search_sorted(moments["at_s"], side="left"), dtype=pl.UInt32)
    highest = moments.with_columns(number).group_by("number").agg(pl.col("rate_bps").max().alias("changed_bps"))
    return (
        rows.with_row_index("number")
        .join(highest, on="number", how="left", maintain_order="left")
        .with_columns(pl.max_horizontal("rate_bps", "changed_bps"))
        .drop("number", "changed_bps")
    )


def _worst(rows: pl.DataFrame, span: int, at_once_bytes: int) -> tuple[int, float, float] | None:
    """Sent, possible and time of the span of samples that sent most of what it could."""
    if rows.height <= span:
        return None
    # The rate of a sample was requested when it was read; within the span any of them may have been in force.
    rate_bps = pl.max_horizontal(pl.col("rate_bps").shift(step) for step in range(span + 1))
    time_s = pl.col("at_s") - pl.col("read_from_s").shift(span)
    spans = rows.select(
        sent=pl.col("class_bytes") - pl.col("class_bytes").shift(span),
        possible=rate_bps * time_s * (1 + SENT_TOLERANCE) / 8 + at_once_bytes,
        time_s=time_s,
    ).drop_nulls()
    sent, possible, took_s = spans.row(int((spans["sent"] / spans["possible"]).arg_max() or 0))
    return int(sent), float(possible), float(took_s)


def impossible(results: Results, *, at_once_s: float) -> list[str]:
    """Headline figures beyond what is physically possible, each as a phrase; empty when there are none.

    `at_once_s`: how much earlier than its rate says a link's bytes of one iteration may have left, as bursts.
    """
    found = []
    allreduce = results.allreduce
    # What is withheld took a good deal longer than its bytes need: else it could not have been waiting.
    if allreduce is not None and _is_too_short(allreduce.span_s, results, at_once_s):
        took, least = time_text(allreduce.span_s), time_text(allreduce.schedule_bound_s)
        found.append(f"an all-reduce took {took}, and its bytes alone need {least}")
    for name, ratio in (
        ("scaling factor", results.scaling_factor),
        ("network efficiency", results.network_efficiency),
    ):
        if ratio is not None and ratio > EFFICIENCY_LIMIT and results.synchronisation is None:
            found.append(
                f"a {name} of {digits(ratio)}: iterations without communication took longer than those with it, "
                "so something else held them up"
            )
    return found


def out_of_step(results: Results, *, at_once_s: float) -> str | None:
    """Why an all-reduce took every worker less than its bytes need, where that is possible: workers that begin one
    after the other leave a shared link at work for longer than any of them waits. None: it did not.

    `at_once_s`: as above.
    """
    allreduce = results.allreduce
    if allreduce is None or not _is_too_short(allreduce.time_s, results, at_once_s):
        return None
    took, span = time_text(allreduce.time_s), time_text(allreduce.span_s)
    return (
        f"workers begin an all-reduce at different times: it takes each of them {took} and all of them together "
        f"{span}, and its bytes need {time_text(allreduce.schedule_bound_s)}; so its time is below the schedule's, "
        "links seem to be used for more than 100 % while busy, and an iteration is shorter than computing and that "
        "bound"
    )


def _is_too_short(time_s: float | None, results: Results, at_once_s: float) -> bool:
    """Whether the schedule's bytes cannot have left in that time. Never where rates changed, or where not every
    iteration exchanges: no one bound holds for all iterations."""
    if time_s is None or results.allreduce is None or results.changes or results.synchronisation is not None:
        return False
    return time_s < results.allreduce.schedule_bound_s * (1 - BOUND_TOLERANCE) - at_once_s
