"""run, sweep, load, results, compare, predict: what the commands of the same names do, as functions.

They return objects, raise testbed.errors and print nothing unless `quiet` is False. What runs an experiment needs
extras of the package, and is imported by `run` and `sweep` alone.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from rich.console import Console

from testbed.api.progress import Heard, OnProgress
from testbed.api.runs import Results, Run
from testbed.api.specs import Overrides, Spec, experiment_of, sweep_of_spec
from testbed.api.sweeps import Differences, SweepResult
from testbed.calibration.cache import Mode
from testbed.errors import ResultWarning, RunFailedError, SpecError
from testbed.experiment.experiment import Experiment
from testbed.machine.codec_cost import contending_codec_times
from testbed.machine.doctor import plan_in_theory, plan_to_run, require_packages
from testbed.machine.fit import expected_error
from testbed.record.summary import Summary
from testbed.report.terminal.summary import LiveProgress
from testbed.store.compare import compare as compare_records
from testbed.store.compare import records_of
from testbed.store.index import Index
from testbed.store.metrics import Metric
from testbed.store.reuse import Reuse
from testbed.system.interruptions import interruptible
from testbed.system.sources import code_digest
from testbed.theory.predict import IterationPrediction, predict_iteration

Calibrate = Literal["class", "full", "cached"]
"""See `--calibrate` of `testbed run`."""
_RECORDS = "results"

code_digest()  # of what has been imported by now: a notebook may be open for days, and its runs are compared with that


def run(
    spec: Spec,
    overrides: Overrides = (),
    *,
    output: str | Path = _RECORDS,
    calibrate: Calibrate = "class",
    capture: Sequence[str] = (),
    on_progress: OnProgress | None = None,
    quiet: bool = True,
) -> Run:
    """Run a spec: deploy its network, measure every link, train over it, and judge. Needs root.

    The record goes to a new directory below `output`; packets of the links named in `capture` (`w1-s0`) into it.
    `on_progress` hears what the run is doing; what it raises ends the run and is raised. Unless `quiet`, progress is
    printed to standard error.

    A run that is degraded or invalid is returned with a ResultWarning. Raises SpecError and MissingRequirementError
    before anything is made, and CalibrationError, MissingRequirementError or RunFailedError for a run that ended
    early; a note of the error says where the record of it is. Whatever is raised, KeyboardInterrupt too, everything
    that the run made has been removed before.
    """
    experiment = experiment_of(spec, overrides)
    require_packages()
    from testbed.runner.run import RunStoppedError

    run_one = _runner(_console(quiet), on_progress, output=output, calibrate=calibrate, capture=capture)
    with interruptible():
        try:
            summary = run_one(experiment)
        except RunStoppedError as stopped:
            raise _noted(stopped.__cause__ or stopped, stopped.summary) from None
    made = Run(summary.record)
    if made.outcome == "failed":
        raise _noted(RunFailedError("; ".join(made.reasons)), summary)
    if made.outcome != "valid":
        warnings.warn(repr(made), ResultWarning, stacklevel=2)
    return made


def sweep(
    spec: Spec,
    overrides: Overrides = (),
    *,
    output: str | Path = _RECORDS,
    calibrate: Calibrate = "class",
    reuse: Reuse = "same",
    retries: int = 1,
    on_progress: OnProgress | None = None,
    quiet: bool = True,
) -> SweepResult:
    """Run every combination of what a spec lists under `sweep`, and compare. Needs root.

    Points that have a result below `output` are not run again, unless `reuse` says otherwise, so that a sweep that was
    interrupted goes on with the same call. Invalid runs are repeated `retries` times at most for each point; one that
    fails stops no other. A sweep with points that are not valid is returned with a ResultWarning. Raises what
    :func:`run` raises before anything is made.
    """
    if not 0 <= retries <= 100:
        raise SpecError(f"retries: a whole number, 0 to 100 (got {retries!r})")
    if reuse not in get_args(Reuse):
        raise SpecError(f"reuse: {reuse!r} is none of {', '.join(get_args(Reuse))}")
    swept = sweep_of_spec(spec, overrides)
    require_packages()
    from testbed.runner.sweep import run_sweep
    from testbed.runner.sweep_points import found, plan_points, require_points

    console = _console(quiet)
    output = Path(output).absolute()  # a notebook may be somewhere else when it looks at the runs
    plans = plan_points(swept, partial(plan_to_run, say=console.print))
    comparison = found(swept, plans, output=output, reuse=reuse, num_retries=retries)
    require_points(swept, plans)
    run_one = _runner(console, on_progress, output=output, calibrate=calibrate)
    with interruptible():
        comparison = run_sweep(comparison, plans, run=run_one, console=console)
    result = SweepResult(comparison)
    if result.outcomes != {"valid"}:
        warnings.warn("\n".join([repr(result), *result.reasons]), ResultWarning, stacklevel=2)
    return result


def _console(quiet: bool) -> Console:
    """Plain lines on standard error, in a notebook too, where rich would show each as an output of its own."""
    return Console(stderr=True, quiet=quiet, force_jupyter=False)


def _runner(
    console: Console,
    on_progress: OnProgress | None,
    *,
    output: str | Path,
    calibrate: Calibrate,
    capture: Sequence[str] = (),
) -> Callable[[Experiment], Summary]:
    """Runs one experiment. What `on_progress` has raised is raised as it is."""
    if calibrate not in tuple(Mode):
        raise SpecError(f"calibrate: {calibrate!r} is none of {', '.join(Mode)}")
    from testbed.runner.run import CaptureRequest, RunStoppedError, run_experiment

    def run_one(experiment: Experiment) -> Summary:
        progress = LiveProgress(console, enabled=not console.quiet)
        heard = Heard(on_progress, progress)
        try:
            return run_experiment(
                experiment,
                output=Path(output),
                progress=heard,
                capture=CaptureRequest(links=list(capture)),
                calibration_mode=Mode(calibrate),
            )
        except (RunStoppedError, RunFailedError):
            if heard.error is not None:
                raise heard.error from None
            raise
        finally:
            progress.close()

    return run_one


def _noted(error: BaseException, summary: Summary) -> BaseException:
    """The error, with a note of where the run's record is."""
    error.add_note(f"what the run had until then: {Path(summary.record).absolute()}")
    return error


