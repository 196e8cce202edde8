"""A spec's claims are judged on what its points found; what is wrong with them is said before anything runs."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment
from testbed.record.summary import Outcome, Quantiles, Summary
from testbed.runner.reproduce import Reproduction, papers_called, prepare
from tests.cheap_runs import CheapRuns

CLAIM: dict[str, Any] = {
    "name": "it is bandwidth that counts",
    "of": "iteration_time_s.median",
    "model": "1e8 / (8 * B)",
    "take": {"kind": "ratio", "of": {"link.rate": "100mbit"}, "to": {"link.rate": "200mbit"}},
    "expect": {"within": "5%"},
    "why": "nothing else differs",
}


RATES = ["100mbit", "200mbit"]
ORDER: dict[str, Any] = {
    "name": "slower links take longer",
    "take": {"kind": "order", "by": "link.rate", "falling": RATES},
    "expect": {"at_least": 1},
}


def spec(folder: Path, *claims: dict[str, Any], **keys: Any) -> Path:
    path = folder / "spec.yaml"
    data = {"name": "x", "workers": 2, "sweep": {"link.rate": RATES}, "claims": list(claims), **keys}
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Callable[[Experiment], Summary]]:
    def runs(
        *, exponent: float = 1.0, outcome: Outcome = "valid", first: Outcome | None = None
    ) -> Callable[[Experiment], Summary]:
        """`first` is what becomes of each point's first try."""
        tried: set[str] = set()

        def outcome_of(experiment: Experiment, _: int) -> Outcome:
            again = experiment.sha256() in tried
            tried.add(experiment.sha256())
            return outcome if again or first is None else first

        made_here = CheapRuns(tmp_path / "records", outcome_of)

        def one(experiment: Experiment) -> Summary:
            time_s = (1e8 / experiment.link.rate_bps) ** exponent
            times = Quantiles(mean=time_s, median=time_s, p10=time_s, p90=time_s)
            return made_here(experiment).model_copy(update={"iteration_time_s": times})

        return one

    return runs


def done(path: Path, run: Callable[[Experiment], Summary], output: Path) -> Reproduction:
    (reproduction,) = prepare(str(path), quick=False, output=output, outcomes=())
    return reproduction.with_part_run(0, run, Console(file=StringIO()))


def test_a_claim_holds_on_runs_that_agree_and_fails_on_a_planted_wrong_one(
    tmp_path: Path, run: Callable[..., Callable[[Experiment], Summary]]
) -> None:
    path = spec(tmp_path, CLAIM)
    right = done(path, run(), tmp_path)
    assert [judgement.state for judgement in right.judgements] == ["holds"]
    assert right.holds
    assert right.judgements[0].measured == pytest.approx(2)
    wrong = done(path, run(exponent=0.5), tmp_path)
    assert [judgement.state for judgement in wrong.judgements] == ["fails"]
    assert not wrong.holds


def test_the_verdict_of_the_runs_bounds_the_claims(
    tmp_path: Path, run: Callable[..., Callable[[Experiment], Summary]]
) -> None:
    path = spec(tmp_path, CLAIM)
    assert [each.state for each in done(path, run(outcome="degraded"), tmp_path).judgements] == ["degraded"]
    assert [each.state for each in done(path, run(outcome="invalid"), tmp_path).judgements] == ["not judged"]


def test_an_invalid_run_is_repeated_before_claims_are_judged(
    tmp_path: Path, run: Callable[..., Callable[[Experiment], Summary]]
) -> None:
    path = spec(tmp_path, CLAIM)
    for num_retries, state in ((0, "not judged"), (1, "holds")):
        output = tmp_path / str(num_retries)
        (reproduction,) = prepare(str(path), quick=False, output=output, outcomes=(), num_retries=num_retries)
        finished = reproduction.with_part_run(0, run(first="invalid"), Console(file=StringIO()))
        assert [each.state for each in finished.judgements] == [state]


def test_a_degraded_run_is_repeated_and_what_it_is_then_counts(
    tmp_path: Path, run: Callable[..., Callable[[Experiment], Summary]]
) -> None:
    path, text = spec(tmp_path, CLAIM), StringIO()
    (reproduction,) = prepare(str(path), quick=False, output=tmp_path / "once", outcomes=("valid",), num_retries=1)
    finished = reproduction.with_part_run(0, run(first="degraded"), Console(file=text, width=120))
    assert [each.state for each in finished.judgements] == ["holds"]
    assert "again, since it was degraded (1 of at most 1)" in text.getvalue()
    points = finished.parts[0].comparison.points
    assert [len(point.repeated) for point in points] == [1, 1]
    assert all(point.usable == point.counted for point in points), "no number is a repeated run's"
    (reproduction,) = prepare(str(path), quick=False, output=tmp_path / "twice", outcomes=("valid",), num_retries=1)
    finished = reproduction.with_part_run(0, run(outcome="degraded"), Console(file=StringIO()))
    assert [each.state for each in finished.judgements] == ["degraded"]


def test_before_it_runs_nothing_is_judged(tmp_path: Path) -> None:
    (reproduction,) = prepare(str(spec(tmp_path, CLAIM)), quick=False, output=tmp_path, outcomes=("valid",))
    assert [(each.state, each.measured) for each in reproduction.judgements] == [("not judged", None)]
    assert not reproduction.holds


