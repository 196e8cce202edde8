"""The spec's timeout, against what lasts longer than it though everybody does what the spec says. Pure."""

from testbed.experiment.experiment import Experiment
from testbed.plan.plan import Plan
from transports.units import format_time


def out_of_time(plan: Plan) -> list[str]:
    """Why a run would end with a worker or a peer that only seems lost: each with its key, the reason and the fix.

    Computing that lasts as long as it takes is not known in advance, and random slowdowns are not looked at.
    """
    timeout_s = plan.experiment.timeout_s
    limit = f"timeout: {format_time(timeout_s)}"
    found = []
    if (compute_s := _compute_s(plan.experiment)) >= timeout_s:
        found.append(
            f"{limit} is how long a worker may say nothing, and computing an iteration takes {format_time(compute_s)}; "
            "allowed: more than that"
        )
    graph = plan.experiment.workload.graph()
    if graph is not None and (wait_s := round(graph.longest_wait_s(), 3)) >= timeout_s:
        found.append(
            f"{limit} is how long an exchange may take, and in the trace a rank waits {format_time(wait_s)} in one for "
            "the computing of others; allowed: more than that"
        )
    size_bytes, least_s = _largest_exchange(plan)
    if least_s >= timeout_s:
        found.append(
            f"{limit} is how long an exchange may take, and the {size_bytes:,} bytes of the largest need at least "
            f"{format_time(least_s)} on these links; allowed: more than that, or smaller buckets (fusion)"
        )
    return found


def _compute_s(experiment: Experiment) -> float:
    """Of an iteration, where the spec or its trace says it; else 0."""
    graph, table = experiment.workload.graph(), experiment.workload.timed_layers()
    if graph is not None:
        return round(graph.longest_compute_s(), 3)
    return 0.0 if table is None else round(table.compute_s, 3)


def _largest_exchange(plan: Plan) -> tuple[int, float]:
    """Its bytes, and the least time for them."""
    sizes_bytes = [exchange.payload_bytes(plan.experiment.workers) for exchange in plan.exchanges]
    if not any(sizes_bytes):
        return 0, 0.0
    # Switches and servers can do it sooner than workers among themselves.
    all_s = min(plan.prediction.bound_s, plan.prediction.schedule_bound_s)
    return max(sizes_bytes), round(all_s * max(sizes_bytes) / sum(sizes_bytes), 3)
