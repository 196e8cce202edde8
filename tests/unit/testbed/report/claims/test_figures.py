"""Figures of claims: what is emulated, modelled and the paper's is told apart."""

from dataclasses import replace
from typing import Any

from testbed.claims.judge import Judgement, PointValue
from testbed.experiment.claims import Claim
from testbed.report.claims.figures import claim_figure, joint_figure


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
    assert [(series["name"], series["mode"]) for series in figure["data"]] == [
        ("A, model", "lines"), ("A, emulated", "markers"), ("A, paper: measured [figure]", "markers"),
        ("B, model", "lines"), ("B, emulated", "markers"),
    ]  # fmt: skip
    model, emulated, paper, *others = figure["data"]
    assert (emulated["x"], emulated["y"], model["y"]) == ([1.0, 100.0], [0.08, 0.98], [0.1, 0.99])
    assert "symbol" not in emulated["marker"]
    assert paper["marker"]["symbol"] == "diamond-open"
    assert {series["marker"]["color"] for series in others if "marker" in series} != {emulated["marker"]["color"]}
    assert figure["layout"]["xaxis"]["type"] == "log"
    assert joint_figure([compared("A")]) is None


def test_shares_are_drawn_in_percent_where_the_axis_says_so() -> None:
    judgement = compared("A")
    in_percent = replace(judgement, claim=judgement.claim.model_copy(update={"unit": "%"}))
    figure = claim_figure(in_percent)
    assert figure is not None
    assert figure["data"][-1]["y"] == [8.0, 98.0]
    assert figure["layout"]["yaxis"]["title"]["text"] == "scaling_factor, %"
