"""What a sweep begins with: the plan of every point, and the results that it has already.

Records are what is true: which runs a point has is found by reading them. Which of these stand for a run follows from
their verdicts and from where they were made, never from what they measured.
"""

import os
from collections import Counter
from collections.abc import Container, Sequence
from datetime import UTC, datetime
from pathlib import Path

from testbed.errors import MissingRequirementError, SpecError
from testbed.experiment.experiment import Experiment
from testbed.experiment.sweep import PointErrors, Sweep
from testbed.machine.codec_cost import contending_codec_times
from testbed.machine.doctor import Planner, plan_here, require
from testbed.machine.fit import expected_error
from testbed.plan.plan import Plan
from testbed.record.reader import results_of
from testbed.record.summary import STANDING, Outcome, Summary
from testbed.report.comparison.points import ComparedPoint, Comparison, Procedure, unfinished
from testbed.runner.attempts import Attempts, Entry, attempt_texts
from testbed.runner.program import origin_of_plan
from testbed.store.reuse import Reuse, made_otherwise
from testbed.theory.predict import predict_run


def plan_points(sweep: Sweep, plan: Planner = plan_here) -> list[Plan]:
    """The plan of every point. Raises SpecError for all that cannot be right, with the settings that ask it, and
    MissingRequirementError for the first that this machine cannot."""
    plans, errors = [], PointErrors()
    for point in sweep.points:
        try:
            plans.append(plan(point.experiment))
        except SpecError as error:
            errors.add(point.settings, error)
        except MissingRequirementError as error:
            raise MissingRequirementError(f"{error}\n[{point.text}]") from None
    errors.raise_if_any()
    _require_links_to_differ(sweep, plans)
    return plans


def _require_links_to_differ(sweep: Sweep, plans: Sequence[Plan]) -> None:
    """Raises SpecError for values of a link's settings that every link says otherwise, as `links` and documents of
    networks do: points that differ in nothing else would be repetitions, and compared as if they were not."""
    paths = [path for axis in sweep.axes for path in axis.paths if path.partition(".")[0] in ("link", "links")]
    if not paths:
        return
    configurations = [frozenset((each.hop, each.spec) for each in plan.all_configured) for plan in plans]
    for path in paths:
        found: dict[tuple[str, frozenset[object]], object] = {}
        for point, configured in zip(sweep.points, configurations, strict=True):
            others = repr({key: value for key, value in point.settings.items() if key != path})
            value = point.settings.get(path)
            if (same := found.setdefault((others, configured), value)) != value:
                raise SpecError(
                    f"sweep.{path}: {same} and {value} give every link the same settings, since others say them of all "
                    "(`links`, `changes`, the topology): sweep what these say, or take the setting out of them"
                )


def require_points(sweep: Sweep, plans: Sequence[Plan]) -> None:
    """Raises SpecError or MissingRequirementError for what a point needs and cannot have, before the first one runs."""
    from testbed.runner.run import require_iterations  # planning needs nothing of what runs need

    errors = PointErrors()
    for point in sweep.points:
        try:
            require_iterations(point.experiment)
        except SpecError as error:
            errors.add(point.settings, error)
    errors.raise_if_any()
    for point, plan in zip(sweep.points, plans, strict=True):
        try:
            require(plan)
        except MissingRequirementError as error:
            raise MissingRequirementError(f"{error}\n[{point.text}]") from None


