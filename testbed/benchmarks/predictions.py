"""What predictions are held to: exchanges and iterations measured on emulated links, beside the cost model's times.

The points are a list, `predictions.yaml`; the model's parameters are those that `testbed fit` found here, from links
and sizes of its own (`fit.py`).
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from testbed.benchmarks.allreduce import allreduce_rows
from testbed.benchmarks.targets import Benchmarks, Row, degraded_runs, quietly, target_row
from testbed.benchmarks.training import EVEN_LAYERS, trained
from testbed.experiment.documents import read_document
from testbed.experiment.experiment import validate
from testbed.experiment.link import parse_link
from testbed.machine.doctor import plan_here
from testbed.machine.fit import ValidatedPoint, expected_error, keep_validation, known_costs
from testbed.plan.plan import Plan, make_plan
from testbed.theory.lone_exchange import lone_exchange_s
from testbed.theory.predict import predict_run
from testbed.theory.reach import Reach
from transports.bench.stacks import Composed, parse_stack
from transports.channels.base import CHANNELS
from transports.collectives.auto import Auto
from transports.collectives.base import COLLECTIVES
from transports.collectives.costs import Costs

POINTS: Final = Path(__file__).with_name("predictions.yaml")
MAX_ERROR: Final = 0.12
MAX_MEAN_ERROR: Final = 0.04
MAX_AUTO_LOSS: Final = 0.05
REPEAT: Final = 9
REPEAT_SHORT: Final = 27
"""Of exchanges of up to 256 KiB: which of two messages comes first decides what some of them take."""


class Point(NamedTuple):
    """One exchange to be measured."""

    group: str
    stack: str
    size: str


def exchange_groups() -> dict[str, dict[str, Any]]:
    """The groups of exchanges on the list, by name."""
    return dict(_list()["exchanges"])


def iteration_specs() -> dict[str, dict[str, Any]]:
    """Whole runs of the list, by name."""
    return {
        name: {"name": f"predict-{name}".replace("_", "-"), **EVEN_LAYERS, **spec}
        for name, spec in _list()["iterations"].items()
    }


def _list() -> dict[str, Any]:
    document = read_document(POINTS)
    assert isinstance(document, dict), "the list is ours"
    return document


def points() -> list[Point]:
    """Every exchange, one by one."""
    return [
        Point(name, stack, size)
        for name, group in exchange_groups().items()
        for stack in group["stacks"]
        for size in group["sizes"]
    ]


def planned(group: Mapping[str, Any], stack: str, size_bytes: int, *, costs: Costs) -> Plan:
    """The plan of one exchange of a group: a gradient of that size, all at once."""
    parsed = parse_stack(stack)
    assert isinstance(parsed, Composed), "the list has no baseline libraries"
    keys = {key: value for key, value in group.items() if key not in ("stacks", "sizes", "link")}
    spec = {
        "name": "prediction",
        **keys,
        "link": parse_link(group["link"]),
        "collective": COLLECTIVES.dump(parsed.collective),
        "channel": CHANNELS.dump(parsed.channel),
        "workload": {"kind": "synthetic", "layers": [f"{size_bytes}B"]},
        "fusion": "none",
    }
    return make_plan(validate(spec), costs=costs)


def group_rows(name: str, group: Mapping[str, Any], errors: list[float]) -> Iterator[Row]:
    """Each point of a group, and what `auto` loses there."""
    keys = {key: value for key, value in group.items() if key not in ("stacks", "sizes", "link", "workers")}
    rows, cores = quietly(
        lambda: allreduce_rows(
            num_workers=group["workers"],
            link=parse_link(group["link"]),
            sizes=group["sizes"],
            stacks=group["stacks"],
            repeat=REPEAT,
            options={"repeat_short": REPEAT_SHORT},
            congestion="cubic",
            **keys,
        )
    )
    costs = known_costs()
    measured_s: dict[tuple[str, int], float] = {}
    for row in rows:
        at = row["stack"], row["size_bytes"]
        measured_s[at] = row["time_s"]["median"]
        plan, *others = (
            planned(group, stack, row["size_bytes"], costs=costs)
            for stack in (row["stack"], *(each for each in group["stacks"] if each != row["stack"]))
        )
        said_s = median(lone_exchange_s(plan, others, begins_s) for begins_s in row["begins_s"])
        error = said_s / measured_s[at] - 1
        errors.append(abs(error))
        keep_validation({f"{name}: {at[0]} of {at[1]}": ValidatedPoint(error, Reach.of(plan))})
        facts = {
            "predicted_s": said_s,
            "measured_s": measured_s[at],
            "error": error,
            "begins_s": row["begins_s"][0],
            "fitted_at": costs.fitted_at,
        }
        yield target_row(f"{name}: {at[0]} of {at[1]:,} B, error", abs(error), MAX_ERROR, {**cores, **facts})
    yield from _auto_rows(name, group, measured_s, costs)


def _auto_rows(
    name: str, group: Mapping[str, Any], measured_s: Mapping[tuple[str, int], float], costs: Costs
) -> Iterator[Row]:
    """By how much what `auto` takes is slower than the best of its candidates, where all of them were measured."""
    for size_bytes in dict.fromkeys(size_bytes for _, size_bytes in measured_s):
        of_kind = {
            kind: measured_s[f"{kind}/tcp", size_bytes]
            for kind in Auto().candidates
            if (f"{kind}/tcp", size_bytes) in measured_s
        }
        if len(of_kind) < len(Auto().candidates):
            continue
        plan = planned(group, "auto/tcp", size_bytes, costs=costs)
        chosen = plan.chosen[0].kind
        loss = of_kind[chosen] / min(of_kind.values()) - 1
        facts = {"chosen": chosen, "measured_s": of_kind}
        yield target_row(f"{name}: auto of {size_bytes:,} B, slower than the best", loss, MAX_AUTO_LOSS, facts)


def iteration_rows(name: str, spec: Mapping[str, Any], errors: list[float]) -> Iterator[Row]:
    """One run beside the prediction of its iteration. Raises RunFailedError where its numbers do not stand: later
    predictions would expect to be off by what disturbed it."""
    plan = plan_here(validate(dict(spec)))
    predicted = predict_run(plan, expected_error())
    assert predicted is not None, "every run on the list exchanges gradients"
    assert predicted.iteration_time_s is not None, "computing on the list takes a configured time"
    summary, cores = quietly(lambda: trained(spec))
    assert summary.iteration_time_s is not None, "trained() has looked"
    error = predicted.iteration_time_s / summary.iteration_time_s.mean - 1
    errors.append(abs(error))
    keep_validation({f"{name}: iteration": ValidatedPoint(error, Reach.of(plan))})
    facts = {
        "predicted_s": predicted.iteration_time_s,
        "measured_s": summary.iteration_time_s.mean,
        "error": error,
        "outcome": summary.outcome,
        **degraded_runs({"the run": (summary.outcome, summary.reasons)}),
    }
    yield target_row(f"{name}: iteration, error", abs(error), MAX_ERROR, {**cores, **facts})


def benchmarks() -> Benchmarks:
    """By the name of each group and run; `mean` at the end is over those that were measured before it."""
    errors: list[float] = []

    def mean_rows() -> Iterator[Row]:
        if errors:
            facts = {"num_points": len(errors)}
            yield target_row("mean error of all points measured", fmean(errors), MAX_MEAN_ERROR, facts)
            yield target_row("worst error of all points measured", max(errors), MAX_ERROR, facts)

    found: dict[str, Callable[[], Iterator[Row]]] = {
        name: partial(group_rows, name, group, errors) for name, group in exchange_groups().items()
    }
    found |= {name: partial(iteration_rows, name, spec, errors) for name, spec in iteration_specs().items()}
    return {**found, "mean": mean_rows}
