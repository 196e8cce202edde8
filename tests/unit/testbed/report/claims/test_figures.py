"""Figures of claims: what is emulated, modelled and the paper's is told apart."""

from dataclasses import replace
from typing import Any

import pytest

from testbed.claims.judge import Judgement, PointValue
from testbed.experiment.claims import Claim
from testbed.report.claims.figures import claim_figure, joint_figure
from testbed.report.figures import Line, Marks


def compared(name: str, **paper: Any) -> Judgement:
    """Two points of a claim about a scaling factor."""
    claim = Claim.model_validate(
        {
            "name": name, "of": "scaling_factor", "model": "what_if.scaling_factor", "why": "because",
            "take": {"kind": "farthest", "over": "R / 1e9"}, "expect": {"difference": 0.05},
            "paper": {"says": "72 %", "evidence": "figure", **paper},
        }
    )  # fmt: skip
    points = (PointValue("100", 100.0, 0.98, 0.99), PointValue("1", 1.0, 0.08, 0.1))
    return Judgement(claim=claim, state="holds", measured=0.98, model=0.99, reason="", points=points)


def test_claims_over_one_axis_are_drawn_together_and_their_kinds_never_alike() -> None:
    figure = joint_figure([compared("A: x", points=[[10, 0.475]], points_are="measured"), compared("B: x")])
    assert figure is not None
    assert [(series.name, type(series)) for series in figure.series] == [
        ("A, model", Line), ("A, emulated", Marks), ("A, paper: measured [figure]", Marks),
        ("B, model", Line), ("B, emulated", Marks),
    ]  # fmt: skip
    model, emulated, paper, *others = figure.series
    assert isinstance(model, Line)
    assert isinstance(emulated, Marks)
    assert isinstance(paper, Marks)
    assert (emulated.x, emulated.y, model.y) == ([1.0, 100.0], [0.08, 0.98], [0.1, 0.99])
    assert (model.dash, emulated.hollow, paper.hollow, paper.shape) == ("dash", False, True, "diamond")
    assert {series.color for series in others} != {emulated.color}
    assert figure.x.log
    assert joint_figure([compared("A")]) is None


def test_shares_are_drawn_in_percent_where_the_axis_says_so() -> None:
    judgement = compared("A")
    in_percent = replace(judgement, claim=judgement.claim.model_copy(update={"unit": "%"}))
    figure = claim_figure(in_percent)
    assert figure is not None
    emulated = figure.series[-1]
    assert isinstance(emulated, Marks)
    assert emulated.y == [8.0, 98.0]
    assert emulated.hover[0].splitlines()[1:] == ["emulated 8 %", "model 10 %"]
    assert figure.y.title == "scaling factor, %"


def test_where_the_number_is_a_place_its_unit_is_not_that_of_the_points() -> None:
    """And points of two curves at the same places are not joined by one line."""
    judgement = compared("A")
    claim = judgement.claim.model_dump(mode="json") | {
        "take": {"kind": "crossing", "over": "R / 1e9", "of": {"collective": "a"}, "to": {"collective": "b"}},
        "unit": "log2 B",
    }
    points = tuple(PointValue(text, 10.0, value, value) for text, value in (("a", 0.1), ("b", 0.2)))
    figure = claim_figure(replace(judgement, claim=Claim.model_validate(claim), points=points))
    assert figure is not None
    assert figure.y.title == "scaling factor"
    assert [type(series) for series in figure.series] == [Marks, Marks]


def test_of_two_groups_the_one_with_points_of_the_paper_is_drawn_however_small() -> None:
    read = compared("A: x", points=[[10, 0.475]], points_are="measured")
    another = [compared(name) for name in ("C: x", "D: x", "E: x")]
    over_ratio = [
        replace(each, claim=each.claim.model_copy(update={"take": each.claim.take.model_copy(update={"over": "c"})}))
        for each in another
    ]
    figure = joint_figure([*over_ratio, read, compared("B: x")])
    assert figure is not None
    assert [series.name for series in figure.series if isinstance(series, Marks) and series.hollow] == [
        "A, paper: measured [figure]"
    ]
    largest = joint_figure([*over_ratio, read])
    assert largest is not None
    assert (largest.x.title, figure.x.title) == ("compression ratio", "rate of a link, Gbit/s")


