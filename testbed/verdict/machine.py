"""What the machine and its links' queues did over the measured part of a run. Pure."""

import math
from typing import Final

import numpy as np
import polars as pl

from testbed.record.summary import BacklogSummary, MachineSummary
from testbed.verdict.intervals import Floats, busy_between, union
from testbed.verdict.judge import RATE_TOLERANCE

BUSY_SHARE: Final = 0.01
"""Of its rate: a link that carries less has nothing to do but a heartbeat."""
SATURATED_IDLE_SHARE: Final = 0.05
"""With less of the cores' time idle between two samples, somebody waited for a core."""


def run_queue_share(iterations: pl.DataFrame, buckets: pl.DataFrame) -> float | None:
    """Of the time buckets were in service, the share during which their communication thread waited for a
    core.

    Both summed over workers and measured iterations. None if no bucket was in service.
    """
    measured = buckets.filter(pl.col("phase") == "measured")
    service_s = 0.0
    for _, rows in measured.group_by("rank"):
        starts, ends = union(rows["started_s"].to_numpy(), rows["done_s"].to_numpy())
        service_s += float(np.sum(ends - starts))
    if service_s == 0:
        return None
    waited_s = iterations.filter(pl.col("phase") == "measured")["communication_run_queue_delay_s"].sum()
    return float(waited_s) / service_s


def machine_summary(
    machine: pl.DataFrame,
    iterations: pl.DataFrame,
    buckets: pl.DataFrame,
    *,
    window: tuple[float, float] | None = None,
    links: pl.DataFrame | None = None,
) -> MachineSummary | None:
    """The machine over the measured iterations; None if it was not sampled twice in them. A command has no iterations
    but a window, and communicates while `links` (LINK_SCHEMA) are busy."""
    window = measured_window(iterations) or window
    if window is None:
        return None
    samples = machine.filter(pl.col("at_s").is_between(*window)).sort("at_s")
    if samples.height < 2:
        return None
    ticks, idle, steal = (np.diff(samples[name].to_numpy()) for name in ("ticks", "idle_ticks", "steal_ticks"))
    total = float(max(ticks.sum(), 1))
    in_service = buckets.filter(pl.col("phase") == "measured")
    if links is None:
        busy = union(in_service["started_s"].to_numpy(), in_service["done_s"].to_numpy())
    else:
        busy = busy_times(links, window)
    busy_s = busy_between(samples["at_s"].to_numpy(), busy)
    saturated = idle < SATURATED_IDLE_SHARE * ticks
    return MachineSummary(
        idle_share=float(idle.sum()) / total,
        steal_share=float(steal.sum()) / total,
        saturated_share=float(busy_s[saturated].sum() / busy_s.sum()) if busy_s.sum() > 0 else None,
        softnet_drops=int(samples["softnet_drops"][-1] - samples["softnet_drops"][0]),
        softnet_squeezes=int(samples["softnet_squeezes"][-1] - samples["softnet_squeezes"][0]),
    )


def backlog_summary(probes: pl.DataFrame, *, granule_bytes: int) -> BacklogSummary | None:
    """Of one direction's probes (BACKLOG_SCHEMA); None without any.

    A count of whole granules (packets, super-frames) over a time that begins and ends anywhere errs with a standard
    deviation of granule / sqrt(6).
    """
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
        chance=3 * granule_bytes * math.sqrt(probes.height / 6) / float(due.sum()),
    )


def measured_window(iterations: pl.DataFrame) -> tuple[float, float] | None:
    """From the first worker's start to the last worker's end, seconds since the epoch; None without iterations."""
    measured = iterations.filter(pl.col("phase") == "measured")
    if measured.is_empty():
        return None
    return float(measured["start_s"].to_numpy().min()), float(measured["end_s"].to_numpy().max())


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
