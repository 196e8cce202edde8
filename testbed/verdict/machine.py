"""What the machine and its links' queues did over the measured part of a run. Pure."""

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from testbed.record.summary import BacklogSummary, MachineSummary
from testbed.system.intervals import Floats, busy_between, union
from testbed.verdict.parts import worker_parts
from testbed.verdict.thresholds import BUSY_SHARE, RATE_TOLERANCE, RUN_QUEUE_FLOOR, SATURATED_IDLE_SHARE


def run_queue_share(
    iterations: pl.DataFrame, *, num_workers: int, ranks: Collection[int], in_step: bool = True
) -> float | None:
    """How much of exposed communication the threads that move gradients spent waiting for a core, of these workers.

    Both summed over workers and measured iterations. None without iterations; 0 where all of it is less than
    RUN_QUEUE_FLOOR of them.
    """
    waited = _waited(iterations, num_workers=num_workers, ranks=ranks, in_step=in_step)
    if waited is None:
        return None
    return _share(waited.time_s, waited.exposed_s) if waited.time_s > waited.floor_s else 0.0


def lengthened_share(
    iterations: pl.DataFrame,
    buckets: pl.DataFrame,
    *,
    num_workers: int,
    ranks: Collection[int],
    in_step: bool = True,
    bound_s: float = 0.0,
    serving_s: float = 0.0,
) -> float | None:
    """By how much of itself communication may have been lengthened by threads that waited for a core, of these workers:
    of exposed or of all communication, whichever is more.

    Any of the waiting may have lengthened either, wherever in the iteration it was, but neither by more than it took
    beyond the least that its links allow: what is as fast as the links was not held up. `bound_s` is that least, of an
    iteration's buckets together, in wall seconds; a bucket's is in proportion to its bytes, and exchanges that share
    their most loaded link follow each other there. `serving_s`: how long whoever serves all of them, a parameter server
    or an aggregator, waited in the measured iterations; each of the workers waited for it so long. What exposed
    communication can have lost so counts only where it is more than RUN_QUEUE_FLOOR of the iterations. None and 0 as
    run_queue_share().
    """
    waited = _waited(iterations, num_workers=num_workers, ranks=ranks, in_step=in_step)
    if waited is not None and serving_s:
        waited = waited.with_more(len(set(ranks)) * serving_s)
    if waited is None or waited.time_s <= waited.floor_s:
        return None if waited is None else 0.0
    if not in_step:
        return _share(waited.time_s, waited.exposed_s)
    whole_s = beyond_s = hidden_from_s = waited_s = 0.0
    for index, rows in _exchanges(buckets, waited.indices):
        starts, ends = union(rows["ready_s"].to_numpy(), rows["done_s"].to_numpy())
        took_s = float(np.sum(ends - starts))
        whole_s += took_s
        waited_s += waited.by_iteration_s[index]
        beyond_s += max(0.0, took_s - bound_s)
        if not waited.trails:  # else what is left may hide in the next forward pass
            hidden_from_s += max(0.0, _least_end_s(rows, bound_s) - waited.last_gradient_s[index])
    num_ranks = len(set(ranks))
    lost_s = min(waited.time_s, max(0.0, waited.exposed_s - num_ranks * hidden_from_s))
    exposed = _share(lost_s, waited.exposed_s) if lost_s > waited.floor_s else 0.0
    return max(exposed, _share(min(waited_s, num_ranks * beyond_s), num_ranks * whole_s))


class _Waited(NamedTuple):
    """Of some workers, summed over them and over measured iterations that every worker finished; wall seconds."""

    time_s: float
    exposed_s: float
    floor_s: float
    """RUN_QUEUE_FLOOR of the iterations: what is not more changes nothing."""
    indices: Sequence[int]
    by_iteration_s: Mapping[int, float]
    last_gradient_s: Mapping[int, float]
    """By iteration: when its last worker had its last gradient."""
    trails: bool
    """Whether communication goes on in the next forward pass."""

    def with_more(self, time_s: float) -> "_Waited":
        """So much longer, the same in each iteration."""
        each_s = time_s / len(self.by_iteration_s)
        by_iteration_s = {index: waited_s + each_s for index, waited_s in self.by_iteration_s.items()}
        return self._replace(time_s=self.time_s + time_s, by_iteration_s=by_iteration_s)


