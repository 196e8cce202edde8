"""How far predictions reach: the ranges in which they were fitted and validated, and what lies outside. Pure.

A range is the hull of the points that were measured; in it a prediction carries the error that was found there, and
outside it none, since a fit says nothing of what it has not seen (extrapolation; Jain, "The Art of Computer Systems
Performance Analysis", 1991, section 14.4).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from testbed.experiment.workloads.base import changed_options
from testbed.plan.plan import Plan
from transports.units import format_size

Source = Literal["validation", "residuals of the fit"]
"""What an error was found by: points that no fit has seen, or the fitted ones themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """The ranges of what was measured, both ends included; times and rates are real ones, of the machine."""

    num_workers: tuple[int, int]
    size_bytes: tuple[int, int]
    """Of a single exchange of gradients."""
    delay_s: tuple[float, float]
    """One way from worker to worker."""
    rate_bps: tuple[float, float]
    """Of the slowest link of a worker or server."""
    channels: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan) -> "Reach":
        """Of one plan that has exchanges."""
        sizes_bytes = [each.num_elements * each.element_bytes for each in plan.exchanges if each.of_gradients]
        channel = plan.experiment.channel
        rate_bps = plan.prediction.goodput_bps / channel.goodput_fraction(plan.experiment.mtu)
        delay_s, real_bps = plan.clock.real_s(plan.propagation_s), plan.clock.real_bps(rate_bps)
        return cls(
            num_workers=(plan.experiment.workers, plan.experiment.workers),
            size_bytes=(min(sizes_bytes), max(sizes_bytes)),
            delay_s=(delay_s, delay_s),
            rate_bps=(real_bps, real_bps),
            channels=(channel.kind,),
        )

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> "Reach":
        """From what `dataclasses.asdict` and JSON made of one. Raises TypeError, ValueError or KeyError."""
        workers, size_bytes, delay_s, rate_bps = (
            (found[name][0], found[name][1]) for name in ("num_workers", "size_bytes", "delay_s", "rate_bps")
        )
        return cls(
            num_workers=(int(workers[0]), int(workers[1])),
            size_bytes=(int(size_bytes[0]), int(size_bytes[1])),
            delay_s=(float(delay_s[0]), float(delay_s[1])),
            rate_bps=(float(rate_bps[0]), float(rate_bps[1])),
            channels=tuple(map(str, found["channels"])),
        )

    def joined(self, other: "Reach") -> "Reach":
        """The hull of both."""
        return Reach(
            num_workers=_hull(self.num_workers, other.num_workers),
            size_bytes=_hull(self.size_bytes, other.size_bytes),
            delay_s=_hull(self.delay_s, other.delay_s),
            rate_bps=_hull(self.rate_bps, other.rate_bps),
            channels=tuple(sorted({*self.channels, *other.channels})),
        )

    def lacking(self, other: "Reach") -> list[str]:
        """In what another lies outside this one, in words with the range; empty where it lies inside."""
        found = []
        if not _within(other.num_workers, self.num_workers):
            found.append(f"{other.num_workers[1]} workers ({_span(self.num_workers, '{:d}')})")
        for at, (size_bytes, end) in enumerate(zip(other.size_bytes, self.size_bytes, strict=True)):
            if (size_bytes < end) if at == 0 else (size_bytes > end):
                sizes = " to ".join(map(format_size, self.size_bytes))
                found.append(f"an exchange of {size_bytes:,} bytes ({sizes})")
        if not _within(other.delay_s, self.delay_s):
            delays_ms = 1e3 * self.delay_s[0], 1e3 * self.delay_s[1]
            found.append(f"really {1e3 * other.delay_s[1]:.3g} ms from worker to worker ({_span(delays_ms)} ms)")
        if not _within(other.rate_bps, self.rate_bps):
            rates = self.rate_bps[0] / 1e6, self.rate_bps[1] / 1e6
            found.append(f"links of really {other.rate_bps[0] / 1e6:.4g} Mbit/s ({_span(rates)} Mbit/s)")
        found += [
            f"channel {each} ({', '.join(self.channels)})" for each in other.channels if each not in self.channels
        ]
        return found


class Expected(NamedTuple):
    """By how much predictions were off where they were compared with measurements."""

    error: float
    """The mean of the magnitudes, relative."""
    source: Source
    num_points: int
    reach: Reach


def outside(plan: Plan, expected: Expected | None) -> list[str]:
    """In what a plan lies beyond what predictions were compared with, in words; None: with nothing, and said of it is
    only what no comparison covers."""
    experiment, found = plan.experiment, []
    if expected is not None and plan.exchanges:
        found += expected.reach.lacking(Reach.of(plan))
    if any(each.loss for each in plan.directions):
        found.append("packets that are lost (none)")
    specs = [each.requested for each in plan.directions]
    if any(each.jitter_s or each.reorder or each.duplicate for each in specs):
        found.append("jitter, or packets that are reordered or duplicated (none)")
    if experiment.host_cost == "real":
        found.append("host_cost: real, whose workers stop until the next period of their quota (none)")
    elif plan.quotas:
        found.append("workers with a quota of CPU time (none)")
    if plan.background or experiment.changes:
        found.append("background traffic or links that change (neither)")
    if any(each.tenants for each in plan.aggregators):
        found.append("other jobs at the aggregating switch (none)")
    if plan.collective.aggregation is not None and plan.collective.aggregation.partial_after_s is not None:
        found.append("collective.partial_after, whose sums leave without stragglers (none)")
    channel = experiment.channel
    options = [name for name in changed_options(channel, type(channel)()) if name != "congestion"]
    if options:
        found.append(f"channel {channel.kind} with {', '.join(options)} (as they are unless given)")
    if experiment.stack is not None:
        found.append(f"stack {experiment.stack.kind}, whose schedule is its own (our collectives)")
    if experiment.fusion.steps_in_forward:
        found.append(f"fusion {experiment.fusion.kind}, whose exchanges go on in the next forward pass (none)")
    if experiment.fusion.joins_ready:
        found.append(f"fusion {experiment.fusion.kind}, whose buckets depend on when gradients become ready (none)")
    table = experiment.workload.timed_layers()
    if table is not None and table.input_and_copy_s:
        found.append("input that is waited for, or copied (neither)")
    if experiment.compression.compresses:
        found.append(f"compression {experiment.compression.kind}, whose codec takes time (none)")
    return found


def _hull(first: tuple[Any, Any], second: tuple[Any, Any]) -> tuple[Any, Any]:
    return min(first[0], second[0]), max(first[1], second[1])


_SLACK = 1e-9
"""Relative: what was computed on another way is not outside."""


def _within(inner: tuple[float, float], outer: tuple[float, float]) -> bool:
    return outer[0] * (1 - _SLACK) <= inner[0] and inner[1] <= outer[1] * (1 + _SLACK)


def _span(ends: tuple[float, float], form: str = "{:.4g}") -> str:
    first, last = (form.format(end) for end in ends)
    return first if first == last else f"{first} to {last}"
