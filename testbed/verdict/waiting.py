"""By how much waiting for a core may have lengthened communication. Pure.

Whatever an exchange waits for at some moment, it is one thread, one link or one message: a chain of them leads from its
begin to its end. Had nobody waited for a core, the same chain would have been shorter by its own waits at most, so
no exchange lost more than the time in which *somebody* waited while it was under way: threads that wait together count
once, whatever their hosts. And none lost more than it took beyond the least that its links allow.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from testbed.system.intervals import Floats, busy_between, union
from testbed.verdict.parts import worker_parts
from testbed.verdict.thresholds import RUN_QUEUE_FLOOR

Intervals = tuple[Floats, Floats]


class Lengthened(NamedTuple):
    """By how much at most."""

    share: float
    """Of exposed or of all communication, whichever is more; 0 where it cannot matter."""
    waited_s: float = 0.0
    """Wall seconds of exchanges in which at least one thread waited; of sums, for how long an average worker waited."""
    by_host_s: Mapping[str, float] = {}
    """Of these, those in which a thread of that host did."""
    of_iterations: float = 0.0
    """What the iterations can have lost by it, of themselves: what is hidden does not lengthen them."""


def run_queue_share(
    iterations: pl.DataFrame, *, num_workers: int, ranks: Collection[int], in_step: bool = True
) -> float | None:
    """How much of exposed communication the threads that move gradients spent waiting for a core, of these workers.

    Both summed over workers and measured iterations. None without iterations; 0 where all of it is less than
    RUN_QUEUE_FLOOR of them.
    """
    measured = _measured(iterations, num_workers=num_workers, ranks=ranks, in_step=in_step)
    if measured is None:
        return None
    waited_s = sum(measured.own_waits_s.values())
    return _share(waited_s, measured.exposed_s) if waited_s > measured.floor_s else 0.0


def lengthened(
    iterations: pl.DataFrame,
    buckets: pl.DataFrame,
    *,
    num_workers: int,
    ranks: Collection[int],
    waits: pl.DataFrame | None,
    serving_s: Mapping[str, float],
    in_step: bool = True,
    bound_s: float = 0.0,
) -> Lengthened | None:
    """Of these workers' communication, in the measured iterations; None without any.

    `waits` are WAIT_SCHEMA of all hosts that count; None: not known, and sums of the workers' own threads stand for
    them, and `serving_s`, for how long each server's or aggregator's threads waited in all. `bound_s` is the least of
    an iteration's buckets together, in wall seconds; a bucket's is in proportion to its bytes, and exchanges that share
    their most loaded link follow each other there. Workers that are not `in_step` have no least in common. What exposed
    communication can have lost counts only where it is more than RUN_QUEUE_FLOOR of the iterations.
    """
    measured = _measured(iterations, num_workers=num_workers, ranks=ranks, in_step=in_step)
    if measured is None:
        return None
    exchanges = {index: _Exchanges.of(rows) for index, rows in _by_iteration(buckets, measured.indices)}
    waited = _summed(measured, serving_s) if waits is None else _together(measured, exchanges, waits, in_step=in_step)
    if waited.total_s * measured.num_ranks <= measured.floor_s:
        return Lengthened(0.0)
    if in_step:
        lost_s = _lost_of_exposed_s(measured, exchanges, waited, bound_s=bound_s)
        of_exposed = _share(lost_s, measured.exposed_s) if lost_s > measured.floor_s else 0.0
        share = max(of_exposed, _of_all(exchanges, waited, bound_s=bound_s))
    else:
        lost_s = waited.total_s * measured.num_ranks
        share = _share(lost_s, measured.exposed_s)
    return Lengthened(share, waited.total_s, waited.by_host_s, of_iterations=lost_s / measured.time_s)


class _Measured(NamedTuple):
    """Measured iterations that every worker finished, of some workers; wall seconds, sums over workers."""

    rows: pl.DataFrame
    """ITERATION_SCHEMA, of all workers."""
    indices: Sequence[int]
    num_ranks: int
    exposed_s: float
    exposed_s_by_iteration: Mapping[int, float]
    time_s: float
    """Of the iterations."""
    own_waits_s: Mapping[int, float]
    """By iteration, of the workers' own threads."""
    last_gradient_s: Mapping[int, float]
    """By iteration: when its last worker had its last gradient."""
    trails: bool
    """Whether communication goes on in the next forward pass."""

    @property
    def floor_s(self) -> float:
        """RUN_QUEUE_FLOOR of the iterations: what is not more changes nothing."""
        return RUN_QUEUE_FLOOR * self.time_s


