"""The points of a sweep, one run after another: what has a result is not run again, what goes wrong stops no other.

Records are what is true: which runs a point has is found by reading them. sweep.json says since when runs belong to a
sweep that has not come to its end; it is replaced as a whole before the first run and after every one, so that a sweep
which is killed at any moment goes on where it was.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Container, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from testbed.errors import Interrupted, MissingRequirementError, SpecError
from testbed.experiment.experiment import Experiment
from testbed.experiment.sweep import PointErrors, Sweep, settings_text
from testbed.machine.doctor import plan_here, require
from testbed.machine.fit import expected_error
from testbed.plan.plan import Plan
from testbed.record import number_text
from testbed.record.reader import results_of
from testbed.record.summary import Outcome, Summary
from testbed.report.comparison.comparison import write_comparison
from testbed.report.comparison.page import write_sweep
from testbed.report.comparison.points import ComparedPoint, Comparison, Procedure, unfinished
from testbed.runner.turns import next_turn, num_tries
from testbed.store.documents import origin_here
from testbed.store.reuse import Reuse, unlike
from testbed.theory.predict import predict_run

STANDING: Final[tuple[Outcome, ...]] = ("valid", "degraded")
"""Outcomes of runs whose numbers stand."""
EXIT_FAILED: Final = 1
EXIT_INVALID: Final = 4


def plan_points(sweep: Sweep) -> list[Plan]:
    """The plan of every point. Raises SpecError for all that cannot be right, with the settings that ask it, and
    MissingRequirementError for the first that this machine cannot."""
    plans, errors = [], PointErrors()
    for point in sweep.points:
        try:
            plans.append(plan_here(point.experiment))
        except SpecError as error:
            errors.add(point.settings, error)
        except MissingRequirementError as error:
            raise MissingRequirementError(f"{error}\n[{point.text}]") from None
    errors.raise_if_any()
    return plans


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
    """The sweep with the results of such outcomes that its points have below `output` and that may be reused.

    A sweep that was interrupted goes on: its invalid runs count as tried, and with `reuse` none its results are kept.
    Raises SpecError where sweep.json cannot be read.
    """
    directory = output / f"{sweep.name}-sweep-{sweep.sha256()[:8]}"
    before, here = unfinished(directory), origin_here()
    goes_on = before is not None and (before.reuse == "none") == (reuse == "none")
    since = before.begun_at if before and goes_on else datetime.now(UTC).isoformat(timespec="seconds")
    points, not_reused, expected = [], Counter[str](), expected_error()
    for point, plan in zip(sweep.points, plans, strict=True):
        experiment = point.experiment
        results = results_of(output, name=experiment.name, spec_sha256=experiment.sha256())
        others = {result.record: said for result in results if (said := unlike(Path(result.record), here))}
        alike = [result for result in results if reuse == "any" or result.record not in others]
        own = [result for result in alike if goes_on and result.started_at >= since]
        reused = own if reuse == "none" else alike
        standing = _chosen([result for result in reused if result.outcome in outcomes], sweep.repeat)
        tried = [result for result in own if result.outcome == "invalid"]
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
                predicted=predict_run(plan, expected),
                num_requested=sweep.repeat,
                num_retries=num_retries,
                runs=tuple(runs),
                unlike={run.record: others[run.record] for run in runs if run.record in others},
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
            not_reused=dict(not_reused),
        ),
    )


def _made(result: Summary) -> tuple[str, str]:
    return result.started_at, result.run_id


def _chosen(results: Sequence[Summary], number: int) -> list[Summary]:
    """So many results, valid ones before degraded ones and the newest of each. By their verdicts, never by what they
    measured."""
    return sorted(results, key=lambda result: (result.outcome == "valid", *_made(result)))[-number:]


def run_sweep(
    comparison: Comparison,
    experiments: Sequence[Experiment],
    *,
    run: Callable[[Experiment], Summary],
    console: Console,
    now_s: Callable[[], float] = time.monotonic,
) -> Comparison:
    """Run what is missing of the points, in turns, and write the sweep's numbers after every run and its page at the
    end, also when interrupted.

    `run` raises RunStoppedError for a run that ended early. Raises Interrupted after having said how to go on.
    """
    from testbed.runner.run import RunStoppedError  # see require_points

    for line in reuse_texts(comparison):
        console.print(line, highlight=False, markup=False)
    # From here on every run belongs to this sweep, and is found by its record whatever happens.
    write_comparison(comparison)
    start_s, num_done = now_s(), 0
    try:
        while (position := next_turn(comparison.points, comparison.procedure.order_seed)) is not None:
            missing = sum(point.num_missing for point in comparison.points)
            point = comparison.points[position]
            console.print(_heading(point, num_done, num_done + missing, now_s() - start_s), soft_wrap=True)
            begun_s = now_s()
            try:
                summary = run(experiments[position])
            except RunStoppedError as stopped:
                summary = stopped.summary
                if isinstance(stopped.__cause__, Interrupted):
                    raise stopped.__cause__ from None
            num_done += 1
            comparison = comparison.with_run(position, summary)
            console.print(_line(summary, now_s() - begun_s), no_wrap=True, overflow="ellipsis")
            write_comparison(comparison)
    except Interrupted:
        num_kept = sum(run.outcome in STANDING for point in comparison.points for run in point.counted)
        wanted = sum(point.num_requested for point in comparison.points)
        text = f"{num_kept} of {_runs(wanted)} done and kept; the same command runs the others"
        console.print(text, style="yellow")
        raise
    finally:
        write_sweep(comparison)
    return comparison


def reuse_texts(comparison: Comparison) -> list[str]:
    """Which results a sweep begins with, and which it does not."""
    num_reused = sum(run.outcome in STANDING for point in comparison.points for run in point.runs)
    texts = [f"{_runs(num_reused)} with a result reused (--reuse none makes all again)"] if num_reused else []
    return [
        *texts,
        *(
            f"{number} result{'s' if number != 1 else ''} not reused: {difference} (--reuse any does)"
            for difference, number in comparison.procedure.not_reused.items()
        ),
    ]


def exit_code(comparison: Comparison) -> int:
    """1 if any point failed, else 4 if any is invalid, else 0."""
    if comparison.outcomes & {"failed", "unsupported"}:
        return EXIT_FAILED
    return EXIT_INVALID if "invalid" in comparison.outcomes else 0


def _runs(number: int) -> str:
    return f"{number} run{'s' if number != 1 else ''}"


def _heading(point: ComparedPoint, number: int, total: int, elapsed_s: float) -> Text:
    text = Text.assemble((f"[{number + 1}/{total}] ", "bold cyan"), (settings_text(point.settings), "bold"))
    if tries := num_tries(point):
        text.append(f"   again, since it was invalid ({tries} of at most {point.num_retries})", style="yellow")
    if number:
        left_s = elapsed_s / number * (total - number)
        text.append(f"   about {_duration_text(left_s)} to go", style="dim")
    return text


def _duration_text(duration_s: float) -> str:
    return f"{math.ceil(duration_s)} s" if duration_s < 90 else f"{math.ceil(duration_s / 60)} min"


def _line(summary: Summary, took_s: float) -> Text:
    if summary.outcome not in ("valid", "degraded"):
        return Text.assemble("      ", (summary.outcome, "red"), f"  ({_duration_text(took_s)})  {summary.reasons[0]}")
    numbers = (
        [f"iteration {number_text.time_text(summary.iteration_time_s.median)}"] if summary.iteration_time_s else []
    )
    numbers += [f"all-reduce {number_text.time_text(summary.allreduce.time_s)}"] if summary.allreduce else []
    style = "green" if summary.outcome == "valid" else "yellow"
    return Text.assemble("      ", (summary.outcome, style), f"  ({_duration_text(took_s)})  {', '.join(numbers)}")
