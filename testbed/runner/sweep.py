"""The points of a sweep, one run after another: what has a result is not run again, what goes wrong stops no other.

Records are what is true: which runs a point has is found by reading them. sweep.json says since when runs belong to a
sweep that has not come to its end; it is replaced as a whole before the first run and after every one, so that a sweep
which is killed at any moment goes on where it was. Where runs are made is an engine's (testbed.runner.engines); which,
and whose results are taken in, is decided here (testbed.runner.attempts).
"""

import fcntl
import math
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from testbed.errors import Interrupted, MissingRequirementError, RunFailedError, SpecError
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
from testbed.runner.attempts import MAX_LOST, Attempts, Entry, StaleAttemptError
from testbed.runner.engines.base import Engine, Event, Executor, Finished, Gone, Late, Lost, Ready, Session
from testbed.runner.engines.local import Local
from testbed.runner.turns import num_tries
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
    before, here, attempts = unfinished(directory), origin_here(), Attempts.load(directory).entries
    elsewhere = {entry.record: entry for entry in attempts if entry.machine and entry.record}
    goes_on = before is not None and (before.reuse == "none") == (reuse == "none")
    since = before.begun_at if before and goes_on else datetime.now(UTC).isoformat(timespec="seconds")
    points, not_reused, expected = [], Counter[str](), expected_error()
    texts = {point.experiment.sha256(): point.text for point in sweep.points}
    for point, plan in zip(sweep.points, plans, strict=True):
        experiment = point.experiment
        results = results_of(output, name=experiment.name, spec_sha256=experiment.sha256())
        others = {result.record: said for result in results if (said := unlike(Path(result.record), here))}
        alike = [result for result in results if reuse == "any" or result.record not in others]
        own = [result for result in alike if goes_on and _begun_at(result, elsewhere) >= since]
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
            not_reused=dict(not_reused),
            notes=attempt_texts(attempts, texts, since),
        ),
    )


def _begun_at(result: Summary, elsewhere: Mapping[str, Entry]) -> str:
    """By the clock of the sweep's machine."""
    entry = elsewhere.get(Path(result.record).name)
    return result.started_at if entry is None else entry.begun_at


def attempt_texts(attempts: Sequence[Entry], texts: Mapping[str, str], since: str) -> tuple[str, ...]:
    """What became of attempts on other machines that did not come to their end; `texts` are those of the points."""
    return tuple(
        f"attempt {entry.number}, {texts.get(entry.spec_sha256, 'another point')} on {entry.machine}: "
        f"{'lost, and refused when it came back' if entry.end == 'refused' else 'lost'}: {entry.reason}"
        for entry in attempts
        if entry.machine and entry.end in ("lost", "refused") and entry.begun_at >= since
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
    engine: Engine | None = None,
    arguments: Sequence[str] = (),
    now_s: Callable[[], float] = time.monotonic,
) -> Comparison:
    """Run what is missing of the points, in turns, and write the sweep's numbers after every run and its page at the
    end, also when interrupted.

    `run` makes a run on this machine and raises RunStoppedError for one that ended early; `engine` says where runs are
    made, here unless something else is said, and `arguments` are those of `testbed run` for the same elsewhere.

    Raises Interrupted after having said how to go on, MissingRequirementError where another process is at the same
    sweep or the engine has no machine, and RunFailedError where it has none left or points were lost again and again.
    """
    for line in reuse_texts(comparison):
        console.print(line, highlight=False, markup=False)
    directory = comparison.directory
    with _alone(directory):
        attempts = Attempts.load(directory)
        number = attempts.begin_session()
        attempts.save(directory)
        # From here on every run belongs to this sweep, and is found by its record whatever happens.
        write_comparison(comparison)
        engine = engine or Local()
        work = _Work(comparison, experiments, attempts, engine.over_s, console, now_s)
        session = Session(
            directory=directory,
            number=number,
            abandoned=attempts.abandoned,
            run=run,
            arguments=arguments,
            console=console,
        )
        try:
            if not comparison.finished:
                with engine.open(session) as executor:
                    attempts.close_abandoned()
                    attempts.save(directory)
                    work.do(executor)
        except Interrupted:
            points = work.comparison.points
            num_kept = sum(run.outcome in STANDING for point in points for run in point.counted)
            wanted = sum(point.num_requested for point in points)
            text = f"{num_kept} of {_runs(wanted)} done and kept; the same command runs the others"
            console.print(text, style="yellow")
            raise
        finally:
            write_sweep(work.comparison)
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


