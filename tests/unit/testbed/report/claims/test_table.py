"""Tables of claims: nothing is left out, nothing reconstructed passes for the paper's own words."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from testbed.claims.judge import Judgement, Point, PointValue, State, judge
from testbed.experiment.claims import Claim
from testbed.experiment.papers import Elsewhere, OutOfReach, Paper
from testbed.report.claims.page import write_claims, write_index
from testbed.report.claims.table import QUICK_TEXT, claim_rows, claims_json, claims_latex, claims_markdown
from testbed.report.claims.terminal import render_claims

PAPER = Paper(
    folder=Path("x_2020"),
    title="A Title",
    authors="Nobody",
    venue="NOWHERE 2020",
    url="https://example.org",
    basis="its abstract",
    parts=("a.yaml",),
    elsewhere=(Elsewhere(name="of a log", feature="2a", command="make check-papers"),),
    out_of_reach=(OutOfReach(name="on a GPU", feature="4d", reason="there is none"),),
)


def judgement(name: str = "grows_by 10 %", state: State = "fails") -> Judgement:
    claim = Claim.model_validate(
        {
            "name": name, "feature": "1a", "of": "allreduce.time_s", "model": "2 * W", "unit": "s/worker",
            "take": {"kind": "slope", "over": "W"}, "expect": {"within": "10%"}, "why": "because",
            "paper": {"says": "2 S/B", "evidence": "reconstructed"},
        }
    )  # fmt: skip
    points = (PointValue("workers=2", 2.0, 0.2, 0.21), PointValue("workers=4", 4.0, None, 0.4))
    return Judgement(
        claim=claim,
        state=state,
        measured=0.35,
        model=0.1,
        reason="expected within 10 %",
        points=points,
    )


def test_the_terminal_shows_evidence_and_reasons() -> None:
    text = StringIO()
    render_claims("x", PAPER, [judgement()], Console(file=text, width=160))
    for expected in ("2 S/B [reconstructed]", "350 ms/worker", "100 ms/worker", "fails", "on a GPU: there is none"):
        assert expected in text.getvalue()


def test_markdown_and_latex_have_every_row() -> None:
    markdown, latex = claims_markdown("x", PAPER, [judgement("a|b")]), claims_latex([judgement()], PAPER)
    assert "a\\|b" in markdown
    assert "| 2 S/B [reconstructed] | 100 ms/worker | 350 ms/worker | fails |" in markdown
    assert "- on a GPU: there is none" in markdown
    assert r"grows\_by 10 \% & 2 S/B [reconstructed] & 100 ms/worker & 350 ms/worker & fails \\" in latex


def test_json_says_whether_all_hold() -> None:
    assert claims_json("x", PAPER, [judgement(state="holds"), judgement("b", state="degraded")])["holds"]
    document = json.loads(json.dumps(claims_json("x", None, [judgement(state="holds"), judgement("b", "not judged")])))
    assert not document["holds"]
    assert [claim["state"] for claim in document["claims"]] == ["holds", "not judged"]
    point = {"text": "workers=4", "over": 4.0, "measured": None, "model": 0.4, "reservation": ""}
    assert document["claims"][0]["points"][1] == point


def test_json_of_a_place_that_is_never_reached_is_json(tmp_path: Path) -> None:
    keys = {"name": "knee", "of": "time_s", "why": "because", "expect": {"at_most": 2}}
    claim = Claim.model_validate({**keys, "take": {"kind": "first", "over": "W", "level": 9}})
    points = [Point(settings={}, text="", outcome="valid", numbers={"W": x, "time_s": x}) for x in (1.0, 2.0)]
    write_claims("x", None, [judge(claim, points)], quick=False, folder=tmp_path, sweeps=[], command="again")
    text = (tmp_path / "x.json").read_text()
    (found,) = json.loads(text, parse_constant=pytest.fail)["claims"]
    assert (found["emulated"], found["state"]) == (None, "fails")
    assert "never reached" in found["reason"]
    assert "inf" not in (tmp_path / "x.tex").read_text()


def test_json_has_every_row_of_the_table_and_what_was_not_run_is_not_held_to_hold() -> None:
    left_out = [judgement("large").claim]
    rows = list(claim_rows([judgement()], PAPER, left_out))
    claims = claims_json("x", PAPER, [judgement()], left_out)["claims"]
    assert [(claim["name"], claim["state"]) for claim in claims] == [(row.name, row.state) for row in rows]
    assert [row.state for row in rows] == ["fails", "not with --quick", "elsewhere", "out of reach"]
    assert "large" in claims_markdown("x", PAPER, [judgement()], left_out)


def test_pages_are_written_with_their_figures_and_an_index(tmp_path: Path) -> None:
    page = write_claims(
        "x", PAPER, [judgement()], quick=False, folder=tmp_path, sweeps=[tmp_path / "s-sweep-1"], command="testbed ..."
    )
    text = page.read_text()
    assert 'id="claim-0"' in text
    assert "s-sweep-1/sweep.html" in text
    assert {path.suffix for path in tmp_path.iterdir()} == {".html", ".md", ".tex", ".json", ""}
    index = write_index([("A Title", [judgement()], "x.html")], quick=False, folder=tmp_path).read_text()
    assert '<a href="x.html">A Title</a></td><td>1</td><td>0</td><td>0</td><td>1</td>' in " ".join(
        index.split()
    ).replace("> <", "><")


def test_a_quick_version_says_so_everywhere_and_replaces_nothing(tmp_path: Path) -> None:
    pages = [
        write_claims("x", PAPER, [judgement()], quick=quick, folder=tmp_path, sweeps=[], command="again")
        for quick in (False, True)
    ]
    indices = [
        write_index([("A Title", [judgement()], page.name)], quick=quick, folder=tmp_path)
        for quick, page in zip((False, True), pages, strict=True)
    ]
    assert [path.name for path in (*pages, *indices)] == ["x.html", "x-quick.html", "index.html", "index-quick.html"]
    whole, quick = ({end: (tmp_path / f"{stem}.{end}").read_text() for end in ("html", "md", "tex", "json")}
                    for stem in ("x", "x-quick"))  # fmt: skip
    assert not any("quick:" in text for text in whole.values())
    assert QUICK_TEXT in quick["html"]
    assert QUICK_TEXT in quick["md"]
    assert r"With -{}-quick: " in quick["tex"]
    assert [json.loads(found["json"])["quick"] for found in (whole, quick)] == [False, True]
    assert QUICK_TEXT in indices[1].read_text()
    assert QUICK_TEXT not in indices[0].read_text()
    text = StringIO()
    render_claims("x", PAPER, [judgement()], Console(file=text, width=160), quick=True)
    assert QUICK_TEXT in text.getvalue()
