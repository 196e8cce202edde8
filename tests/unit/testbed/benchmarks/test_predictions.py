"""The list of points: long enough, all of it plannable, none of it used for fitting. What is kept of it."""

from typing import Any

import pytest

from testbed.benchmarks import predictions, training
from testbed.benchmarks.fit import GROUPS
from testbed.benchmarks.predictions import exchange_groups, iteration_rows, iteration_specs, planned, points
from testbed.errors import RunFailedError
from testbed.experiment.experiment import validate
from testbed.machine.fit import ValidatedPoint
from testbed.plan.plan import make_plan
from testbed.record.summary import Outcome, Summary
from transports.bench.stacks import Composed, parse_stack
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES
from transports.collectives.costs import DEFAULT_COSTS
from transports.units import parse_size_bytes


def predicted_s(group: dict[str, Any], stack: str, size_bytes: int) -> float:
    return planned(group, stack, size_bytes, costs=DEFAULT_COSTS).prediction.predicted_s


def test_there_are_eighty_points_and_every_collective_is_among_them() -> None:
    listed = points()
    assert len(listed) + len(iteration_specs()) >= 80
    assert len(set(listed)) == len(listed)
    kinds = {each.stack.partition("/")[0] for each in listed}
    assert kinds == set(COLLECTIVES.kinds()) - {"auto"}
    stacks = [parse_stack(each.stack) for each in listed]
    channels = {stack.channel.kind for stack in stacks if isinstance(stack, Composed)}
    assert channels == set(CHANNELS.kinds()) - {"memory"}
    assert {group["workers"] for group in exchange_groups().values()} >= {2, 3, 4, 8}


def test_no_point_is_one_of_the_fit() -> None:
    used = {(group["workers"], group["link"]) for group in GROUPS.values()}
    assert used.isdisjoint((group["workers"], group["link"]) for group in exchange_groups().values())


def test_every_point_has_a_prediction() -> None:
    for name, group in exchange_groups().items():
        shortest = min(group["sizes"], key=parse_size_bytes)
        for stack in group["stacks"]:
            assert predicted_s(group, stack, parse_size_bytes(shortest)) > 0, (name, stack)
    for spec in iteration_specs().values():
        assert make_plan(validate(spec)).prediction.predicted_s > 0


def test_what_is_odd_about_a_group_changes_its_predictions() -> None:
    groups = exchange_groups()
    even_s, slow_s, trunk_s = (
        predicted_s(groups[name], "ring/tcp", 10_000_000) for name in ("four", "slow_link", "dumbbell")
    )
    assert slow_s > 3.8 * even_s
    assert trunk_s > 1.9 * even_s
    assert planned(groups["dumbbell"], "ring/tcp", 10_000_000, costs=DEFAULT_COSTS).prediction.bottleneck is not None


def test_an_invalid_run_says_nothing_of_predictions(monkeypatch: pytest.MonkeyPatch, summary: Summary) -> None:
    name, spec = next(iter(iteration_specs().items()))
    kept: dict[str, ValidatedPoint] = {}
    errors: list[float] = []
    outcome: Outcome

    def run(_: object) -> Summary:
        return summary.model_copy(update={"outcome": outcome, "reasons": ["other programs had 60 %"]})

    monkeypatch.setattr(training, "run_experiment", lambda spec, **_: run(spec))
    monkeypatch.setattr(predictions, "keep_validation", kept.update)
    outcome = "invalid"
    with pytest.raises(RunFailedError, match="the run is invalid: other programs had 60 %"):
        list(iteration_rows(name, spec, errors))
    assert (kept, errors) == ({}, [])
    outcome = "degraded"
    assert len(list(iteration_rows(name, spec, errors))) == len(kept) == len(errors) == 1