def _measured(iterations: pl.DataFrame, *, num_workers: int, ranks: Collection[int], in_step: bool) -> _Measured | None:
    mine = pl.col("rank").is_in(list(ranks))
    parts = worker_parts(iterations, num_workers=num_workers, in_step=in_step).filter(mine)
    if parts.is_empty():
        return None
    indices = parts["index"].unique()
    rows = iterations.filter((pl.col("phase") == "measured") & pl.col("index").is_in(indices.implode()))
    waits_s = rows.filter(mine).group_by("index").agg(pl.col("communication_run_queue_delay_s").sum())
    last_s = rows.group_by("index").agg(pl.col("backward_compute_end_s").max())
    exposed_s = parts.group_by("index").agg(pl.col("exposed_s").sum())
    return _Measured(
        rows=rows,
        indices=sorted(int(index) for index in indices),
        num_ranks=len(set(ranks)),
        exposed_s=float(parts["exposed_s"].sum()),
        exposed_s_by_iteration={int(index): float(each_s) for index, each_s in exposed_s.iter_rows()},
        time_s=float(parts["time_s"].sum()),
        own_waits_s={int(index): float(value) for index, value in waits_s.iter_rows()},
        last_gradient_s={int(index): float(at_s) for index, at_s in last_s.iter_rows()},
        trails=bool((rows["forward_stall_s"] > 0).any()),
    )


class _Exchanges(NamedTuple):
    """Of one iteration, in the order in which all members had handed their buckets over."""

    first_s: Floats
    """When the first member had."""
    ready_s: Floats
    """When the last one had: what moved before waits for it."""
    done_s: Floats
    """Of the last member."""
    size_bytes: Floats

    @classmethod
    def of(cls, rows: pl.DataFrame) -> "_Exchanges":
        """Of BUCKET_SCHEMA."""
        every = (
            rows.group_by("sequence")
            .agg(
                pl.col("enqueued_s").min().alias("first_s"),
                pl.col("enqueued_s").max().alias("ready_s"),
                pl.col("done_s").max(),
                pl.col("size_bytes").max().cast(pl.Float64),
            )
            .sort("ready_s")
        )
        return cls(*(every[name].to_numpy() for name in cls._fields))

    @property
    def took_s(self) -> float:
        """In which at least one was under way."""
        starts, ends = union(self.ready_s, self.done_s)
        return float(np.sum(ends - starts))

    @property
    def pending_s(self) -> float:
        """In which a member had handed a bucket over that not all had back: what lies between exchanges included, where
        it kept one waiting."""
        starts, ends = union(self.first_s, self.done_s)
        return float(np.sum(ends - starts))

    def least_end_s(self, bound_s: float) -> float:
        """When the last of them could have ended, had each taken no longer than its part of the bound."""
        parts_s = bound_s * self.size_bytes / max(1.0, float(np.sum(self.size_bytes)))
        end_s = -math.inf
        for ready_s, part_s in zip(self.ready_s, parts_s, strict=True):
            end_s = max(end_s, ready_s) + part_s
        return end_s


def _by_iteration(buckets: pl.DataFrame, indices: Sequence[int]) -> Iterator[tuple[int, pl.DataFrame]]:
    rows = buckets.filter((pl.col("phase") == "measured") & pl.col("index").is_in(list(indices)))
    for (index,), mine in rows.group_by("index", maintain_order=True):
        yield int(str(index)), mine


class _Waited(NamedTuple):
    """Wall seconds in which a wait can have lengthened exchanges."""

    by_iteration_s: Mapping[int, float]
    exact: bool
    """Whether it is known of each iteration, and not of all together."""
    by_host_s: Mapping[str, float]

    @property
    def total_s(self) -> float:
        """In all iterations."""
        return sum(self.by_iteration_s.values())

    def least_s(self, beyond_s: Mapping[int, float]) -> float:
        """What these iterations can have lost: each no more than it waited, nor than it took beyond what it must."""
        waited_s = {index: self.by_iteration_s[index] for index in beyond_s}
        if not self.exact:
            return min(sum(waited_s.values()), sum(beyond_s.values()))
        return sum(min(each_s, beyond_s[index]) for index, each_s in waited_s.items())


def _summed(measured: _Measured, serving_s: Mapping[str, float]) -> _Waited:
    """Of an average worker's threads, and the server's or aggregator's that waited longest: they serve side by side, so
    that who waits for that one has waited for the others."""
    longest_s = max(serving_s.values(), default=0.0) / len(measured.indices)
    waited = {index: own_s / measured.num_ranks + longest_s for index, own_s in measured.own_waits_s.items()}
    return _Waited(waited, exact=False, by_host_s=serving_s)