class _Work:
    """What is left of a sweep, done."""

    def __init__(
        self,
        comparison: Comparison,
        experiments: Sequence[Experiment],
        attempts: Attempts,
        over_s: float,
        console: Console,
        now_s: Callable[[], float],
    ) -> None:
        self.comparison = comparison
        self._experiments = experiments
        self._attempts = attempts
        self._over_s = over_s
        self._console = console
        self._now_s = now_s
        self._start_s = now_s()
        self._begun_s: dict[int, float] = {}
        self._num_done = 0
        self._idle: deque[str] = deque()
        self._gone: dict[str, str] = {}

    def do(self, executor: Executor) -> None:
        """Until every point has its runs, or is given up, and nothing is being made any more.

        Raises RunFailedError where points were given up, and what the executor raises.
        """
        while True:
            self._begin(executor)
            if not self._attempts.expected and self._nothing_left():
                break
            self._handle(executor.next_event())
        if given_up := self._attempts.given_up:
            named = "\n".join(f"  {settings_text(self.comparison.points[each].settings)}" for each in given_up)
            raise RunFailedError(
                f"these points were lost {MAX_LOST} times each and given up; the same command tries again:\n{named}"
            )

    def _nothing_left(self) -> bool:
        given_up = self._attempts.given_up
        return not any(
            point.num_missing and position not in given_up for position, point in enumerate(self.comparison.points)
        )

    def _begin(self, executor: Executor) -> None:
        """Give every machine that is ready its next run."""
        while self._idle:
            comparison, machine = self.comparison, self._idle[0]
            num_running = len(self._attempts.expected)
            over_s = self._over_s if machine else 0.0
            attempt = self._attempts.begin(
                comparison.points, comparison.procedure.order_seed, machine=machine, over_s=over_s
            )
            if attempt is None:
                return
            self._idle.popleft()
            self._attempts.save(comparison.directory)
            point = comparison.points[attempt.position]
            total = self._num_done + sum(point.num_missing for point in comparison.points)
            heading = _heading(point, self._num_done, num_running, total, self._now_s() - self._start_s)
            self._console.print(heading.append(f"   on {machine}" if machine else ""), soft_wrap=True)
            self._begun_s[attempt.number] = self._now_s()
            executor.start(attempt, self._experiments[attempt.position])

    def _handle(self, event: Event) -> None:
        match event:
            case Ready(machine=machine):
                if self._gone.pop(machine, None) is not None:
                    self._say(f"{machine} is back")
                    self._remember()
                self._idle.append(machine)
            case Finished():
                self._take_in(event)
            case Lost(number=number, reason=reason):
                attempt = self._attempts.lose(number, reason)
                self._say(f"lost: {self._name(number, attempt.position, attempt.machine)}: {reason}")
                self._remember()
            case Late(number=number, reason=reason):
                self._attempts.refuse(number, reason)
                self._say(f"refused: attempt {number} is not expected any more: {reason}")
                self._remember()
            case Gone(machine=machine, reason=reason):
                self._idle = deque(each for each in self._idle if each != machine)
                self._gone[machine] = reason
                self._say(f"without {machine}: {reason}")
                self._remember()

    def _take_in(self, event: Finished) -> None:
        """A result, once: the record gets its name, then the sweep's numbers, then the list of attempts."""
        try:
            attempt = self._attempts.expect(event.number)
        except StaleAttemptError as stale:
            self._say(f"refused: {stale}")
            return
        summary = event.summary
        if not event.is_moved_in:
            summary = _moved_in(summary, self.comparison.directory.parent)
        self._num_done += 1
        self.comparison = self.comparison.with_run(attempt.position, summary, machine=attempt.machine)
        line = _line(summary, self._now_s() - self._begun_s[event.number])
        if attempt.machine:
            line.append(f"   {self._name(event.number, attempt.position, attempt.machine)}", style="dim")
        self._console.print(line, no_wrap=True, overflow="ellipsis")
        write_comparison(self.comparison)
        self._attempts.accept(event.number, Path(summary.record).name)
        self._attempts.save(self.comparison.directory)

    def _name(self, number: int, position: int, machine: str) -> str:
        return f"attempt {number}, {settings_text(self.comparison.points[position].settings)} on {machine}"

    def _say(self, text: str) -> None:
        self._console.print(f"      {text}", style="yellow", highlight=False, markup=False, soft_wrap=True)

    def _remember(self) -> None:
        """What happened to machines and attempts."""
        self._attempts.save(self.comparison.directory)
        procedure = self.comparison.procedure
        texts = {point.spec_sha256: settings_text(point.settings) for point in self.comparison.points}
        notes = (
            *attempt_texts(self._attempts.entries, texts, procedure.begun_at),
            *(f"without {machine}: {reason}" for machine, reason in self._gone.items()),
        )
        self.comparison = replace(self.comparison, procedure=replace(procedure, notes=notes))
        write_comparison(self.comparison)


def _moved_in(summary: Summary, output: Path) -> Summary:
    """A record that another machine's arrived as, under its name among the others."""
    arrived = Path(summary.record)
    record = output / arrived.name
    if record.exists():
        raise MissingRequirementError(f"{record} exists already; the same run cannot have been made twice")
    arrived.rename(record)
    shutil.rmtree(arrived.parent, ignore_errors=True)
    return summary.model_copy(update={"record": str(record)})


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


def _heading(point: ComparedPoint, number: int, num_running: int, total: int, elapsed_s: float) -> Text:
    nth = number + num_running + 1
    text = Text.assemble((f"[{nth}/{total}] ", "bold cyan"), (settings_text(point.settings), "bold"))
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
