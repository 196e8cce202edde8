"""The points of a sweep, one run after another: what has a valid result is skipped, what goes wrong stops no other."""

import math
import time
from collections.abc import Callable, Container, Sequence
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
from testbed.report.comparison.page import write_sweep
from testbed.report.comparison.points import ComparedPoint, Comparison
from testbed.run.run import RunStoppedError, require_iterations
from testbed.theory.predict import predict_run

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
    sweep: Sweep, plans: Sequence[Plan], *, output: Path, force: bool = False, outcomes: Container[Outcome] = ("valid",)
) -> Comparison:
    """The sweep with the newest results of such outcomes that its points have below `output`; none with `force`."""
    points, expected = [], expected_error()
    for point, plan in zip(sweep.points, plans, strict=True):
        experiment = point.experiment
        results = [] if force else results_of(output, name=experiment.name, spec_sha256=experiment.sha256())
        standing = [summary for summary in results if summary.outcome in outcomes]
        points.append(
            ComparedPoint(
                settings=point.settings,
                spec_sha256=experiment.sha256(),
                bound_s=plan.prediction.bound_s,
                schedule_bound_s=plan.prediction.schedule_bound_s,
                predicted_s=plan.prediction.predicted_s,
                predicted=predict_run(plan, expected),
                num_requested=sweep.repeat,
                runs=tuple(standing[-sweep.repeat :]),
            )
        )
    directory = output / f"{sweep.name}-sweep-{sweep.sha256()[:8]}"
    return Comparison(
        name=sweep.name, axes=tuple(axis.paths for axis in sweep.axes), points=tuple(points), directory=directory
    )


def run_sweep(
    comparison: Comparison,
    experiments: Sequence[Experiment],
    *,
    run: Callable[[Experiment], Summary],
    console: Console,
    now_s: Callable[[], float] = time.monotonic,
) -> Comparison:
    """Run what is missing of the points, one run after another, and write the sweep's directory, also when interrupted.

    `run` raises RunStoppedError for a run that ended early. Raises Interrupted after having said how to go on.
    """
    missing = [
        position
        for position, point in enumerate(comparison.points)
        for _ in range(point.num_requested - len(point.runs))
    ]
    num_skipped = sum(len(point.runs) for point in comparison.points)
    if num_skipped:
        console.print(f"{_runs(num_skipped)} with a valid result skipped (--force repeats them)", highlight=False)
    start_s = now_s()
    try:
        for number, position in enumerate(missing):
            point = comparison.points[position]
            console.print(_heading(point, number, len(missing), now_s() - start_s), soft_wrap=True)
            begun_s = now_s()
            try:
                summary = run(experiments[position])
            except RunStoppedError as stopped:
                summary = stopped.summary
                if isinstance(stopped.__cause__, Interrupted):
                    raise stopped.__cause__ from None
            comparison = comparison.with_run(position, summary)
            console.print(_line(summary, now_s() - begun_s), no_wrap=True, overflow="ellipsis")
    except Interrupted:
        num_valid = sum(run.outcome == "valid" for point in comparison.points for run in point.runs)
        wanted = sum(point.num_requested for point in comparison.points)
        text = f"{num_valid} of {_runs(wanted)} valid and kept; the same command runs the others"
        console.print(text, style="yellow")
        raise
    finally:
        write_sweep(comparison)
    return comparison


def exit_code(comparison: Comparison) -> int:
    """1 if any point failed, else 4 if any is invalid, else 0."""
    if comparison.outcomes & {"failed", "unsupported"}:
        return EXIT_FAILED
    return EXIT_INVALID if "invalid" in comparison.outcomes else 0


def _runs(number: int) -> str:
    return f"{number} run{'s' if number != 1 else ''}"


def _heading(point: ComparedPoint, number: int, total: int, elapsed_s: float) -> Text:
    text = Text.assemble((f"[{number + 1}/{total}] ", "bold cyan"), (settings_text(point.settings), "bold"))
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
