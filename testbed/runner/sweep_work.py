"""What is left of a sweep, done: whose turn it is, what an engine says of it, and which result is taken in."""

import math
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from testbed.errors import MissingRequirementError, RunFailedError
from testbed.experiment.sweep import settings_text
from testbed.plan.plan import Plan
from testbed.record import number_text
from testbed.record.summary import Summary
from testbed.report.comparison.comparison import write_comparison
from testbed.report.comparison.points import ComparedPoint, Comparison
from testbed.runner.attempts import MAX_LOST, Attempts, StaleAttemptError, attempt_texts
from testbed.runner.engines.base import Event, Executor, Finished, Gone, Late, Lost, Ready
from testbed.runner.program import origin_with_files, program_sha256
from testbed.runner.remaining import expected_run_s, remaining_s
from testbed.runner.turns import num_tries
from testbed.store.documents import Origin
from testbed.store.reuse import made_otherwise


class Work:
    """One process' part of a sweep."""

    def __init__(
        self,
        comparison: Comparison,
        plans: Sequence[Plan],
        attempts: Attempts,
        over_s: float,
        console: Console,
        now_s: Callable[[], float],
    ) -> None:
        self.comparison = comparison
        self._plans = plans
        self._files_sha256 = [program_sha256(plan.experiment) for plan in plans]
        """Of what the points' commands name when the sweep begins."""
        self._origins: dict[int, Origin] = {}
        self._attempts = attempts
        self._over_s = over_s
        self._console = console
        self._now_s = now_s
        self._start_s = now_s()
        self._begun_s: dict[int, float] = {}
        self._expected_s = [
            expected_run_s(plan, point.predicted) for point, plan in zip(comparison.points, plans, strict=True)
        ]
        self._done: list[int] = []
        """The position of each run that is done."""
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
            left = [number for number, each in enumerate(comparison.points) for _ in range(each.num_missing)]
            left_s = remaining_s(self._expected_s, left=left, done=self._done, elapsed_s=self._now_s() - self._start_s)
            if machine and not self._done:
                left_s = None  # how many of them there will be is not known
            number, total = len(self._done) + num_running + 1, len(self._done) + len(left)
            heading = _heading(point, number, total, left_s)
            self._console.print(heading.append(f"   on {machine}" if machine else ""), soft_wrap=True)
            self._begun_s[attempt.number] = self._now_s()
            executor.start(attempt, self._plans[attempt.position].experiment)

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
            # On disk before the record has its name: whoever is killed in between recognizes it, by whatever clock.
            self._attempts.arrive(event.number, Path(summary.record).name)
            self._attempts.save(self.comparison.directory)
            summary = _moved_in(summary, self.comparison.directory.parent)
        self._done.append(attempt.position)
        counts = summary.stands
        unlike = made_otherwise(summary, self._origin(attempt.position)) if counts else ()
        self.comparison = self.comparison.with_run(attempt.position, summary, unlike=unlike, machine=attempt.machine)
        line = _line(summary, self._now_s() - self._begun_s[event.number])
        if attempt.machine:
            line.append(f"   {self._name(event.number, attempt.position, attempt.machine)}", style="dim")
        self._console.print(line, no_wrap=True, overflow="ellipsis")
        write_comparison(self.comparison, goes_on=True)
        self._attempts.accept(event.number, Path(summary.record).name)
        self._attempts.save(self.comparison.directory)

    def _origin(self, position: int) -> Origin:
        """Of a point's runs: with the files that the sweep has begun with, in the image that the first run may have had
        to fetch."""
        if position not in self._origins:
            self._origins[position] = origin_with_files(self._plans[position], self._files_sha256[position])
        return self._origins[position]

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
        write_comparison(self.comparison, goes_on=True)


def _moved_in(summary: Summary, output: Path) -> Summary:
    """A record that another machine's arrived as, under its name among the others."""
    arrived = Path(summary.record)
    record = output / arrived.name
    if record.exists():
        raise MissingRequirementError(f"{record} exists already; the same run cannot have been made twice")
    arrived.rename(record)
    shutil.rmtree(arrived.parent, ignore_errors=True)
    return summary.model_copy(update={"record": str(record)})


def _heading(point: ComparedPoint, number: int, total: int, left_s: float | None) -> Text:
    text = Text.assemble((f"[{number}/{total}] ", "bold cyan"), (settings_text(point.settings), "bold"))
    if tries := num_tries(point):
        outcome = point.repeated[-1].outcome
        text.append(f"   again, since it was {outcome} ({tries} of at most {point.num_retries})", style="yellow")
    if left_s is not None:
        text.append(f"   about {_duration_text(left_s)} to go", style="dim")
    return text


def _duration_text(duration_s: float) -> str:
    return f"{math.ceil(duration_s)} s" if duration_s < 90 else f"{math.ceil(duration_s / 60)} min"


def _line(summary: Summary, took_s: float) -> Text:
    if not summary.stands:
        return Text.assemble("      ", (summary.outcome, "red"), f"  ({_duration_text(took_s)})  {summary.reasons[0]}")
    numbers = [f"iteration {number_text.time_text(summary.iteration_time_s.mean)}"] if summary.iteration_time_s else []
    if summary.allreduce is not None and summary.allreduce.time_s is not None:
        numbers.append(f"all-reduce {number_text.time_text(summary.allreduce.time_s)}")
    style = "green" if summary.outcome == "valid" else "yellow"
    return Text.assemble("      ", (summary.outcome, style), f"  ({_duration_text(took_s)})  {', '.join(numbers)}")