def _waited(iterations: pl.DataFrame, *, num_workers: int, ranks: Collection[int], in_step: bool) -> _Waited | None:
    mine = pl.col("rank").is_in(list(ranks))
    parts = worker_parts(iterations, num_workers=num_workers, in_step=in_step).filter(mine)
    if parts.is_empty():
        return None
    indices = parts["index"].unique()
    measured = iterations.filter((pl.col("phase") == "measured") & pl.col("index").is_in(indices.implode()))
    time_s = float(measured.filter(mine)["communication_run_queue_delay_s"].sum())
    by_index = measured.filter(mine).group_by("index").agg(pl.col("communication_run_queue_delay_s").sum())
    last_s = measured.group_by("index").agg(pl.col("backward_compute_end_s").max())
    return _Waited(
        time_s=time_s,
        exposed_s=float(parts["exposed_s"].sum()),
        floor_s=RUN_QUEUE_FLOOR * float(parts["time_s"].sum()),
        indices=[int(index) for index in indices],
        by_iteration_s={int(index): float(value) for index, value in by_index.iter_rows()},
        last_gradient_s={int(index): float(at_s) for index, at_s in last_s.iter_rows()},
        trails=bool((measured["forward_stall_s"] > 0).any()),
    )


def _share(time_s: float, of_s: float) -> float:
    return min(time_s / of_s, 1.0) if of_s > 0 else float(time_s > 0)


def _exchanges(buckets: pl.DataFrame, indices: Sequence[int]) -> Iterator[tuple[int, pl.DataFrame]]:
    """Of each of these measured iterations its buckets in the order in which all their members had handed them over:
    ready_s, done_s (of the last member), size_bytes."""
    rows = (
        buckets.filter((pl.col("phase") == "measured") & pl.col("index").is_in(list(indices)))
        .group_by("index", "sequence")
        .agg(
            pl.col("enqueued_s").max().alias("ready_s"),
            pl.col("done_s").max(),
            pl.col("size_bytes").max(),
        )
        .sort("ready_s")
    )
    for (index,), mine in rows.group_by("index", maintain_order=True):
        yield int(str(index)), mine


def _least_end_s(exchanges: pl.DataFrame, bound_s: float) -> float:
    """When the last of them could have ended, had each taken no longer than its part of the bound."""
    total_bytes = max(1, int(exchanges["size_bytes"].sum()))
    end_s = -math.inf
    for ready_s, size_bytes in exchanges.select("ready_s", "size_bytes").iter_rows():
        end_s = max(end_s, ready_s) + bound_s * size_bytes / total_bytes
    return end_s


def alone_wait_shares(iterations: pl.DataFrame) -> dict[int, float]:
    """By rank: run-queue delay of a worker's threads over the time in which it computed alone."""
    alone = iterations.filter(pl.col("phase") == "compute_alone")
    took_s, waited_s = (pl.col("end_s") - pl.col("start_s")).sum(), pl.col("run_queue_delay_s").sum()
    rows = alone.group_by("rank").agg(took_s.alias("took_s"), waited_s.alias("waited_s")).sort("rank")
    return {int(rank): waited / took for rank, took, waited in rows.iter_rows() if took > 0}


def other_load_share(machine: pl.DataFrame, iterations: pl.DataFrame, *, phase: str) -> float | None:
    """Of all cores' time while every worker was in this phase, what was neither idle nor stolen nor the workers' own;
    None where the machine was not sampled twice in it. The workers' own is as much of their CPU time as they spent in
    iterations that overlap it."""
    rows = iterations.filter(pl.col("phase") == phase)
    if rows.is_empty():
        return None
    spans = rows.group_by("rank").agg(pl.col("start_s").min(), pl.col("end_s").max())
    begin_s, end_s = float(spans["start_s"].to_numpy().max()), float(spans["end_s"].to_numpy().min())
    samples = machine.filter(pl.col("at_s").is_between(begin_s, end_s)).sort("at_s")
    if samples.height < 2:
        return None
    first, last = samples.row(0, named=True), samples.row(-1, named=True)
    ticks = last["ticks"] - first["ticks"]
    busy = ticks - sum(last[name] - first[name] for name in ("idle_ticks", "steal_ticks"))
    overlap_s = pl.min_horizontal(pl.col("end_s"), last["at_s"]) - pl.max_horizontal(pl.col("start_s"), first["at_s"])
    share = overlap_s.clip(lower_bound=0) / (pl.col("end_s") - pl.col("start_s"))
    own_s = float(rows.select((pl.col("cpu_s") * share).sum()).item())
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return max(0.0, (busy - own_s * ticks_per_s) / ticks) if ticks else None


def machine_summary(
    machine: pl.DataFrame, window: tuple[float, float] | None, busy: tuple[Floats, Floats]
) -> MachineSummary | None:
    """The machine over the measured window, and while communication was under way (disjoint times, in order); None if
    it was not sampled twice in the window."""
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
