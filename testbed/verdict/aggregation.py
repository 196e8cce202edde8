"""What aggregating switches did in a run, from what they and the workers counted. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from switch_agg.slot_latency import begin_s, quantile_s
from testbed.control.worker import SwitchStatistics
from testbed.deployment.aggregators import AggregatorReport
from testbed.experiment.clock import REAL_TIME, Clock
from testbed.plan.aggregators import AggregatorPlan, workers_below
from testbed.plan.direction import Direction
from testbed.plan.plan import Plan
from testbed.record.summary import AggregatorSummary, SlotLatency, TenantSummary
from testbed.worker.tenant import TenantReport


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchedBytes:
    """What in-network aggregation put on the wire of one direction beyond its schedule."""

    repeated: int = 0
    """Surely crossed it, beyond each chunk once."""
    retransmitted: int = 0
    """May have crossed it."""


def switched_bytes(
    plan: Plan, direction: Direction, statistics: Mapping[int, SwitchStatistics]
) -> SwitchedBytes | None:
    """What chunks beyond the planned ones put on it; None where nobody knows, because the switch was lost."""
    if any(each.lost for each in statistics.values()):
        return None
    if any(direction.hop in each.idle_hops for each in plan.aggregators):
        return SwitchedBytes()
    repeated = retransmitted = 0
    by_name = {each.name: each for each in plan.aggregators}
    for aggregator in plan.aggregators:
        for child in aggregator.children:
            # Whatever a worker sends again, those above it may send again and may answer again; of the answers a worker
            # notices only those that it did not need.
            below = workers_below(plan.aggregators, by_name[child]) if child in by_name else (int(child[1:]),)
            found = [statistics[rank] for rank in below if rank in statistics]
            up_again = sum(each.sent_again for each in found)
            down_again = max(up_again, sum(each.received_again for each in found))
            for pair, again in (((child, aggregator.name), up_again), ((aggregator.name, child), down_again)):
                if found and plan.paths[pair].shares.get(direction.hop) == 1:
                    repeated += max(each.repeated for each in found) * found[0].frame_bytes
                    retransmitted += again * found[0].frame_bytes
    return SwitchedBytes(repeated=repeated, retransmitted=retransmitted)


def violations(
    reports: Sequence[AggregatorReport],
    statistics: Mapping[int, SwitchStatistics] | None = None,
    said: Sequence[str] = (),
) -> list[str]:
    """Counters that do not add up, one line each; or that nobody can ask for, though no worker lost the switch: what
    the kernel's program did after its process had ended is unknown. `said`: see :func:`losses`."""
    lost = _lost(statistics or {}, said)
    found = [f"{report.plan.title}: {line}" for report in reports for line in report.violations]
    found += [
        f"{report.plan.title}, {tenant.text}: {_tenant_failure(members)}"
        for report in reports
        if not report.failure and not lost
        for tenant, members in zip(report.plan.tenants, report.tenants, strict=True)
        if _tenant_failure(members)
    ]
    if not lost:
        found += [
            f"{report.plan.title}: {report.failure.partition(chr(10))[0]}, so its counters are unknown"
            for report in reports
            if report.failure
        ]
    return found


def _tenant_failure(members: Sequence[TenantReport]) -> str:
    """What went wrong with another job; empty when nothing did."""
    if wrong := sum(each.wrong for each in members):
        return f"{wrong} of {sum(each.reductions for each in members)} sums were wrong"
    return next((each.failure.partition("\n")[0] for each in members if each.failure), "")


def losses(
    reports: Sequence[AggregatorReport], statistics: Mapping[int, SwitchStatistics], said: Sequence[str] = ()
) -> list[str]:
    """Why switches stopped adding, for the workers; each reason once. `said`: by a command's workers, which report no
    statistics."""
    lost = _lost(statistics, said)
    if not lost:
        return []
    return [report.failure.partition("\n")[0] for report in reports if report.failure] or lost


def _lost(statistics: Mapping[int, SwitchStatistics], said: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*(each.lost for each in statistics.values() if each.lost), *said]))


def _waits(report: AggregatorReport, clock: Clock) -> dict[str, Any]:
    """For whom its chunks waited, and how long; nothing where it has added none. A data plane in the kernel has the
    machine's clock, and others count by it as well."""
    if report.stragglers is None or not sum(report.stragglers.last):
        return {}
    last = report.stragglers.last
    slowest = max(range(len(last)), key=last.__getitem__)
    median_s, p99_s = report.stragglers.wait_s(0.5), report.stragglers.wait_s(0.99)
    return {
        "wait_median_s": None if median_s is None else clock.virtual_s(median_s),
        "wait_p99_s": None if p99_s is None else clock.virtual_s(p99_s),
        "last": report.plan.children[slowest],
        "last_share": last[slowest] / sum(last),
    }


def _slot_latency(counted: Sequence[Sequence[int]]) -> SlotLatency | None:
    """Of all workers; the protocol's time is virtual already."""
    counts = [sum(column) for column in zip(*counted, strict=True)]
    median_s, p99_s = quantile_s(counts, 0.5), quantile_s(counts, 0.99)
    if median_s is None or p99_s is None:
        return None
    held = [number for number, count in enumerate(counts) if count]
    first, end = held[0], held[-1] + 1
    return SlotLatency(
        num_chunks=sum(counts),
        median_s=median_s,
        p99_s=p99_s,
        edges_s=[begin_s(number) for number in range(first, end + 1)],
        counts=counts[first:end],
    )


def aggregator_summaries(
    reports: Sequence[AggregatorReport],
    statistics: Mapping[int, SwitchStatistics],
    clock: Clock = REAL_TIME,
    said: Sequence[str] = (),
) -> list[AggregatorSummary]:
    """The summary of each aggregator that there was; its workers are those below it. `said`: see :func:`losses`."""
    plans = [report.plan for report in reports]

    def below(plan: AggregatorPlan) -> list[SwitchStatistics]:
        return [statistics[rank] for rank in workers_below(plans, plan) if rank in statistics]

    return [
        AggregatorSummary(
            name=report.plan.name,
            at=report.plan.switch_port.node,
            dataplane=report.plan.collective.dataplane,
            children=list(report.plan.children),
            parent=report.plan.parent.node if report.plan.parent else None,
            chunks=report.counters.get("done", 0),
            duplicates=report.counters.get("duplicate_pending", 0) + report.counters.get("duplicate_done", 0),
            stale=report.counters.get("stale", 0),
            bad=sum(count for name, count in report.counters.items() if name.startswith("bad_")),
            repeated=max((each.repeated for each in below(report.plan)), default=None),
            retransmitted=sum(each.sent_again for each in below(report.plan)) if below(report.plan) else None,
            partial=max((each.partial for each in below(report.plan)), default=None),
            payload=report.plan.collective.payload,
            **_waits(report, clock),
            slot_latency=_slot_latency([each.slot_latencies for each in below(report.plan)]),
            tenants=[
                TenantSummary(
                    workers=list(tenant.hosts),
                    num_slots=tenant.job.num_slots,
                    size_bytes=tenant.size_bytes,
                    reductions=min((each.reductions for each in members), default=0),
                    chunks_sent=sum(each.chunks_sent for each in members),
                )
                for tenant, members in zip(report.plan.tenants, report.tenants, strict=True)
            ],
            lost=next(iter(losses([report], statistics, said)), None),
        )
        for report in reports
    ]
