"""What a run's page of metrics says of its aggregating switches. Pure, but for asking them."""

from collections.abc import Callable, Mapping

from switch_agg.metrics import Scraped
from switch_agg.status import Status
from testbed.plan.aggregators import AggregatorPlan
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
    """What the slowest link between it and what it adds lets through in real seconds, by which its counters grow: every
    chunk crosses it once each way. None where no link on the way is slower than the machine."""
    names = {port.address: port.node for port, _ in plan.links}
    pairs = [pair for address in aggregator.workers for pair in _both(names[address], aggregator.name)]
    hops = {hop for pair in pairs for hop in plan.paths[pair].shares}
    rates_bps = [each.rate_bps for each in plan.directions if each.hop in hops and not each.requested.unshaped]
    if not rates_bps:
        return None
    collective = aggregator.collective
    return plan.clock.real_bps(min(rates_bps)) / 8 / collective.frame_bytes * collective.num_values


def _both(first: str, second: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return (first, second), (second, first)
