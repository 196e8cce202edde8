"""When bytes could move, and what of its rate each direction of a link used. Pure."""

from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from testbed.experiment.link import beyond_shaping
from testbed.system.intervals import Floats, bytes_while_busy, even_bytes_between, union
from testbed.verdict.changes import RateHistory
from testbed.verdict.facts import Facts, LinkFacts
from testbed.verdict.machine import busy_times
from testbed.verdict.thresholds import UTILIZATION_LIMIT


def under_way(buckets: pl.DataFrame, *, since: Literal["first", "last"] = "last") -> tuple[Floats, Floats]:
    """When measured buckets were under way, as disjoint times in order: of each from the moment the last of its members
    has handed it over to the moment the last of them has its result.

    Before that moment no member can have a result, whatever the stack, so a bucket that waits for a slower worker's
    computing keeps no link busy. `since` the first member's hand-over: from when some of its bytes may have moved.
    """
    handed_s = pl.col("enqueued_s")
    spans = (
        buckets.filter(pl.col("phase") == "measured")
        .group_by("index", "sequence")
        .agg((handed_s.max() if since == "last" else handed_s.min()).alias("begin_s"), pl.col("done_s").max())
    )
    return union(spans["begin_s"].to_numpy(), spans["done_s"].to_numpy())


def busy(facts: Facts, *, since: Literal["first", "last"] = "last") -> tuple[Floats, Floats]:
    """When the network had something to do: buckets under way; of a command, any link that carried anything. Where
    workers do not wait for each other each bucket is its worker's own."""
    window = facts.window
    if facts.command is not None and window is not None:
        return busy_times(facts.samples, window)
    buckets = facts.buckets if facts.in_step else facts.buckets.with_columns(sequence=pl.struct("sequence", "rank"))
    return under_way(buckets, since=since)


def mean_utilization(facts: Facts, link: LinkFacts, num_bytes: int) -> float | None:
    """Those bytes over what the direction could have carried in the measured window; None where it has no rate.

    Gradients lie within the window. What waits for nothing flows as long as it is counted, which is a little longer.
    """
    start_s, end_s = _counted_s(facts, link) if link.waits_for_nothing else facts.window or (0.0, 0.0)
    mean_bps = _history(facts, link).mean_bps(np.array([start_s]), np.array([end_s]))
    return _share(num_bytes, mean_bps, (end_s - start_s) / facts.dilation)


def busy_utilization(facts: Facts, link: LinkFacts, busy: tuple[Floats, Floats]) -> float | None:
    """What the direction carried in these times (disjoint, in order) over what it could have; None where it has no
    rate.

    A worker's push does not wait for other workers', so to a server they begin with the first hand-over: since the
    last, the bytes that moved before it would count and their time would not.
    """
    return _carried(facts, link, busy).share


class _Carried(NamedTuple):
    """By a direction, in some times."""

    bytes: float
    rate_bps: float
    """In force, in the mean."""
    time_s: float
    """Virtual."""

    @property
    def share(self) -> float | None:
        return _share(self.bytes, self.rate_bps, self.time_s)


def _carried(facts: Facts, link: LinkFacts, times: tuple[Floats, Floats]) -> _Carried:
    """`times`: disjoint, in order."""
    time_s = float(np.sum(times[1] - times[0])) / facts.dilation
    between = even_bytes_between if link.waits_for_nothing else bytes_while_busy
    num_bytes = between(*_counter(facts.samples, link, _counted_s(facts, link)), times) if time_s else 0.0
    return _Carried(num_bytes, _history(facts, link).mean_bps(*times), time_s)


class Excess(NamedTuple):
    """What a direction carried, and no link of its rate and burst can have."""

    link: LinkFacts
    when: str
    """`while buckets were in service`."""
    carried_bytes: int
    possible_bytes: float


def excesses(facts: Facts) -> list[Excess]:
    """Of each direction that carried more than is possible, over the window or while buckets were in service.

    A token bucket lets rate x time + burst through in any time, and a packet that it has begun (sch_htb.c). So
    every time that the network was busy again may have begun with a burst: of short exchanges with pauses between them
    that is a good part of the bytes. Some of a bucket's bytes may move before its last member hands it over, so busy is
    since the first one did, which is longer than what `utilization_busy` counts.
    """
    window = facts.window
    if window is None:
        return []
    whole = np.array([window[0]]), np.array([window[1]])
    in_service = "while links were busy" if facts.command is not None else "while buckets were in service"
    times = {"on average": whole, in_service: busy(facts, since="first")}
    found = (_excess(facts, link, when, spans) for link in facts.links for when, spans in times.items())
    return [each for each in found if each is not None]


def _excess(facts: Facts, link: LinkFacts, when: str, spans: tuple[Floats, Floats]) -> Excess | None:
    carried = _carried(facts, link, spans)
    if carried.share is None:
        return None
    bursts_bytes = len(spans[0]) * (link.burst_bytes + facts.granule_bytes)
    possible_bytes = UTILIZATION_LIMIT * carried.rate_bps * carried.time_s / 8 + bursts_bytes
    return Excess(link, when, round(carried.bytes), possible_bytes) if carried.bytes > possible_bytes else None


def _history(facts: Facts, link: LinkFacts) -> RateHistory:
    return RateHistory(facts.changes, link=link.name, node=link.from_, rate_bps=link.rate_bps)


def _counted_s(facts: Facts, link: LinkFacts) -> tuple[float, float]:
    """When the counters around the measured window were read."""
    return link.counted_s or facts.window or (0.0, 0.0)


def _counter(samples: pl.DataFrame, link: LinkFacts, counted_s: tuple[float, float]) -> tuple[Floats, Floats]:
    """Times and class bytes over the measured window: its samples, and the counters read at both ends."""
    mine = samples.filter(
        (pl.col("link") == link.name)
        & (pl.col("node") == link.from_)
        & (pl.col("at_s") > counted_s[0])
        & (pl.col("at_s") < counted_s[1])
    ).sort("at_s")
    at_s = np.concatenate([[counted_s[0]], mine["at_s"].to_numpy(), [counted_s[1]]])
    counter = np.concatenate([[link.class_bytes_start], mine["class_bytes"].to_numpy(), [link.class_bytes_end]])
    return at_s, counter.astype(np.float64)


def _share(num_bytes: float, rate_bps: float, time_s: float) -> float | None:
    if beyond_shaping(rate_bps):
        return None
    return num_bytes * 8 / (rate_bps * time_s) if time_s > 0 else 0.0
