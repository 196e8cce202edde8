"""What an exchange by itself takes where it is timed again and again, as `testbed bench` and the workload `allreduce`
do. Pure."""

from math import inf

from testbed.plan.plan import Plan
from testbed.plan.prediction import plan_links
from transports.bench.procedure import LASTING_S, appointment_s
from transports.collectives.base import Operation
from transports.collectives.timing import Connections, Exchanged, exchanged

_TIME_BYTES = 8
"""Of the time that rank 0 chooses."""


def lone_exchange_s(plan: Plan) -> float:
    """Of a plan with one exchange: after other stacks have had their turns, which connections do not remember, comes
    one that is not timed, then barriers, and perhaps an appointment; then the one that is timed. What it finds are the
    windows that the first one has left, halved where a connection has been idle for too long."""
    [exchange] = plan.exchanges
    asked = exchange.operation, exchange.num_elements, exchange.element_bytes
    predicted_s = plan.prediction.predicted_s
    if plan.collective.link_bytes(*asked) is not None:
        return predicted_s
    links = plan_links(plan.directions, plan.paths, plan.participants, experiment=plan.experiment, costs=plan.costs)

    def timed(
        operation: Operation, num_elements: int, element_bytes: int, quiet_s: float, connections: Connections | None
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
            connections=connections,
        )

    found = timed(*asked, inf, None)
    if not found.connections:
        return predicted_s
    if found.end_s > LASTING_S:
        return max(predicted_s, found.end_s)
    for _ in range(2):
        found = timed("barrier", 1, 1, 0.0, found.connections)
    begins_s = appointment_s(plan.experiment.workers, plan.network_info.latency_s)
    quiet_s = 0.0
    if begins_s is not None:
        found = timed("broadcast", 1, _TIME_BYTES, 0.0, found.connections)
        quiet_s = max(0.0, begins_s - found.end_s)
    return max(predicted_s, timed(*asked, quiet_s, found.connections).end_s)