def load(record: str | Path) -> Run:
    """The run of a record's directory. Raises SpecError for what is none."""
    return Run(record)


def results(
    where: str = "", *, output: str | Path = _RECORDS, limit: int | None = None, parameters: Sequence[object] = ()
) -> Results:
    """Runs whose records are below `output`, newest first, at most so many.

    `where`: an SQL condition over the columns that `testbed results columns` lists, with `parameters` for its `?`:
    `results("workers = ? and outcome = 'valid'", parameters=[4])`. Raises SpecError where it is none, or there is no
    such directory.
    """
    if limit is not None and limit < 1:
        raise SpecError(f"limit: at least 1, or None for all (got {limit!r})")
    with closing(Index(Path(output))) as index:
        index.refresh()
        return Results(index.directory, index.runs(where, parameters, limit=limit), index.problems())


def compare(
    *what: Run | SweepResult | str | Path,
    metric: Metric = "iteration_time_s",
    force: bool = False,
    output: str | Path = _RECORDS,
) -> Differences:
    """Whether settings differ by more than noise: ratios with intervals. Runs of one spec are repetitions; the setting
    of the first is what the others are compared with.

    A directory of a record or a sweep, or the beginning of a run's id below `output`, may stand for a run. Raises
    SpecError when runs do not stand or answer different questions, unless `force`: then it is a note.
    """
    if metric not in get_args(Metric):
        raise SpecError(f"metric: {metric!r} is none of {', '.join(get_args(Metric))}")
    return Differences(
        compare_records(records_of([_operand(each) for each in what], output=Path(output)), metric=metric, force=force)
    )


def _operand(what: Run | SweepResult | str | Path) -> str:
    return str(what.path if isinstance(what, Run) else what.directory if isinstance(what, SweepResult) else what)


def predict(spec: Spec, overrides: Overrides = ()) -> IterationPrediction:
    """What models say of an iteration, without root and without running it. Raises SpecError where the workload has
    none."""
    experiment = experiment_of(spec, overrides)
    if experiment.workload.lone_exchanges():
        raise SpecError(
            f"workload: {experiment.workload.kind} has no iterations; `testbed predict` times its exchanges"
        )
    plan = plan_in_theory(experiment)
    return predict_iteration(plan, expected_error(), contending_codec_times(plan))