def _together(
    measured: _Measured, exchanges: Mapping[int, _Exchanges], waits: pl.DataFrame, *, in_step: bool
) -> _Waited:
    """For how long at least one thread waited while exchanges were under way; of workers that never wait for each
    other, in all of the iteration."""
    idle = _without_computing(measured, waits)
    spans = {
        index: _under_way(measured, index, exchanges.get(index) if in_step else None) for index in measured.indices
    }
    by_host = {str(host): _union(rows) for (host,), rows in idle.group_by("host")}
    every = _union(idle)
    waited = {index: _overlap_s(every, span) for index, span in spans.items()}
    whole = _sorted_union(spans.values())
    by_host_s = {host: _overlap_s(each, whole) for host, each in by_host.items()}
    return _Waited(waited, exact=True, by_host_s=by_host_s)


def _without_computing(measured: _Measured, waits: pl.DataFrame) -> pl.DataFrame:
    """Of threads that compute only what they wait for when they have nothing to compute: from their last gradient
    until the last sum is back, where the thread may carry an exchange out itself; and, where that waits for gradients,
    in the forward pass."""
    communicating = waits.filter(~pl.col("computing")).select("host", "begin_s", "end_s")
    host = pl.format("w{}", pl.col("rank")).alias("host")
    backward = measured.rows.select(
        host, pl.col("backward_compute_end_s").alias("from_s"), pl.col("backward_end_s").alias("until_s")
    )
    forward = measured.rows.filter(pl.col("forward_stall_s") > 0).select(
        host, pl.col("host_to_device_end_s").alias("from_s"), pl.col("forward_end_s").alias("until_s")
    )
    clipped = (
        waits.filter(pl.col("computing"))
        .join_where(
            pl.concat([backward, forward]).rename({"host": "worker"}),
            pl.col("host") == pl.col("worker"),
            pl.col("begin_s") < pl.col("until_s"),
            pl.col("end_s") > pl.col("from_s"),
        )
        .select(
            "host",
            pl.max_horizontal("begin_s", "from_s").alias("begin_s"),
            pl.min_horizontal("end_s", "until_s").alias("end_s"),
        )
    )
    return pl.concat([communicating, clipped])


def _under_way(measured: _Measured, index: int, exchanges: _Exchanges | None) -> Intervals:
    """In which a wait can have lengthened an exchange of the iteration, or what of it is exposed, until the last worker
    goes on; all of the iteration where nothing is known of them."""
    rows = measured.rows.filter(pl.col("index") == index)
    if exchanges is None or not len(exchanges.first_s):
        return rows["start_s"].to_numpy().min(keepdims=True), rows["end_s"].to_numpy().max(keepdims=True)
    exposed_s = rows["backward_compute_end_s"].to_numpy().max(keepdims=True)
    back_s = np.maximum(exposed_s, rows["backward_end_s"].to_numpy().max())
    return union(np.append(exchanges.first_s, exposed_s), np.append(exchanges.done_s, back_s))


def _union(rows: pl.DataFrame) -> Intervals:
    return union(rows["begin_s"].to_numpy(), rows["end_s"].to_numpy())


def _sorted_union(spans: Collection[Intervals]) -> Intervals:
    starts, ends = zip(*spans, strict=True)
    return union(np.concatenate(starts), np.concatenate(ends))


def _overlap_s(one: Intervals, other: Intervals) -> float:
    """Of two sets of times, each disjoint and in order."""
    if not len(other[0]):
        return 0.0
    moments = np.column_stack(other).ravel()
    return float(np.sum(busy_between(moments, one)[::2]))


def _lost_of_exposed_s(
    measured: _Measured, exchanges: Mapping[int, _Exchanges], waited: _Waited, *, bound_s: float
) -> float:
    """Of exposed communication, and so of the iterations; the sum over workers."""
    if measured.trails:  # what is left of the least may hide in the next forward pass, what is lost show there
        beyond_s = {index: max(0.0, each.pending_s - bound_s) for index, each in exchanges.items()}
        return min(waited.least_s(beyond_s) * measured.num_ranks, measured.exposed_s)
    beyond_s = {}
    for index, exposed_s in measured.exposed_s_by_iteration.items():
        least_end_s = exchanges[index].least_end_s(bound_s) if index in exchanges else -math.inf
        least_s = max(0.0, least_end_s - measured.last_gradient_s[index])
        beyond_s[index] = max(0.0, exposed_s / measured.num_ranks - least_s)
    return waited.least_s(beyond_s) * measured.num_ranks


def _of_all(exchanges: Mapping[int, _Exchanges], waited: _Waited, *, bound_s: float) -> float:
    """Of all communication, hidden or not."""
    took_s = {index: each.took_s for index, each in exchanges.items()}
    lost_s = waited.least_s({index: max(0.0, each_s - bound_s) for index, each_s in took_s.items()})
    return _share(lost_s, sum(took_s.values()))


def _share(time_s: float, of_s: float) -> float:
    return min(time_s / of_s, 1.0) if of_s > 0 else float(time_s > 0)
