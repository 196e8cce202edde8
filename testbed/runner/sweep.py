"""The points of a sweep, one run after another: what has a result is not run again, what goes wrong stops no other.

Which runs a point has is found by reading records (testbed.runner.sweep_points). sweep.json says since when runs belong
to a sweep that has not come to its end; it is replaced as a whole before the first run and after every one, so that a
sweep which is killed at any moment goes on where it was. Where runs are made is an engine's (testbed.runner.engines);
which, and whose results are taken in, is decided here (testbed.runner.sweep_work, testbed.runner.attempts).
"""

import fcntl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console

from testbed.errors import Interrupted, MissingRequirementError
from testbed.experiment.experiment import Experiment
from testbed.plan.plan import Plan
from testbed.record.summary import Summary
from testbed.report.comparison.comparison import write_comparison
from testbed.report.comparison.page import write_sweep
from testbed.report.comparison.points import Comparison
from testbed.runner.attempts import Attempts
from testbed.runner.engines.base import Engine, Session
from testbed.runner.engines.local import Local
from testbed.runner.sweep_points import reuse_texts, runs_text
from testbed.runner.sweep_work import Work

EXIT_FAILED: Final = 1
EXIT_INVALID: Final = 4


def run_sweep(
    comparison: Comparison,
    plans: Sequence[Plan],
    *,
    run: Callable[[Experiment], Summary],
    console: Console,
    engine: Engine | None = None,
    arguments: Sequence[str] = (),
    now_s: Callable[[], float] = time.monotonic,
    pictures: bool = True,
) -> Comparison:
    """Run what is missing of the points, in turns, and write the sweep's numbers after every run and its page at the
    end, also when interrupted. `plans` are those of the points, as :func:`found` had them.

    `run` makes a run on this machine and raises RunStoppedError for one that ended early; `engine` says where runs are
    made, here unless something else is said, and `arguments` are those of `testbed run` for the same elsewhere. Without
    `pictures` the page's figures are not drawn as files, which takes a quarter of a second each.

    Raises Interrupted after having said how to go on, MissingRequirementError where another process is at the same
    sweep, or was since :func:`found`, or the engine has no machine, and RunFailedError where it has none left or points
    were lost again and again.
    """
    for line in reuse_texts(comparison):
        console.print(line, highlight=False, markup=False)
    directory = comparison.directory
    with _alone(directory):
        attempts = Attempts.load(directory)
        if attempts.last != comparison.procedure.last_number:
            raise MissingRequirementError(
                f"another process was at this sweep after its results had been looked for ({directory}); the same "
                "command goes on with those that there are now"
            )
        number = attempts.begin_session()
        attempts.save(directory)
        # From here on every run belongs to this sweep, and is found by its record whatever happens.
        write_comparison(comparison, goes_on=True)
        engine = engine or Local()
        work = Work(comparison, plans, attempts, engine.over_s, console, now_s)
        session = Session(
            directory=directory,
            number=number,
            identity=attempts.identity,
            abandoned=attempts.abandoned,
            run=run,
            arguments=arguments,
            console=console,
            goes_by_costs=any(plan.goes_by_costs for plan in plans),
        )
        try:
            if not comparison.finished:
                with engine.open(session) as executor:
                    attempts.close_abandoned()
                    attempts.save(directory)
                    work.do(executor)
        except Interrupted:
            points = work.comparison.points
            num_kept = sum(run.stands for point in points for run in point.counted)
            wanted = sum(point.num_requested for point in points)
            text = f"{num_kept} of {runs_text(wanted)} done and kept; the same command runs the others"
            console.print(text, style="yellow")
            raise
        finally:
            write_sweep(work.comparison, pictures=pictures)
    return work.comparison


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """No other process works on the sweep of that directory, which is made. Raises MissingRequirementError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "lock").open("ab")
    except OSError as error:
        raise MissingRequirementError(f"cannot write {directory}: {error.strerror}; choose another --output") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MissingRequirementError(
                f"another process is at this sweep: {directory} is locked; wait for it, or choose another --output"
            ) from None
        yield


def exit_code(comparison: Comparison) -> int:
    """1 if any point failed, else 4 if any is invalid, else 0."""
    if comparison.outcomes & {"failed", "unsupported"}:
        return EXIT_FAILED
    return EXIT_INVALID if "invalid" in comparison.outcomes else 0
