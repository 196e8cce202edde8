"""By how much waiting for a core may have lengthened communication. Pure.

Whatever an exchange waits for at some moment, it is one thread, one link or one message: a chain of them leads from its
begin to its end. Had nobody waited for a core, the same chain would have been shorter by its own waits at most, so
no exchange lost more than the time in which *somebody* waited while it was under way: threads that wait together count
once, whatever their hosts. And none lost more than it took beyond the least that its links allow.

What is shown are means of some numbers, medians of others, and a few long iterations that lost nothing hide from a mean
what all others lost: a share is that of the mean or of the median, whichever is more.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from testbed.record.summary import WaitingSummary
from testbed.system.intervals import Floats, busy_between, union
from testbed.verdict.changes import RateHistory
from testbed.verdict.facts import Facts
from testbed.verdict.parts import worker_parts
from testbed.verdict.thresholds import RUN_QUEUE_DEGRADED, RUN_QUEUE_FLOOR, RUN_QUEUE_MATERIAL

Intervals = tuple[Floats, Floats]


def is_withheld(waiting: WaitingSummary) -> bool:
    """Whether iterations stand, and what is said of all communication would not: those numbers are the machine's."""
    stands = waiting.of_exposed <= RUN_QUEUE_DEGRADED and waiting.of_iterations <= RUN_QUEUE_MATERIAL
    return stands and waiting.of_communication > RUN_QUEUE_DEGRADED


def run_queue_share(
    iterations: pl.DataFrame, *, num_workers: int, ranks: Collection[int], ends_together: bool = True
) -> float | None:
    """How much of exposed communication the threads that move gradients spent waiting for a core, of these workers.

    Both summed over workers and measured iterations. None without iterations; 0 where all of it is less than
    RUN_QUEUE_FLOOR of them.
    """
    measured = _measured(iterations, num_workers=num_workers, ranks=ranks, ends_together=ends_together)
    if measured is None:
        return None
    waited_s = sum(measured.own_waits_s.values())
    return _share(waited_s, measured.exposed_s) if waited_s > measured.floor_s else 0.0


def waiting_summary(facts: Facts) -> WaitingSummary | None:
    """By how much at most in a run's measured iterations; without hosts that the spec makes wait. Where it makes all
    workers wait, others' waits (parameter servers', aggregators') still lengthen what all of them exchange; None where
    there are none."""
    every = frozenset(range(facts.num_workers))
    ranks, iterations = every - facts.limited_ranks, facts.iterations
    if not ranks:
        served_late = any(facts.serving_waited_s.values()) or (facts.waits is not None and not facts.waits.is_empty())
        if not served_late:
            return None
        ranks = every
        iterations = iterations.with_columns(communication_run_queue_delay_s=pl.lit(0.0))
    return lengthened(
        iterations,
        facts.buckets,
        num_workers=facts.num_workers,
        ranks=ranks,
        waits=facts.waits,
        serving_s=facts.serving_waited_s,
        in_step=facts.in_step,
        ends_together=facts.ends_together,
        bound_s=_bound_s(facts),
        at_once_s=facts.dilation * facts.at_once_s,
        shared=_shared(facts),
        exchange_every=facts.exchange_every,
        dilation=facts.dilation,
    )


def lateness_summary(facts: Facts) -> WaitingSummary | None:
    """By how much at most packets that were let go too late have, whatever they waited for: a chain of messages lost no
    more than the time in which some packet was overdue, on whatever link. For how long that was is known of all
    iterations together."""
    return lengthened(
        facts.iterations.with_columns(communication_run_queue_delay_s=pl.lit(0.0)),
        facts.buckets,
        num_workers=facts.num_workers,
        ranks=range(facts.num_workers),
        waits=None,
        serving_s={"delay lines": facts.dilation * facts.overdue_s},
        in_step=facts.in_step,
        ends_together=facts.ends_together,
        bound_s=_bound_s(facts),
        at_once_s=facts.dilation * facts.at_once_s,
        shared=_shared(facts),
        exchange_every=facts.exchange_every,
        dilation=facts.dilation,
    )


