"""What papers claim, run and judged: each part's sweep, one after another, and its claims on what was found."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from testbed.claims import judge as claims
from testbed.claims.formulas import names_in
from testbed.claims.numbers import measured_numbers, require_names
from testbed.errors import SpecError
from testbed.experiment.claims import Claim
from testbed.experiment.experiment import Experiment
from testbed.experiment.papers import FILE, Paper, load_paper, shipped_papers
from testbed.experiment.sweep import Sweep, load_sweep
from testbed.machine.doctor import Planner, plan_here
from testbed.plan.plan import Plan
from testbed.record.summary import Outcome, Summary
from testbed.report.comparison.points import Comparison
from testbed.runner.sweep import run_sweep
from testbed.runner.sweep_points import found, plan_points, require_points
from testbed.store.reuse import Reuse

ALL = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A spec with claims, planned, with the results that it has."""

    path: Path
    sweep: Sweep
    plans: Sequence[Plan]
    comparison: Comparison

    @property
    def judgements(self) -> list[claims.Judgement]:
        """The judgements of the part's claims, on what its points have found so far."""
        points = [
            claims.Point(
                settings=point.settings,
                text=point.text,
                outcome=compared.outcome,
                numbers=measured_numbers(plan, compared.usable),
                unlike=tuple(dict.fromkeys(each for unlike in compared.unlike.values() for each in unlike)),
            )
            for point, compared, plan in zip(self.sweep.points, self.comparison.points, self.plans, strict=True)
        ]
        return [claims.judge(claim, points) for claim in self.sweep.claims]

    def run(self, run: Callable[[Experiment], Summary], console: Console) -> "Part":
        """The part with its points' missing runs done. Raises Interrupted. Pictures for papers are of its claims."""
        comparison = run_sweep(self.comparison, self.plans, run=run, console=console, pictures=False)
        return replace(self, comparison=comparison)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduction:
    """A paper's parts, or a spec with claims that is nobody's."""

    name: str
    paper: Paper | None
    parts: Sequence[Part]

    @property
    def judgements(self) -> list[claims.Judgement]:
        """The judgements of all claims, part by part."""
        return [judgement for part in self.parts for judgement in part.judgements]

    @property
    def left_out(self) -> list[Claim]:
        """Claims of which `--quick` runs no point, or none to compare."""
        return [claim for part in self.parts for claim in part.sweep.left_out]

    def with_part_run(self, number: int, run: Callable[[Experiment], Summary], console: Console) -> "Reproduction":
        """The reproduction with one part's missing runs done. Raises Interrupted."""
        parts = [part.run(run, console) if index == number else part for index, part in enumerate(self.parts)]
        return replace(self, parts=parts)

    @property
    def holds(self) -> bool:
        """Whether every claim within reach does."""
        return all(judgement.holds for judgement in self.judgements)

    def require_claims(self) -> None:
        """Raises SpecError where nothing would be judged, so that nobody takes that for an answer."""
        if not any(part.sweep.claims for part in self.parts):
            raise SpecError(f"{self.name}: `quick` leaves no point of any claim; leave --quick out, or more points in")


def papers_called(name: str) -> list[Paper]:
    """`all`, one of the shipped papers, or the folder of one. Raises SpecError."""
    if (Path(name) / FILE).is_file():
        return [load_paper(Path(name))]
    papers = shipped_papers()
    chosen = [paper for paper in papers if name in (ALL, paper.name)]
    if not chosen:
        known = ", ".join([*(paper.name for paper in papers), ALL])
        raise SpecError(f"{name!r} is no paper and no file of a spec with `claims`; papers: {known}")
    return chosen


def prepare(
    name: str,
    *,
    quick: bool,
    output: Path,
    reuse: Reuse = "same",
    outcomes: Container[Outcome],
    num_retries: int = 0,
    plan: Planner = plan_here,
) -> list[Reproduction]:
    """Everything planned and results of such outcomes that may be reused found below `output`, before anything runs;
    when it does, so many runs of a point are repeated, if they are of no such outcome.

    `name` is a spec's path, a paper's folder or name, or `all`. Raises SpecError, MissingRequirementError.
    """

    def part(path: Path) -> Part:
        sweep = load_sweep(path, quick=quick)
        whole = load_sweep(path) if quick else sweep
        if not whole.claims:
            raise SpecError(f"{path}: it claims nothing; write `claims`, or use `testbed sweep`")
        _require_meaning(path, whole)
        plans = plan_points(sweep, plan)
        comparison = found(sweep, plans, output=output, reuse=reuse, outcomes=outcomes, num_retries=num_retries)
        return Part(path=path, sweep=sweep, plans=plans, comparison=comparison)

    if Path(name).is_file():
        parts = [part(Path(name))]
        reproductions = [Reproduction(name=parts[0].sweep.name, paper=None, parts=parts)]
    else:
        reproductions = [
            Reproduction(name=paper.name, paper=paper, parts=[part(path) for path in paper.specs])
            for paper in papers_called(name)
        ]
    for reproduction in reproductions:
        reproduction.require_claims()
    return reproductions


def require(reproductions: Sequence[Reproduction]) -> None:
    """Raises SpecError or MissingRequirementError for what any point needs and cannot have, before the first runs."""
    for reproduction in reproductions:
        for part in reproduction.parts:
            require_points(part.sweep, part.plans)


def _require_meaning(path: Path, sweep: Sweep) -> None:
    """A claim without points, or with a formula that is none or names what no run has, is wrong before anything
    runs."""
    points = [point.settings for point in sweep.points]
    for claim in sweep.claims:
        try:
            for formula in (claim.of, claim.model, *claim.take.formulas()):
                if formula is not None:
                    require_names(names_in(formula))
        except ValueError as error:
            raise SpecError(f"{path}: claims: {claim.name}: {error}") from None
        if missing := claim.missing(points):
            field = "where" if missing == [claim.where] else "take"
            raise SpecError(f"{path}: claims: {claim.name}: {field}: no point has {dict(missing[0])}")
