"""Shipped papers: every claim can hold and can fail, and none says what nobody knows."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from testbed.claims.formulas import evaluate, names_in
from testbed.claims.judge import Point, State, judge
from testbed.claims.numbers import measured_numbers, planned_numbers
from testbed.experiment.claims import Claim, matches
from testbed.experiment.experiment import Experiment
from testbed.experiment.papers import Paper, shipped_papers
from testbed.experiment.sweep import Sweep, load_sweep
from testbed.measure.observations import Barrier
from testbed.plan.plan import Plan, make_plan
from testbed.record.reader import Record
from testbed.record.summary import PredictionSummary

PAPERS = shipped_papers()
SPECS = [(paper, path) for paper in PAPERS for path in paper.specs]


@pytest.fixture(scope="module", params=SPECS, ids=lambda spec: f"{spec[0].name}/{spec[1].stem}")
def spec(request: pytest.FixtureRequest) -> tuple[Paper, Path]:
    return request.param


class Planned(NamedTuple):
    plan: Plan
    numbers: Mapping[str, float | None]


PLANS: dict[str, Planned] = {}
"""By the hash of the spec: a plan of a large model takes half a second, and quick versions have the same points; its
numbers, the what-if among them, are needed thousands of times."""


def planned_once(experiment: Experiment) -> Planned:
    key = experiment.sha256()
    if key not in PLANS:
        plan = make_plan(experiment, chosen_dilation=(60.0, "as some machine"))
        PLANS[key] = Planned(plan, planned_numbers(plan))
    return PLANS[key]


def planned(sweep: Sweep) -> list[Planned]:
    return [planned_once(point.experiment) for point in sweep.points]


def planted(claim: Claim, sweep: Sweep, plans: Sequence[Planned], values: Sequence[float]) -> State:
    """The verdict when what the claim looks at has these values."""
    looks_at = claim.model_copy(update={"of": "planted"})
    points = [
        Point(
            settings=point.settings,
            text=point.text,
            outcome="valid",
            numbers={**numbers_of(plan, claim, number), "planted": value},
        )
        for number, (point, plan, value) in enumerate(zip(sweep.points, plans, values, strict=True))
    ]
    return judge(looks_at, points).state


def numbers_of(planned: Planned, claim: Claim, number: int) -> dict[str, float | None]:
    """Planned ones, one of everything measured that the claim's model needs (computing and all-reduces as planned), and
    what grows from point to point of what its axis does."""
    table = planned.plan.experiment.workload.timed_layers()
    modelled = names_in(claim.model) if claim.model else frozenset[str]()
    axis = frozenset[str]().union(*(names_in(each) for each in claim.take.formulas()))
    return {
        **dict.fromkeys(modelled, 1.0),
        **dict.fromkeys(axis - modelled, 1.0 + number),
        **planned.numbers,
        "allreduce.predicted_s": planned.plan.prediction.predicted_s,
        "compute_only_time_s": table.compute_s if table else 1.0,
    }


def candidates(claim: Claim, sweep: Sweep, plans: Sequence[Planned]) -> Iterator[list[float]]:
    """Values to plant: what the model says, the same distorted, numbers of all sizes around what is expected."""
    draw = random.Random(claim.name)
    if claim.model:
        right = [
            evaluate(claim.model, numbers_of(plan, claim, number)) if matches(point.settings, claim.where) else 1.0
            for number, (point, plan) in enumerate(zip(sweep.points, plans, strict=True))
        ]
        yield right
        yield [3 * value for value in right]
    level = claim.expect.at_least if claim.expect.at_least is not None else claim.expect.at_most or 1.0
    for over in (each.plan.experiment.workers for each in plans[:1]):
        yield [float(over + each.plan.experiment.workers) for each in plans]
    for _ in range(4000):
        yield [abs(level) * 10 ** draw.uniform(-1.2, 1.2) for _ in plans]
        near = abs(level) * 10 ** draw.uniform(-0.05, 0.05)
        yield [near * 10 ** draw.uniform(-0.02, 0.02) for _ in plans]


@pytest.mark.parametrize("quick", [False, True])
def test_every_claim_can_hold_and_can_fail(spec: tuple[Paper, Path], quick: bool) -> None:
    sweep = load_sweep(spec[1], quick=quick)
    plans = planned(sweep)
    for claim in sweep.claims:
        wanted = {"holds", "fails"}
        for values in candidates(claim, sweep, plans):
            state = planted(claim, sweep, plans, values)
            # A place that one of both reached before the first point is not judged, which does not hold either.
            wanted.discard("fails" if claim.take.in_units_of_over and state == "not judged" else state)
            if not wanted:
                break
        assert not wanted, f"{claim.name}: never {wanted}"


def test_formulas_name_numbers_that_a_run_has(spec: tuple[Paper, Path], record: Callable[..., Record]) -> None:
    met = ("started", "compute_only_done", "warmup", "measure", "done")
    barriers = {name: Barrier(at_s, at_s) for at_s, name in enumerate(met, 1)}
    predicted = PredictionSummary(
        iteration_time_s=1.0,
        missing=None,
        iteration_error=0.1,
        allreduce_error=0.1,
        expected_error=None,
        expected_error_source=None,
        num_points=0,
        outside=[],
        fitted_at=None,
    )
    summary = record(launched_s=0.0, barriers=barriers).summary.model_copy(update={"prediction": predicted})
    sweep = load_sweep(spec[1])
    known = set(measured_numbers(planned_once(sweep.points[0].experiment).plan, [summary]))
    for claim in sweep.claims:
        named = set().union(*(names_in(each) for each in (claim.of, claim.model, *claim.take.formulas()) if each))
        assert named <= known, f"{claim.name}: {named - known}"


def test_every_claim_says_what_the_paper_says_and_how_that_is_known(spec: tuple[Paper, Path]) -> None:
    for claim in load_sweep(spec[1]).claims:
        assert claim.feature
        assert claim.paper is not None


def test_papers_have_names_and_quick_versions_have_no_more_points() -> None:
    assert len({paper.name for paper in PAPERS}) == len(PAPERS) > 0
    for _, path in SPECS:
        assert len(load_sweep(path, quick=True).points) <= len(load_sweep(path).points)


def test_every_feature_has_a_row() -> None:
    claimed = {claim.feature for _, path in SPECS for claim in load_sweep(path).claims}
    elsewhere = {each.feature for paper in PAPERS for each in (*paper.elsewhere, *paper.out_of_reach)}
    counts = {"0": "abc", "1": "abcde", "2": "abcde", "3": "abcdef", "4": "abcde", "5": "abcdef", "6": "a"}
    assert claimed | elsewhere == {f"{paper}{letter}" for paper, letters in counts.items() for letter in letters}


def test_claims_that_quick_leaves_no_point_of_are_left_out_and_known(spec: tuple[Paper, Path]) -> None:
    whole, quick = load_sweep(spec[1]), load_sweep(spec[1], quick=True)
    assert {claim.name for claim in (*quick.claims, *quick.left_out)} == {claim.name for claim in whole.claims}
    assert not whole.left_out
    assert not any(claim.missing([point.settings for point in whole.points]) for claim in whole.claims)


@pytest.mark.parametrize("quick", [False, True])
def test_a_knee_before_the_first_point_does_not_hold(quick: bool) -> None:
    (path,) = (path for _, path in SPECS if path.stem == "knee")
    sweep = load_sweep(path, quick=quick)
    plans = planned(sweep)
    assert planted(sweep.claims[0], sweep, plans, [5.0] * len(plans)) == "fails", "however long before"


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("compression", "no compression gains"),
        ("batch", "efficiency does not fall"),
        ("transports", "unfused is not faster"),
    ],
)
def test_one_wrong_point_is_enough_where_a_claim_is_of_all(part: str, named: str) -> None:
    """Each in turn, half as much again or half as much."""
    (path,) = (path for paper, path in SPECS if path.stem == part and (part != "transports" or "awan" in paper.name))
    sweep = load_sweep(path)
    plans = planned(sweep)
    claims = [claim for claim in sweep.claims if named in claim.name]
    assert claims
    all_right = [1.0] * len(plans)
    for number, point in enumerate(sweep.points):
        found = {
            planted(claim, sweep, plans, [*all_right[:number], wrong, *all_right[number + 1 :]])
            for claim in claims
            for wrong in (0.5, 1.5)
        }
        assert ("fails" in found) == any(matches(point.settings, claim.where) for claim in claims), point.text
    assert {planted(claim, sweep, plans, all_right) for claim in claims} == {"holds"}


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("bandwidth", "at 100 Gbit/s ResNet-50 uses what full use does"),
        ("bandwidth", "while a bucket is under way"),
        ("architectures", "server's link is busy"),
        ("architectures", "with shards"),
        ("ring", "the ring takes"),
        ("latency", "of the ring's rounds"),
        ("reading", "every second is in one of the stages"),
    ],
)
def test_one_wrong_point_on_either_side_is_enough(part: str, named: str) -> None:
    (path,) = (path for _, path in SPECS if path.stem == part)
    sweep = load_sweep(path)
    plans = planned(sweep)
    (claim,) = (claim for claim in sweep.claims if named in claim.name)
    all_right = [
        evaluate(claim.model, numbers_of(plan, claim, number)) if claim.model else 1.0
        for number, plan in enumerate(plans)
    ]
    assert planted(claim, sweep, plans, all_right) == "holds"
    for number, point in enumerate(sweep.points):
        for factor in (0.3, 3):
            values = [*all_right[:number], factor * all_right[number], *all_right[number + 1 :]]
            state = "fails" if matches(point.settings, claim.where) else "holds"
            assert planted(claim, sweep, plans, values) == state, point.text


def test_a_loss_that_is_far_lower_is_not_said_to_be_within_anything() -> None:
    (path,) = (path for _, path in SPECS if path.stem == "accuracy")
    sweep = load_sweep(path)
    (claim,) = sweep.claims
    assert planted(claim, sweep, planned(sweep), [1.0, 0.605]) == "holds"
    assert "at most" in claim.name
    assert "within" not in claim.name


def test_quick_asks_the_same_question_where_a_claim_names_a_size() -> None:
    (path,) = (path for _, path in SPECS if path.stem == "latency")
    whole, quick = (load_sweep(path, quick=quick).points[0].experiment.workload for quick in (False, True))
    assert whole.model_dump()["layers"] == quick.model_dump()["layers"]