def _shared(facts: Facts) -> bool:
    """Whether the most loaded link need not be that of the worker that is last: one that workers share, or, where their
    links differ, another worker's."""
    if facts.prediction is None:
        return False
    rates_bps = {link.rate_bps for link in facts.links if link.from_.startswith("w")}
    return facts.prediction.bottleneck is not None or len(rates_bps) > 1


def _bound_s(facts: Facts) -> float:
    """Of an iteration's schedule, at the highest rates that links had; on the wall."""
    return facts.dilation * facts.prediction.schedule_bound_s / _made_faster(facts) if facts.prediction else 0.0


def lengthened(
    iterations: pl.DataFrame,
    buckets: pl.DataFrame,
    *,
    num_workers: int,
    ranks: Collection[int],
    waits: pl.DataFrame | None,
    serving_s: Mapping[str, float],
    in_step: bool = True,
    ends_together: bool = True,
    bound_s: float = 0.0,
    at_once_s: float = 0.0,
    shared: bool = False,
    exchange_every: int | None = None,
    dilation: float = 1.0,
) -> WaitingSummary | None:
    """Of these workers' communication, in the measured iterations; None without any. All that is given is in wall
    seconds.

    `waits` are WAIT_SCHEMA of all hosts that count; None: not known, and sums of the workers' own threads stand for
    them, and `serving_s`, for how long each server's or aggregator's threads waited in all.

    `bound_s` is the least of an iteration's buckets together, in wall seconds, at the highest rate that links had
    meanwhile; a bucket's is in proportion to its bytes, and exchanges that share their most loaded link follow each
    other there. A link that was idle lets go at once what takes `at_once_s` at its rate (a burst, and a packet that it
    has begun), so each time that exchanges are under way needs so much less. A worker's own link carries nothing of a
    bucket before the worker hands it over; where the most loaded link is `shared`, others' bytes may have crossed it
    before the last worker did, and the least counts from the first. Workers that are not `in_step` have no least in
    common; of which each ends an iteration by itself (not `ends_together`), what they wait for is exposed.

    What exposed communication can have lost counts only where it is more than RUN_QUEUE_FLOOR of the iterations; what
    all communication can have lost, hidden or not, counts always, since its time is shown whatever an iteration takes.
    Where workers exchange only once in `exchange_every` iterations, what is shown of these is of such rounds.
    """
    measured = _measured(iterations, num_workers=num_workers, ranks=ranks, ends_together=ends_together)
    if measured is None:
        return None
    exchanges = {index: _Exchanges.of(rows) for index, rows in _by_iteration(buckets, measured.indices)}
    waited = (
        _summed(measured, serving_s)
        if waits is None
        else _together(measured, exchanges, buckets, waits, in_step=in_step)
    )
    if in_step:
        least = _Least(_bounds_s(exchanges, bound_s), at_once_s, shared)
        lost_by_iteration_s = _lost_of_exposed_s(measured, exchanges, waited, least)
        of_all = _of_all(exchanges, waited, least)
    else:
        lost_by_iteration_s, of_all = dict(waited.by_iteration_s), 0.0
    lost_s = sum(lost_by_iteration_s.values()) * measured.num_ranks
    of_exposed = _share(lost_s, measured.exposed_s) if lost_s > measured.floor_s else 0.0
    times_s = {index: time_s / measured.num_ranks for index, time_s in measured.time_s_by_iteration.items()}
    return WaitingSummary(
        of_exposed=of_exposed,
        of_communication=of_all,
        of_iterations=_shortened(times_s, lost_by_iteration_s, exchange_every),
        waited_s=waited.total_s / dilation,
        by_host_s={host: each_s / dilation for host, each_s in waited.by_host_s.items()},
    )


