"""The numbers of a point that a claim's formulas may name.

`W` workers, `P` parameter servers, `S` bytes of gradients that an iteration exchanges, `B` payload that a worker's link
carries, in bytes a second (headers and framing taken off), `a` one-way latency between two workers in virtual seconds,
as planned; the hosts' part is that of the run, whose dilation makes hosts faster.
`sent_bytes` and `received_bytes`: of an average worker's link in an iteration, headers included.
`read_s`: what the storage node's disk, or the most loaded link behind it, needs for all that workers read before the
first iteration.
`R` rate of a worker's link in bit/s, headers included (like `B` and what rests on it not there where workers' links
differ); `c` bytes of gradients over those that compression leaves of
them, as planned. `what_if.scaling_factor`: of the same trace and compression if the links were fully used
(`testbed/theory/what_if.py`), and
`what_if.link_share` the part of a worker's link that carries gradients then, in the mean over an iteration; there where
computing is replayed or paced, and workers exchange gradients with each other.
`link_share`, `link_busy_share`: of workers' links, sending, over iterations and while buckets are under way.
`server_busy`: what a parameter server's link carried while a bucket was in service, of its rate, both directions
together (1: one of them always), the busiest server's.
Beside these every number of the summary by its path: `allreduce.time_s`, `iteration_time_s.median`, `scaling_factor`.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from testbed.experiment.fusion.base import GRADIENT_ELEMENT_BYTES
from testbed.links.htb import goodput_fraction
from testbed.plan.bounds import fully_used_s, worker_ends
from testbed.plan.plan import Plan
from testbed.record.summary import Summary
from testbed.theory.what_if import what_if

Numbers = Mapping[str, float | None]
PLANNED: Final = ("W", "P", "S", "B", "a", "read_s", "R", "c", "what_if.scaling_factor", "what_if.link_share")
OF_LINKS: Final = ("sent_bytes", "received_bytes", "link_share", "link_busy_share", "server_busy")
_NOT_NAMED: Final = frozenset(("links", "workers"))
"""Of the summary: lists of what OF_LINKS are made of."""


def require_names(names: Iterable[str]) -> None:
    """Raises ValueError for a number that no run has, with the one that may be meant."""
    known = (*PLANNED, *OF_LINKS, *_summary_names())
    for name in names:
        if name not in known and f"{name.rpartition('.')[0]}.*" not in known:
            close = get_close_matches(name, known, n=1)
            meant = f"{close[0]} is meant" if close else f"allowed: {', '.join((*PLANNED, *OF_LINKS))}, summary.json's"
            raise ValueError(f"{name}: no such number; {meant}")


@cache
def _summary_names() -> tuple[str, ...]:
    """Paths of the summary's numbers; `overhead_s.*` where its keys are the run's."""
    schema = Summary.model_json_schema(by_alias=True, mode="serialization")

    def paths(each: Mapping[str, Any], path: str) -> Iterator[str]:
        if "$ref" in each:
            each = schema["$defs"][each["$ref"].rpartition("/")[2]]
        for one in each.get("anyOf", ()):
            yield from paths(one, path)
        for key, inner in each.get("properties", {}).items():
            yield from paths(inner, f"{path}.{key}" if path else key)
        if isinstance(each.get("additionalProperties"), Mapping):
            yield from paths(each["additionalProperties"], f"{path}.*")
        if each.get("type") in ("number", "integer"):
            yield path

    return tuple(paths(schema, ""))


def planned_numbers(plan: Plan) -> dict[str, float | None]:
    """What is known before a run."""
    experiment = plan.experiment
    rate_bps = _link_rate_bps(plan)
    return {
        "W": float(experiment.workers),
        "P": float(plan.world.num_servers),
        "S": float(GRADIENT_ELEMENT_BYTES * sum(experiment.workload.parameter_counts())),
        "B": None if rate_bps is None else rate_bps / 8 * goodput_fraction(experiment.mtu),
        "a": plan.propagation_s + plan.costs.host_latency_s,
        "read_s": 0.0 if plan.storage is None else plan.storage.start.least_s,
        "R": rate_bps,
        "c": _compression_ratio(plan),
        **_fully_used(plan),
    }


def _link_rate_bps(plan: Plan) -> float | None:
    """Of every worker's link, or of every host's where workers share hosts; None where they differ."""
    own = [each for each in plan.directions if any(map(_is_worker, each.hop))]
    if plan.experiment.workers_per_host.count > 1:
        hosts = {node for each in own for node in each.hop}
        own = [each for each in plan.directions if each not in own and not hosts.isdisjoint(each.hop)]
    rates_bps = {each.requested.rate_bps for each in own}
    return rates_bps.pop() if len(rates_bps) == 1 else None


def _compression_ratio(plan: Plan) -> float:
    """1 where nothing is exchanged."""
    payload_bytes = plan.prediction.payload_bytes
    return plan.prediction.gradient_bytes / payload_bytes if payload_bytes else 1.0


def _fully_used(plan: Plan) -> dict[str, float | None]:
    """What the what-if says, with its own buckets (5 ms, 64 MiB), each a share, by its bytes, of what the plan's
    exchanges of gradients need; adding and compressing cost nothing in it. None where gradients are pushed and pulled.
    """
    experiment = plan.experiment
    table = experiment.workload.timed_layers()
    rate_bps = _link_rate_bps(plan)
    exchanges = [each for each in plan.exchanges if each.of_gradients]
    if table is None or not table.compute_s or experiment.workers < 2 or rate_bps is None or not exchanges:
        return {"what_if.scaling_factor": None, "what_if.link_share": None}
    ends = worker_ends(plan.directions, experiment.workers, 1.0)  # headers left out
    all_s = sum(fully_used_s(each, plan.collective, ends) for each in exchanges)
    found = what_if(table, lambda size_bytes: all_s * size_bytes / table.size_bytes)
    return {"what_if.scaling_factor": found.scaling_factor, "what_if.link_share": all_s / found.iteration_s}


def measured_numbers(plan: Plan, runs: Sequence[Summary]) -> dict[str, float | None]:
    """And what its runs found, the median of each; None where any of them lacks it: those that have a number, because
    their cores were less busy, would be chosen by what was measured."""
    each = [_of_run(run) for run in runs]
    names = {name for numbers in each for name in numbers}
    found: dict[str, float | None] = planned_numbers(plan)
    for name in names:
        known = [value for numbers in each if (value := numbers.get(name)) is not None]
        found[name] = statistics.median(known) if known and len(known) == len(each) else None
    return found


def _of_run(run: Summary) -> dict[str, float | None]:
    found = dict(_flat("", run.model_dump(mode="json", by_alias=True, exclude=set(_NOT_NAMED))))
    iterations = max(1, run.num_iterations)
    sent = [link.bytes / iterations for link in run.links if _is_worker(link.from_)]
    received = [link.bytes / iterations for link in run.links if _is_worker(link.to)]
    found["sent_bytes"] = statistics.fmean(sent) if sent else None
    found["received_bytes"] = statistics.fmean(received) if received else None
    own = [link for link in run.links if _is_worker(link.from_)]
    found["link_share"] = _mean(link.utilization_mean for link in own)
    found["link_busy_share"] = _mean(link.utilization_busy for link in own)
    busy: dict[str, float] = {}
    for link in run.links:
        for node in (link.from_, link.to):
            if node.startswith("ps") and link.utilization_busy is not None:
                busy[node] = busy.get(node, 0.0) + link.utilization_busy
    found["server_busy"] = max(busy.values(), default=None)
    return found


def _mean(shares: Iterable[float | None]) -> float | None:
    """Of those that there are."""
    known = [share for share in shares if share is not None]
    return statistics.fmean(known) if known else None


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
