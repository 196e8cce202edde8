"""What a run's page of metrics says of its aggregating switches. Pure, but for asking them."""

from collections import defaultdict
from collections.abc import Callable, Mapping

from switch_agg.metrics import Scraped
from switch_agg.status import Status
from testbed.plan.aggregators import AggregatorPlan
from testbed.plan.paths import Hop
from testbed.plan.plan import Plan


def scraped_aggregators(
    plan: Plan, statuses: Callable[[], Mapping[str, Status]], *, run_id: str
) -> Callable[[], list[Scraped]]:
    """What to ask at each scrape."""
    names = {port.address: port.node for port, _ in plan.links}
    bounds = {each.name: bound_elements_per_s(plan, each) for each in plan.aggregators}

    def scraped() -> list[Scraped]:
        return [
            Scraped(
                status=status,
                labels={"run": run_id, "aggregator": name},
                names=names,
                bound_elements_per_s=bounds[name],
            )
            for name, status in statuses().items()
        ]

    return scraped


def bound_elements_per_s(plan: Plan, aggregator: AggregatorPlan) -> float | None:
    """What the links between it and what it adds let through in real seconds, by which its counters grow: every chunk
    crosses each of them once each way for each child behind it. None where no link on the way is slower than the
    machine."""
    loads: dict[Hop, float] = defaultdict(float)
    for pair in aggregator.pairs:
        for hop, share in plan.paths[pair].shares.items():
            loads[hop] += float(share)
    rates_bps = [
        each.rate_bps / loads[each.hop] for each in plan.directions if each.hop in loads and not each.requested.unshaped
    ]
    if not rates_bps:
        return None
    collective = aggregator.collective
    return plan.clock.real_bps(min(rates_bps)) / 8 / collective.frame_bytes * collective.num_values