def found(
    sweep: Sweep,
    plans: Sequence[Plan],
    *,
    output: Path,
    reuse: Reuse = "same",
    num_retries: int = 0,
    outcomes: Container[Outcome] = STANDING,
) -> Comparison:
    """The sweep with the results of such outcomes that its points have below `output` and that may be reused; runs that
    are only degraded or invalid, and not of such an outcome, are repeated as often as said.

    A sweep that was interrupted goes on: all of its runs that came to their end count, whatever became of them.
    Raises SpecError where sweep.json cannot be read.
    """
    directory = output / f"{sweep.name}-sweep-{sweep.sha256()[:8]}"
    known = Attempts.load(directory)  # first: whoever changes results from here on has changed its numbers
    before, attempts = unfinished(directory), known.entries
    elsewhere = {entry.record: entry for entry in attempts if entry.machine and entry.record}
    goes_on = before is not None and (before.reuse == "none") == (reuse == "none")
    since = before.begun_at if before and goes_on else datetime.now(UTC).isoformat(timespec="seconds")
    points, not_reused, expected = [], Counter[str](), expected_error()
    texts = {point.experiment.sha256(): point.text for point in sweep.points}
    for point, plan in zip(sweep.points, plans, strict=True):
        experiment = point.experiment
        results = results_of(output, name=experiment.name, spec_sha256=experiment.sha256())
        others = _others(results, plan)
        alike = [result for result in results if reuse == "any" or result.record not in others]
        own = _own(alike, [entry for entry in attempts if _is_of(entry, experiment, since)]) if goes_on else []
        reused = own if reuse == "none" else alike
        standing = _chosen([result for result in reused if result.outcome in outcomes], sweep.repeat)
        tried = [result for result in own if result.outcome not in outcomes]
        runs = sorted([*standing, *tried[: sweep.repeat - len(standing) + num_retries]], key=_made)
        if reuse == "same" and len(standing) < sweep.repeat:
            refused = [result for result in results if result.outcome in outcomes and result.record in others]
            not_reused.update(difference for result in refused for difference in others[result.record])
        points.append(
            ComparedPoint(
                settings=point.settings,
                spec_sha256=experiment.sha256(),
                bound_s=plan.prediction.bound_s,
                schedule_bound_s=plan.prediction.schedule_bound_s,
                predicted_s=plan.prediction.predicted_s,
                predicted=predict_run(plan, expected, contending_codec_times(plan, measures=False)),
                num_requested=sweep.repeat,
                num_retries=num_retries,
                accepted=outcomes,
                runs=tuple(runs),
                unlike={run.record: others[run.record] for run in runs if run.record in others},
                machines={
                    run.record: elsewhere[name].machine for run in runs if (name := Path(run.record).name) in elsewhere
                },
            )
        )
    return Comparison(
        name=sweep.name,
        axes=tuple(axis.paths for axis in sweep.axes),
        points=tuple(points),
        directory=directory,
        procedure=Procedure(
            order_seed=sweep.order_seed,
            reuse=reuse,
            begun_at=since,
            last_number=known.last,
            not_reused=dict(not_reused),
            notes=attempt_texts(attempts, texts, since),
        ),
    )


def _others(results: Sequence[Summary], plan: Plan) -> dict[str, tuple[str, ...]]:
    """Those results of the plan's experiment that differ from what would be made here now, by their record: in what."""
    if not results:
        return {}
    here = origin_of_plan(plan)
    if not _decides_as_runs_do():
        here = here._replace(decided={})
    return {result.record: said for result in results if (said := made_otherwise(result, here))}


def _decides_as_runs_do() -> bool:
    """Whether what plans of this process leave to the machine is decided as it is for runs, which need root: what hosts
    cost and what the machine carries is kept for each user, and other users may not try every delay backend."""
    return os.geteuid() == 0


def _is_of(entry: Entry, experiment: Experiment, since: str) -> bool:
    """Whether it is an attempt at the experiment in a sweep that began then."""
    return entry.spec_sha256 == experiment.sha256() and entry.begun_at >= since


def _own(results: Sequence[Summary], entries: Sequence[Entry]) -> list[Summary]:
    """Of an experiment's results, oldest first, those that a sweep's attempts at it have made."""
    accepted = {entry.record for entry in entries if entry.record}
    own = [result for result in results if Path(result.record).name in accepted]
    others = [result for result in results if Path(result.record).name not in accepted]
    # An attempt may have made its run here and been killed before that was noted: then it is the first since it began.
    # One that failed may have been interrupted instead.
    for entry in entries:
        made = [result for result in others if result.started_at >= entry.begun_at and result.outcome != "failed"]
        if made and not entry.machine and entry.end in ("open", "lost"):
            own.append(made[0])
            others = [result for result in others if result is not made[0]]
    return own


def _made(result: Summary) -> tuple[str, str]:
    return result.started_at, result.run_id


def _chosen(results: Sequence[Summary], number: int) -> list[Summary]:
    """So many results, valid ones before degraded ones and the newest of each. By their verdicts, never by what they
    measured."""
    return sorted(results, key=lambda result: (result.outcome == "valid", *_made(result)))[-number:]


def reuse_texts(comparison: Comparison) -> list[str]:
    """Which results a sweep begins with, and which it does not."""
    num_reused = sum(run.stands for point in comparison.points for run in point.runs)
    texts = [f"{runs_text(num_reused)} with a result reused (--reuse none makes all again)"] if num_reused else []
    if num_reused and comparison.procedure.reuse == "same" and not _decides_as_runs_do():
        texts.append(
            "of these only root can tell whether what the spec leaves to this machine would be decided alike now"
        )
    return [
        *texts,
        *(
            f"{number} result{'s' if number != 1 else ''} not reused: {difference} (--reuse any does)"
            for difference, number in comparison.procedure.not_reused.items()
        ),
    ]


def runs_text(number: int) -> str:
    """`1 run`, `3 runs`."""
    return f"{number} run{'s' if number != 1 else ''}"
