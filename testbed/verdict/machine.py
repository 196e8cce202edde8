"""What the machine and its links' queues did over the measured part of a run. Pure."""

import math

import numpy as np
import polars as pl

from testbed.record.summary import BacklogSummary, MachineSummary
from testbed.system.intervals import Floats, busy_between, union
from testbed.verdict.thresholds import BUSY_SHARE, RATE_TOLERANCE, SATURATED_IDLE_SHARE


def alone_wait_shares(iterations: pl.DataFrame) -> dict[int, float]:
    """By rank: run-queue delay of a worker's threads over the time in which it computed alone."""
    alone = iterations.filter(pl.col("phase") == "compute_alone")
    took_s, waited_s = (pl.col("end_s") - pl.col("start_s")).sum(), pl.col("run_queue_delay_s").sum()
    rows = alone.group_by("rank").agg(took_s.alias("took_s"), waited_s.alias("waited_s")).sort("rank")
    return {int(rank): waited / took for rank, took, waited in rows.iter_rows() if took > 0}


def machine_summary(
    machine: pl.DataFrame,
    window: tuple[float, float] | None,
    busy: tuple[Floats, Floats],
    *,
    others_share: float | None = None,
) -> MachineSummary | None:
    """The machine over the measured window, and while communication was under way (disjoint times, in order); None if
    it was not sampled twice in the window. `others_share`: of the cores, what programs beside the run used."""
    if window is None:
        return None
    samples = machine.filter(pl.col("at_s").is_between(*window)).sort("at_s")
    if samples.height < 2:
        return None
    ticks, idle, steal = (np.diff(samples[name].to_numpy()) for name in ("ticks", "idle_ticks", "steal_ticks"))
    total = float(max(ticks.sum(), 1))
    busy_s = busy_between(samples["at_s"].to_numpy(), busy)
    saturated = idle < SATURATED_IDLE_SHARE * ticks
    return MachineSummary(
        idle_share=float(idle.sum()) / total,
        others_share=others_share,
        steal_share=float(steal.sum()) / total,
        saturated_share=float(busy_s[saturated].sum() / busy_s.sum()) if busy_s.sum() > 0 else None,
        softnet_drops=int(samples["softnet_drops"][-1] - samples["softnet_drops"][0]),
        softnet_squeezes=int(samples["softnet_squeezes"][-1] - samples["softnet_squeezes"][0]),
    )


def backlog_summary(probes: pl.DataFrame, *, granule_bytes: int) -> BacklogSummary | None:
    """Of one direction's probes (BACKLOG_SCHEMA); None without any."""
    if probes.is_empty():
        return None
    due, elapsed_s = probes["due_bytes"].to_numpy(), probes["elapsed_s"].to_numpy()
    held = np.abs(probes["sent_bytes"].to_numpy() - due) <= granule_bytes + RATE_TOLERANCE * due
    return BacklogSummary(
        num_probes=probes.height,
        watched_s=float(elapsed_s.sum()),
        due_bytes=float(due.sum()),
        sent_bytes=int(probes["sent_bytes"].sum()),
        held_share=float(elapsed_s[held].sum() / elapsed_s.sum()),
        chance=probing_chance(probes.height, float(due.sum()), granule_bytes=granule_bytes),
    )


def probing_chance(num_probes: int, due_bytes: float, *, granule_bytes: int) -> float:
    """By how much that many probes together may err, relative to what was due: three standard deviations.

    A count of whole granules (packets, super-frames) over a time that begins and ends anywhere errs with a standard
    deviation of granule / sqrt(6).
    """
    return 3 * granule_bytes * math.sqrt(num_probes / 6) / due_bytes


def beyond_chance(sent_bytes: float, due_bytes: float, chance: float) -> float:
    """By how much more than its rate a direction has sent, relative, signed, of what cannot be chance."""
    surplus = sent_bytes / due_bytes - 1
    return math.copysign(max(0.0, abs(surplus) - chance), surplus)


def busy_times(samples: pl.DataFrame, window: tuple[float, float]) -> tuple[Floats, Floats]:
    """Times between two samples in which any link carried more than a hundredth of its rate, disjoint and in order."""
    by_link = pl.col("at_s", "class_bytes").shift(1).over("link", "node", order_by="at_s").name.suffix("_before")
    between = (
        samples.with_columns(by_link)
        .with_columns(pl.max_horizontal(pl.col("at_s_before"), window[0]).alias("begin_s"))
        .with_columns(pl.min_horizontal(pl.col("at_s"), window[1]).alias("end_s"))
        .filter(pl.col("at_s_before").is_not_null() & (pl.col("begin_s") < pl.col("end_s")))
    )
    carried_bps = 8 * (pl.col("class_bytes") - pl.col("class_bytes_before")) / (pl.col("at_s") - pl.col("at_s_before"))
    busy = between.filter(carried_bps > BUSY_SHARE * pl.col("rate_bps"))
    return union(busy["begin_s"].to_numpy(), busy["end_s"].to_numpy())
