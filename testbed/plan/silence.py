"""The spec's timeout, against what lasts longer than it though everybody does what the spec says. Pure."""

from collections.abc import Sequence

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment
from testbed.plan.prediction import Prediction
from transports.compression.base import Exchange
from transports.units import format_time


def silence_incompatibilities(experiment: Experiment) -> list[str]:
    """Why a worker that does what the spec says would be taken for lost: the key, the reason and the fix.

    Computing that lasts as long as it takes is not known in advance, and random slowdowns are not looked at.
    """
    compute_s = round(_compute_s(experiment), 6)
    if compute_s < experiment.timeout_s:
        return []
    limit, computing = format_time(experiment.timeout_s), format_time(compute_s)
    silence = f"timeout: in {limit} a worker that says nothing is taken for lost, and computing an iteration takes"
    return [f"{silence} {computing}; allowed: more than that"]


def require_in_time(experiment: Experiment, exchanges: Sequence[Exchange], prediction: Prediction) -> None:
    """Raises SpecError where the largest exchange of an iteration cannot be done within the timeout, which is that of
    each operation: the run would end with a peer that seems lost."""
    sizes_bytes = [exchange.payload_bytes(experiment.workers) for exchange in exchanges]
    if not sum(sizes_bytes):
        return
    least_s = min(prediction.bound_s, prediction.schedule_bound_s) * max(sizes_bytes) / sum(sizes_bytes)
    if least_s >= experiment.timeout_s:
        raise SpecError(
            f"timeout: {format_time(experiment.timeout_s)} is over before the largest exchange can be: its "
            f"{max(sizes_bytes):,} bytes take at least {format_time(round(least_s, 3))} on these links; allowed: more "
            "than that, or buckets that are smaller (fusion)"
        )


def _compute_s(experiment: Experiment) -> float:
    """Of an iteration, where the spec or its trace says it; else 0."""
    graph, table = experiment.workload.graph(), experiment.workload.timed_layers()
    if graph is not None:
        return max(graph.compute_s(rank) for rank in range(graph.num_ranks))
    return 0.0 if table is None else table.compute_s