def _made_faster(facts: Facts) -> float:
    """So many times its first rate, for which bounds are, a direction had at some moment; at least 1."""
    return max(
        (
            RateHistory(facts.changes, link=link.name, node=link.from_, rate_bps=link.rate_bps).highest_bps
            / link.rate_bps
            for link in facts.links
        ),
        default=1.0,
    )


class _Measured(NamedTuple):
    """Measured iterations that every worker finished, of some workers; wall seconds, sums over workers."""

    rows: pl.DataFrame
    """ITERATION_SCHEMA, of all workers."""
    indices: Sequence[int]
    num_ranks: int
    exposed_s: float
    exposed_s_by_iteration: Mapping[int, float]
    time_s_by_iteration: Mapping[int, float]
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
        return RUN_QUEUE_FLOOR * sum(self.time_s_by_iteration.values())


def _measured(
    iterations: pl.DataFrame, *, num_workers: int, ranks: Collection[int], ends_together: bool
) -> _Measured | None:
    mine = pl.col("rank").is_in(list(ranks))
    parts = worker_parts(iterations, num_workers=num_workers, ends_together=ends_together).filter(mine)
    if parts.is_empty():
        return None
    indices = parts["index"].unique()
    rows = iterations.filter((pl.col("phase") == "measured") & pl.col("index").is_in(indices.implode()))
    waits_s = rows.filter(mine).group_by("index").agg(pl.col("communication_run_queue_delay_s").sum())
    last_s = rows.group_by("index").agg(pl.col("backward_compute_end_s").max())
    exposed_s = parts.group_by("index").agg(pl.col("exposed_s").sum())
    time_s = parts.group_by("index").agg(pl.col("time_s").sum())
    return _Measured(
        rows=rows,
        indices=sorted(int(index) for index in indices),
        num_ranks=len(set(ranks)),
        exposed_s=float(parts["exposed_s"].sum()),
        exposed_s_by_iteration={int(index): float(each_s) for index, each_s in exposed_s.iter_rows()},
        time_s_by_iteration={int(index): float(each_s) for index, each_s in time_s.iter_rows()},
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
    payload_bytes: Floats
    """What compression left of it, over all members."""

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
                pl.col("payload_bytes").sum().cast(pl.Float64),
            )
            .sort("ready_s")
        )
        return cls(*(every[name].to_numpy() for name in cls._fields))

    @property
    def under_way(self) -> Intervals:
        """When at least one was."""
        return union(self.ready_s, self.done_s)

    @property
    def pending(self) -> Intervals:
        """When a member had handed a bucket over that not all had back: what lies between exchanges included, where
        it kept one waiting."""
        return union(self.first_s, self.done_s)

    def least_end_s(self, bound_s: float, *, since_first: bool = False) -> float:
        """When the last of them could have ended, had each taken no longer than its part of the bound, from when the
        last member had handed it over, or the first."""
        parts_s = bound_s * self.size_bytes / max(1.0, float(np.sum(self.size_bytes)))
        order = np.argsort(self.first_s, kind="stable") if since_first else np.arange(len(parts_s))
        begins_s = (self.first_s if since_first else self.ready_s)[order]
        end_s = -math.inf
        for ready_s, part_s in zip(begins_s, parts_s[order], strict=True):
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

    def lost_s(self, beyond_s: Mapping[int, float]) -> dict[int, float]:
        """What these iterations can have lost: each no more than it waited, nor than it took beyond what it must."""
        if self.exact:
            return {index: min(self.by_iteration_s[index], each_s) for index, each_s in beyond_s.items()}
        waited_s, most_s = sum(self.by_iteration_s[index] for index in beyond_s), sum(beyond_s.values())
        return {index: each_s * min(1.0, waited_s / most_s) if most_s else 0.0 for index, each_s in beyond_s.items()}


def _summed(measured: _Measured, serving_s: Mapping[str, float]) -> _Waited:
    """Of an average worker's threads, and the server's or aggregator's that waited longest: they serve side by side, so
    that who waits for that one has waited for the others."""
    longest_s = max(serving_s.values(), default=0.0) / len(measured.indices)
    waited = {index: own_s / measured.num_ranks + longest_s for index, own_s in measured.own_waits_s.items()}
    return _Waited(waited, exact=False, by_host_s=serving_s)


