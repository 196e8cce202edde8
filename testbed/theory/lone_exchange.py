"""What an exchange by itself takes where it is timed again and again, as `testbed bench` and the workload `allreduce`
do. Pure."""

from collections.abc import Sequence
from math import ceil, inf, log2
from typing import Final

from testbed.plan.plan import Plan
from testbed.plan.prediction import exchanged_alone, plan_links
from transports.bench.procedure import LASTING_S, appointment_s
from transports.collectives.base import Operation
from transports.collectives.timing import IDLE_S, Exchanged, Links, exchanged
from transports.compression.base import Exchange

NUM_TURNS: Final = 3
"""After which windows are what they are after many."""
_TIME_BYTES: Final = 8
"""Of the time that rank 0 chooses."""


def lone_exchange_s(plan: Plan, others: Sequence[Plan] = (), begins_s: Sequence[float] = ()) -> float:
    """Of a plan with one exchange, which takes turns with those of other plans. A turn is one that is not timed, unless
    they last for seconds, and one that is, each between barriers and perhaps after an appointment. It finds the windows
    that the one before it has left, halved where a connection has been idle for too long: while others have their
    turns all are. The time is the slowest worker's own, where workers begin then; empty: all at once."""
    [exchange] = plan.exchanges
    all_reduce = exchange.operation, exchange.num_elements, exchange.element_bytes
    links = plan_links(plan.directions, plan.paths, plan.participants, experiment=plan.experiment, costs=plan.costs)
    predicted_s = plan.prediction.predicted_s + _apart_s(plan, exchange, links, begins_s)
    if exchange.link_bytes(plan.collective) is not None:
        return predicted_s
    appointed_s = appointment_s(plan.experiment.workers, plan.network_info.latency_s)

    def after(
        found: Exchanged,
        operation: Operation,
        num_elements: int,
        element_bytes: int,
        quiet_s: float,
        begins_s: Sequence[float] = (),
    ) -> Exchanged:
        return exchanged(
            plan.collective,
            operation,
            plan.world,
            num_elements,
            element_bytes,
            links,
            plan.costs,
            begins_s=[*begins_s, *[0.0] * (plan.world.size - len(begins_s))],
            quiet_s=quiet_s,
            connections=found.connections,
        )

    def once(found: Exchanged, quiet_s: float) -> tuple[float, Exchanged]:
        found, quiet_s = after(found, "barrier", 1, 1, quiet_s), 0.0
        if appointed_s is not None:
            found = after(found, "broadcast", 1, _TIME_BYTES, quiet_s)
            quiet_s = max(0.0, appointed_s - found.end_s)
        done = after(found, *all_reduce, quiet_s, begins_s)
        return done.slowest_s(begins_s), after(done, "barrier", 1, 1, 0.0)

    taken_s, found, quiet_s = 0.0, Exchanged([], frozenset()), inf
    for _ in range(NUM_TURNS):
        for _ in range(1 if taken_s > LASTING_S else 2):
            taken_s, found = once(found, quiet_s)
            quiet_s = 0.0
            if not found.connections:
                return predicted_s
        quiet_s = sum(map(_turn_s, others))
    return max(predicted_s, taken_s)


def _apart_s(plan: Plan, exchange: Exchange, links: Links, begins_s: Sequence[float]) -> float:
    """How much longer the slowest worker has where they begin then than where all begin at once."""

    def slowest_s(begins_s: Sequence[float]) -> float:
        found = exchanged_alone(
            plan.collective,
            plan.world,
            exchange,
            links,
            plan.costs,
            latency_s=plan.prediction.latency_s,
            rate_bps=plan.prediction.aggregation_bps,
            quiet_s=IDLE_S,
            begins_s=begins_s,
        )
        return found.slowest_s(begins_s)

    return slowest_s(begins_s) - slowest_s(()) if begins_s else 0.0


def _turn_s(plan: Plan) -> float:
    """How long others wait for it, nearly."""
    workers, latency_s = plan.experiment.workers, plan.network_info.latency_s
    around_s = 2 * ceil(log2(workers)) * latency_s + (appointment_s(workers, latency_s) or 0.0)
    return (plan.prediction.predicted_s + around_s) * (1 if plan.prediction.predicted_s > LASTING_S else 2)