def test_quick_changes_what_the_spec_lists(tmp_path: Path) -> None:
    path = spec(tmp_path, CLAIM, quick={"workload.iterations": 3, "workers": 3})
    (full,) = prepare(str(path), quick=False, output=tmp_path, outcomes=())
    (quick,) = prepare(str(path), quick=True, output=tmp_path, outcomes=())
    assert [point.experiment.workers for point in full.parts[0].sweep.points] == [2, 2]
    assert [point.experiment.workers for point in quick.parts[0].sweep.points] == [3, 3]
    assert quick.parts[0].sweep.points[0].experiment.workload.num_iterations() == 3


def test_quick_leaves_out_claims_without_a_point_of_its_own(tmp_path: Path) -> None:
    every = {**CLAIM, "name": "of all", "take": {"kind": "median"}}
    only = {**every, "name": "of one rate", "where": {"link.rate": "200mbit"}}
    path = spec(tmp_path, every, only, quick={"sweep.link.rate": ["100mbit"]})
    (full,) = prepare(str(path), quick=False, output=tmp_path, outcomes=())
    (quick,) = prepare(str(path), quick=True, output=tmp_path, outcomes=())
    assert [each.claim.name for each in full.judgements] == ["of all", "of one rate"]
    assert [each.claim.name for each in quick.judgements] == ["of all"]
    nowhere = spec(tmp_path, {**only, "where": {"link.rate": "300mbit"}}, quick={"sweep.link.rate": ["100mbit"]})
    with pytest.raises(SpecError, match="where: no point has"):
        prepare(str(nowhere), quick=True, output=tmp_path, outcomes=())


def test_quick_leaves_out_claims_without_two_sides_to_compare(tmp_path: Path) -> None:
    path = spec(tmp_path, CLAIM, {**CLAIM, **ORDER}, quick={"sweep.link.rate": ["100mbit"]})
    with pytest.raises(SpecError, match="x: `quick` leaves no point of any claim"):
        prepare(str(path), quick=True, output=tmp_path, outcomes=())
    one = {**CLAIM, "name": "of one rate", "take": {"kind": "median"}, "where": {"link.rate": "100mbit"}}
    path = spec(tmp_path, one, CLAIM, {**CLAIM, **ORDER}, quick={"sweep.link.rate": ["100mbit"]})
    (quick,) = prepare(str(path), quick=True, output=tmp_path, outcomes=())
    assert [each.claim.name for each in quick.judgements] == ["of one rate"]
    assert [claim.name for claim in quick.left_out] == [CLAIM["name"], ORDER["name"]]
    three = {**CLAIM, **ORDER, "take": {**ORDER["take"], "falling": [*RATES, "1gbit"]}}
    keys = {"sweep": {"link.rate": [*RATES, "1gbit"]}, "quick": {"sweep.link.rate": RATES}}
    (quick,) = prepare(str(spec(tmp_path, three, **keys)), quick=True, output=tmp_path, outcomes=())
    assert [each.claim.name for each in quick.judgements] == [ORDER["name"]], "two of three are enough for an order"


@pytest.mark.parametrize(
    ("claims", "keys", "message"),
    [
        ([], {}, "it claims nothing"),
        ([{**CLAIM, "of": "1 +"}], {}, "is no formula"),
        ([{**CLAIM, "where": {"collective": "tree"}}], {}, "where: no point has"),
        ([{**CLAIM, "of": "allreduce.tim_s"}], {}, "allreduce.tim_s: no such number; allreduce.time_s is meant"),
        ([{**CLAIM, "model": "Q * 2"}], {}, "Q: no such number"),
        ([{**CLAIM, "take": {**CLAIM["take"], "to": {"link.rate": "20mbit"}}}], {}, "take: no point has .*20mbit"),
        ([{**CLAIM, **ORDER, "take": {**ORDER["take"], "falling": [*RATES, "1gbt"]}}], {}, "take: no point has .*1gbt"),
        ([{**CLAIM, "expect": {}}], {}, "claims.0.expect"),
        ([CLAIM], {"quick": [1]}, "quick: a mapping"),
    ],
)
def test_what_cannot_be_right_is_said_before_anything_runs(
    tmp_path: Path, claims: list[dict[str, Any]], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        prepare(str(spec(tmp_path, *claims, **keys)), quick=True, output=tmp_path, outcomes=())


def test_papers_have_names() -> None:
    assert "alqahtani_2019" in [paper.name for paper in papers_called("all")]
    assert [paper.name for paper in papers_called("shi_2018")] == ["shi_2018"]
    with pytest.raises(SpecError, match=r"'shi' is no paper .* papers: alqahtani_2019, .*, all"):
        papers_called("shi")


def test_a_folder_of_ones_own_is_a_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec(tmp_path, CLAIM)
    about = {
        "title": "T",
        "authors": "A",
        "venue": "V",
        "url": "https://example.org",
        "basis": "b",
        "parts": ["spec.yaml"],
    }
    (tmp_path / "paper.yaml").write_text(yaml.safe_dump(about))
    assert [paper.title for paper in papers_called(str(tmp_path))] == ["T"]
    monkeypatch.chdir(tmp_path)
    assert [paper.name for paper in papers_called(".")] == [tmp_path.name], "results/claims/.html is no page"
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert [paper.name for paper in papers_called("..")] == [tmp_path.name]
    (tmp_path / "paper.yaml").write_text(yaml.safe_dump({**about, "parts": ["other.yaml"]}))
    with pytest.raises(SpecError, match=r"parts: no such file: other\.yaml"):
        papers_called(str(tmp_path))
    (tmp_path / "paper.yaml").write_text(yaml.safe_dump({**about, "titel": "T"}))
    with pytest.raises(SpecError, match="titel"):
        papers_called(str(tmp_path))