def _together(
    measured: _Measured,
    exchanges: Mapping[int, _Exchanges],
    buckets: pl.DataFrame,
    waits: pl.DataFrame,
    *,
    in_step: bool,
) -> _Waited:
    """For how long at least one thread waited while exchanges were under way; of workers that never wait for each
    other, in all of the iteration."""
    idle = _without_computing(measured, buckets, waits)
    spans = {
        index: _under_way(measured, index, exchanges.get(index) if in_step else None) for index in measured.indices
    }
    by_host = {str(host): _union(rows) for (host,), rows in idle.group_by("host")}
    every = _union(idle)
    waited = {index: _overlap_s(every, span) for index, span in spans.items()}
    whole = _sorted_union(spans.values())
    by_host_s = {host: each_s for host, each in by_host.items() if (each_s := _overlap_s(each, whole))}
    return _Waited(waited, exact=True, by_host_s=by_host_s)


def _without_computing(measured: _Measured, buckets: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Of threads that compute only what they wait for when they have nothing to compute: from their last gradient
    until the last sum is back, where the thread may carry an exchange out itself; and, where that waits for gradients,
    in the forward pass. What they wait for behind a thread of their own process that moves gradients meanwhile holds
    nothing up between the last bucket that they hand over and the end of the last one."""
    communicating = waits.filter(~pl.col("computing")).select("host", "begin_s", "end_s")
    handed_over = (
        buckets.filter(pl.col("phase") == "measured")
        .group_by("rank", "index")
        .agg(pl.col("enqueued_s").max().alias("last_enqueued_s"), pl.col("done_s").max().alias("last_done_s"))
    )
    rows = measured.rows.join(handed_over, on=["rank", "index"], how="left").with_columns(
        pl.format("w{}", pl.col("rank")).alias("worker")
    )
    ready, back = pl.col("backward_compute_end_s"), pl.col("backward_end_s")
    all_backward = _spans(rows, ready, back)
    forward = _spans(
        rows.filter(pl.col("forward_stall_s") > 0), pl.col("host_to_device_end_s"), pl.col("forward_end_s")
    )
    before_last = _spans(rows, ready, pl.min_horizontal(pl.col("last_enqueued_s").fill_null(back), back))
    after_last = _spans(rows, pl.max_horizontal(pl.col("last_done_s").fill_null(back), ready), back)
    behind = pl.col("computing") & pl.col("behind")
    return pl.concat(
        [
            communicating,
            _clipped(waits.filter(pl.col("computing") & ~pl.col("behind")), pl.concat([all_backward, forward])),
            _clipped(waits.filter(behind), pl.concat([before_last, after_last, forward])),
        ]
    )


def _spans(rows: pl.DataFrame, begins: pl.Expr, ends: pl.Expr) -> pl.DataFrame:
    """Of each worker, those that have a length."""
    spans = rows.select("worker", begins.alias("from_s"), ends.alias("until_s"))
    return spans.filter(pl.col("until_s") > pl.col("from_s"))


def _clipped(waits: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """What of waits lies in spans of the same worker."""
    return waits.join_where(
        spans,
        pl.col("host") == pl.col("worker"),
        pl.col("begin_s") < pl.col("until_s"),
        pl.col("end_s") > pl.col("from_s"),
    ).select(
        "host",
        pl.max_horizontal("begin_s", "from_s").alias("begin_s"),
        pl.min_horizontal("end_s", "until_s").alias("end_s"),
    )


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


def _bounds_s(exchanges: Mapping[int, _Exchanges], bound_s: float) -> dict[int, float]:
    """Of each iteration. The bound is that of a mean iteration's payload: where it depends on the gradients, some
    iterations need less."""
    payload = {index: float(np.sum(each.payload_bytes)) for index, each in exchanges.items()}
    mean_bytes = sum(payload.values()) / max(1, len(payload))
    return {index: bound_s * (min(1.0, each / mean_bytes) if mean_bytes else 1.0) for index, each in payload.items()}


class _Least(NamedTuple):
    """What the exchanges of an iteration need of their links."""

    bounds_s: Mapping[int, float]
    """By iteration, at the links' rate."""
    at_once_s: float
    """Of these, what a link may have let go at once whenever it was idle before."""
    shared: bool
    """Whether the links may have carried a part before the last member had handed a bucket over."""

    def beyond_s(self, index: int, times: Intervals) -> float:
        """By how much these times, in which all of that iteration's were, are longer; not negative."""
        starts, ends = times
        least_s = max(0.0, self.bounds_s[index] - len(starts) * self.at_once_s)
        return max(0.0, float(np.sum(ends - starts)) - least_s)

    def end_s(self, index: int, exchanges: _Exchanges) -> float:
        """When that iteration's last could have ended, had each bucket taken no longer than its part. From whichever of
        them on, what follows without a pause had one burst."""
        return exchanges.least_end_s(self.bounds_s[index], since_first=self.shared) - self.at_once_s


def _lost_of_exposed_s(
    measured: _Measured, exchanges: Mapping[int, _Exchanges], waited: _Waited, least: _Least
) -> dict[int, float]:
    """Of exposed communication, and so of each iteration: of an average worker's."""
    if measured.trails:  # what is left of the least may hide in the next forward pass, what is lost show there
        lost_s = waited.lost_s({index: least.beyond_s(index, each.pending) for index, each in exchanges.items()})
        most = _share(measured.exposed_s / measured.num_ranks, sum(lost_s.values()))
        return {index: most * each_s for index, each_s in lost_s.items()}
    beyond_s = {}
    for index, exposed_s in measured.exposed_s_by_iteration.items():
        end_s = least.end_s(index, exchanges[index]) if index in exchanges else -math.inf
        least_s = max(0.0, end_s - measured.last_gradient_s[index])
        beyond_s[index] = max(0.0, exposed_s / measured.num_ranks - least_s)
    return waited.lost_s(beyond_s)


def _of_all(exchanges: Mapping[int, _Exchanges], waited: _Waited, least: _Least) -> float:
    """Of all communication, hidden or not."""
    took_s, beyond_s = {}, {}
    for index, each in exchanges.items():
        starts, ends = each.under_way
        took_s[index] = float(np.sum(ends - starts))
        times = each.pending if least.shared else (starts, ends)
        beyond_s[index] = min(took_s[index], least.beyond_s(index, times))
    return _shortened(took_s, waited.lost_s(beyond_s))


def _shortened(times_s: Mapping[int, float], lost_s: Mapping[int, float], exchange_every: int | None = None) -> float:
    """By how much of itself the mean or the median of these times, or of rounds of so many of them, is less without
    what was lost; where nothing is known of what an iteration lost, nothing was."""
    if not times_s:
        return 0.0
    indices = sorted(times_s)
    lost = np.array([lost_s.get(index, 0.0) for index in indices])
    took_s = _rounds(np.array([times_s[index] for index in indices]), exchange_every)
    left_s = took_s - _rounds(lost, exchange_every)
    both = [(float(of(took_s)), float(of(left_s))) for of in (np.mean, np.median)]
    return max(0.0, *(_share(of_s - left, of_s) for of_s, left in both))


def _rounds(times_s: Floats, every: int | None) -> Floats:
    """Their means over rounds, as testbed.verdict.parts.by_rounds has them: of whole ones where there are any."""
    if every is None:
        return times_s
    whole = len(times_s) // every
    if not whole:
        return np.array([np.mean(times_s)])
    return np.asarray(times_s[: whole * every].reshape(whole, every).mean(axis=1), dtype=np.float64)


def _share(time_s: float, of_s: float) -> float:
    return min(time_s / of_s, 1.0) if of_s > 0 else float(time_s > 0)
