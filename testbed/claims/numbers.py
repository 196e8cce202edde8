"""The numbers of a point that a claim's formulas may name.

`W` workers, `P` parameter servers, `S` bytes of gradients that an iteration exchanges, `B` payload that a worker's link
carries, in bytes a second (headers and framing taken off), `a` one-way latency between two workers in seconds, as
planned. `sent_bytes` and `received_bytes`: of an average worker's link in an iteration, headers included.
`server_busy`: what a parameter server's link carried while a bucket was in service, of its rate, both directions
together (1: one of them always), the busiest server's.
Beside these every number of the summary by its path: `allreduce.time_s`, `iteration_time_s.median`, `scaling_factor`.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from testbed.experiment.fusion.base import GRADIENT_ELEMENT_BYTES
from testbed.links.htb import goodput_fraction
from testbed.plan.plan import Plan
from testbed.record.summary import Summary

Numbers = Mapping[str, float | None]


def planned_numbers(plan: Plan) -> dict[str, float | None]:
    """What is known before a run."""
    experiment = plan.experiment
    return {
        "W": float(experiment.workers),
        "P": float(plan.world.num_servers),
        "S": float(GRADIENT_ELEMENT_BYTES * sum(experiment.workload.parameter_counts())),
        "B": experiment.link.rate_bps / 8 * goodput_fraction(experiment.mtu),
        "a": plan.latency_s,
    }


def measured_numbers(plan: Plan, runs: Sequence[Summary]) -> dict[str, float | None]:
    """And what its runs found, the median of each; None where no run has it."""
    each = [_of_run(run) for run in runs]
    names = {name for numbers in each for name in numbers}
    found: dict[str, float | None] = planned_numbers(plan)
    for name in names:
        values = [value for numbers in each if (value := numbers.get(name)) is not None]
        found[name] = statistics.median(values) if values else None
    return found


def _of_run(run: Summary) -> dict[str, float | None]:
    found = dict(_flat("", run.model_dump(mode="json", by_alias=True, exclude={"links", "workers"})))
    iterations = max(1, run.num_iterations)
    sent = [link.bytes / iterations for link in run.links if _is_worker(link.from_)]
    received = [link.bytes / iterations for link in run.links if _is_worker(link.to)]
    found["sent_bytes"] = statistics.fmean(sent) if sent else None
    found["received_bytes"] = statistics.fmean(received) if received else None
    busy: dict[str, float] = {}
    for link in run.links:
        for node in (link.from_, link.to):
            if node.startswith("ps") and link.utilization_busy is not None:
                busy[node] = busy.get(node, 0.0) + link.utilization_busy
    found["server_busy"] = max(busy.values(), default=None)
    return found


def _is_worker(node: str) -> bool:
    return node[:1] == "w" and node[1:].isdigit()


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, float | None]]:
    """Numbers by their path; lists are no single number and left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), inner)
    elif isinstance(value, bool):
        return
    elif value is None or isinstance(value, int | float):
        yield prefix, None if value is None else float(value)
