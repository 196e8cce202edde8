"""What an exchange by itself takes where it is timed again and again, as `testbed bench` and the workload `allreduce`
do. Pure."""

from collections.abc import Sequence
from math import ceil, inf, log2
from typing import Final

from testbed.plan.plan import Plan
from testbed.plan.prediction import plan_links
from transports.bench.procedure import LASTING_S, appointment_s
from transports.collectives.base import Operation
from transports.collectives.timing import Exchanged, exchanged

NUM_TURNS: Final = 3
"""After which windows are what they are after many."""
_TIME_BYTES: Final = 8
"""Of the time that rank 0 chooses."""


def lone_exchange_s(plan: Plan, others: Sequence[Plan] = ()) -> float:
    """Of a plan with one exchange, which takes turns with those of other plans. A turn is one that is not timed, unless
    they last for seconds, and one that is, each between barriers and perhaps after an appointment. It finds the windows
    that the one before it has left, halved where a connection has been idle for too long: while others have their
    turns all are."""
    [exchange] = plan.exchanges
    all_reduce = exchange.operation, exchange.num_elements, exchange.element_bytes
    predicted_s = plan.prediction.predicted_s
    if exchange.link_bytes(plan.collective) is not None:
        return predicted_s
    links = plan_links(plan.directions, plan.paths, plan.participants, experiment=plan.experiment, costs=plan.costs)
    begins_s = appointment_s(plan.experiment.workers, plan.network_info.latency_s)

    def after(
        found: Exchanged, operation: Operation, num_elements: int, element_bytes: int, quiet_s: float
    ) -> Exchanged:
        return exchanged(
            plan.collective,
            operation,
            plan.world,
            num_elements,
            element_bytes,
            links,
            plan.costs,
            quiet_s=quiet_s,
            connections=found.connections,
        )

    def once(found: Exchanged, quiet_s: float) -> tuple[float, Exchanged]:
        found, quiet_s = after(found, "barrier", 1, 1, quiet_s), 0.0
        if begins_s is not None:
            found = after(found, "broadcast", 1, _TIME_BYTES, quiet_s)
            quiet_s = max(0.0, begins_s - found.end_s)
        done = after(found, *all_reduce, quiet_s)
        return done.end_s, after(done, "barrier", 1, 1, 0.0)

    taken_s, found, quiet_s = 0.0, Exchanged([], frozenset()), inf
    for _ in range(NUM_TURNS):
        for _ in range(1 if taken_s > LASTING_S else 2):
            taken_s, found = once(found, quiet_s)
            quiet_s = 0.0
            if not found.connections:
                return predicted_s
        quiet_s = sum(map(_turn_s, others))
    return max(predicted_s, taken_s)


def _turn_s(plan: Plan) -> float:
    """How long others wait for it, nearly."""
    workers, latency_s = plan.experiment.workers, plan.network_info.latency_s
    around_s = 2 * ceil(log2(workers)) * latency_s + (appointment_s(workers, latency_s) or 0.0)
    return (plan.prediction.predicted_s + around_s) * (1 if plan.prediction.predicted_s > LASTING_S else 2)