def test_a_claim_s_own_figure_has_the_points_of_the_paper_in_its_unit() -> None:
    judgement = compared("A", points=[[10, 0.475]], points_are="measured")
    figure = claim_figure(replace(judgement, claim=judgement.claim.model_copy(update={"unit": "%"})))
    assert figure is not None
    paper = figure.series[-1]
    assert isinstance(paper, Marks)
    assert (paper.name, paper.x, paper.y, paper.hollow) == ("paper: measured [figure]", [10.0], [47.5], True)


def test_claims_whose_place_is_nowhere_are_drawn_together_as_well() -> None:
    nowhere = [replace(compared(name), measured=None) for name in ("A", "B")]
    assert joint_figure(nowhere) is not None
    unknown = tuple(point._replace(measured=None) for point in nowhere[0].points)
    assert joint_figure([replace(each, points=unknown) for each in nowhere]) is None


def test_points_of_two_curves_are_not_joined_side_by_side() -> None:
    """Four and eight workers at each rate: a line would go from one to the other and back."""
    points = tuple(
        PointValue(f"{rate:g} gbit, {workers} workers", rate, 0.1 * workers, 0.11 * workers)
        for rate in (1.0, 10.0)
        for workers in (4, 8)
    )
    figure = joint_figure([replace(compared("A"), points=points), compared("B")])
    assert figure is not None
    model, emulated, other, _ = figure.series
    assert isinstance(model, Marks)
    assert (model.shape, len(model.y), type(other)) == ("stroke", 4, Line)
    assert isinstance(emulated, Marks)
    assert emulated.hover[1] == "A, emulated\n1 gbit, 8 workers\n0.8"


def test_only_seconds_are_drawn_in_milliseconds() -> None:
    for unit, scale in (("s", 1e3), ("samples/s", 1.0), ("steps", 1.0)):
        judgement = compared("any")
        figure = claim_figure(replace(judgement, claim=judgement.claim.model_copy(update={"unit": unit})))
        assert figure is not None
        emulated = figure.series[-1]
        assert isinstance(emulated, Marks)
        assert emulated.y == [0.08 * scale, 0.98 * scale]


def test_claims_that_begin_alike_have_their_whole_names() -> None:
    figure = joint_figure([compared("A: x"), compared("A: y")])
    assert figure is not None
    assert [series.name for series in figure.series] == [
        "A: x, model", "A: x, emulated", "A: y, model", "A: y, emulated",
    ]  # fmt: skip


def test_a_point_that_stands_with_a_reservation_is_hollow_and_says_why() -> None:
    points = (PointValue("100", 100.0, 0.98, 0.99), PointValue("1", 1.0, 0.08, 0.1, "degraded"))
    figure = claim_figure(replace(compared("A"), points=points))
    assert figure is not None
    emulated = next(each for each in figure.series if each.name == "emulated")
    assert isinstance(emulated, Marks)
    assert list(zip(emulated.x, emulated.hollow_each, strict=True)) == [(1.0, True), (100.0, False)]
    assert emulated.hover[0].splitlines()[1].endswith("(degraded)")
    colors = {
        state: _color(replace(compared("A"), state=state)) for state in ("holds", "degraded", "not judged", "fails")
    }
    assert colors["holds"] == colors["degraded"] == emulated.color
    assert len(set(colors.values())) == 3


def _color(judged: Judgement) -> str:
    figure = claim_figure(judged)
    assert figure is not None
    return next(each.color for each in figure.series if each.name == "emulated")


@pytest.mark.parametrize(("kind", "unit"), [("slope", "s/worker"), ("linearity", "")])
def test_points_are_drawn_in_their_own_unit_whatever_that_of_the_number(kind: str, unit: str) -> None:
    """A slope is in s/worker and a ratio has no unit, but each point of theirs is a time."""
    number = {"of": "allreduce.time_s", "take": {"kind": kind, "over": "W"}, "unit": unit}
    claim = Claim.model_validate(compared("A").claim.model_dump(mode="json") | number)
    figure = claim_figure(replace(compared("A"), claim=claim))
    assert figure is not None
    assert (figure.y.title, figure.x.title, figure.x.whole) == ("time of an all-reduce, ms", "workers", True)
    emulated = figure.series[-1]
    assert isinstance(emulated, Marks)
    assert emulated.y == [80.0, 980.0]
