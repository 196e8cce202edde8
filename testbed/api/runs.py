"""One run, and many: what a record holds as an object, read when it is wanted."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from testbed.api.pictures import Picture
from testbed.errors import InvalidResultError, ResultWarning, SpecError
from testbed.record.reader import Record, load, load_frame, load_summary, require_record
from testbed.record.summary import Outcome, Summary
from testbed.report import wording
from testbed.report.markdown import run_markdown
from testbed.report.page import record_figures
from testbed.store.documents import resolved_spec
from testbed.store.export import Table, rows_of, runs_frame
from testbed.store.index import Problem
from testbed.verdict.parts import measured_iterations

_SHOWN: Final = (
    *("run_id", "name", "outcome", "workers", "link_rate", "collective", "channel", "compression"),
    *("iteration_time_s", "scaling_factor"),
)
"""Columns of a list of runs in a notebook; `frame` has all."""


class Run:
    """A run and its record.

    `summary` has every number as it was measured, whatever the verdict. The properties of this class that are one
    number (`iteration_time_s`, `scaling_factor`, ...) are for conclusions: they raise InvalidResultError where the
    verdict is that numbers do not stand. All times are virtual seconds, those in frames wall seconds since the run's
    epoch (testbed.record.reader).
    """

    def __init__(self, path: str | Path) -> None:
        """Raises SpecError for what is not the directory of a finished run."""
        self.path = Path(path).absolute()
        """The record's directory."""
        require_record(self.path)
        self.summary: Summary = load_summary(self.path / "summary.json")

    @property
    def run_id(self) -> str:
        """As in every list of runs."""
        return self.summary.run_id

    @property
    def outcome(self) -> Outcome:
        """The verdict: `valid`, `degraded`, `invalid`, `failed` or `unsupported`."""
        return self.summary.outcome

    @property
    def reasons(self) -> list[str]:
        """Why the verdict is not `valid`, the gravest first; empty where it is."""
        return self.summary.reasons

    @property
    def notes(self) -> list[str]:
        """What a reader should know that calls no number in question."""
        return self.summary.notes

    @property
    def stands(self) -> bool:
        """Whether the numbers stand: the verdict is `valid`, or `degraded`, with reservations that `reasons` says."""
        return self.summary.stands

    def require_standing(self) -> "Run":
        """This run. Raises InvalidResultError, with the reasons, where its numbers do not stand."""
        if not self.stands:
            reasons = "; ".join(self.reasons) or "no reason given"
            raise InvalidResultError(
                f"run {self.run_id} is {self.outcome}, so its numbers do not stand: {reasons} (`summary` has them all "
                "the same)"
            )
        return self

    @property
    def _standing(self) -> Summary:
        return self.require_standing().summary

    @property
    def iteration_time_s(self) -> float | None:
        """Mean over workers and measured iterations; None without iterations."""
        time_s = self._standing.iteration_time_s
        return None if time_s is None else time_s.mean

    @property
    def compute_time_s(self) -> float | None:
        """Of an iteration: forward and backward pass."""
        return self._standing.compute_time_s

    @property
    def exposed_communication_s(self) -> float | None:
        """Of an iteration: communication that computing does not hide."""
        return self._standing.exposed_communication_s

    @property
    def samples_per_s(self) -> float | None:
        """Of all workers together."""
        return self._standing.samples_per_s

    @property
    def scaling_factor(self) -> float | None:
        """T_n / (n T_1); None where it is none, and `summary.scaling_factor_missing` says why."""
        return self._standing.scaling_factor

    @property
    def network_efficiency(self) -> float | None:
        """What an iteration would take without communication over what it takes."""
        return self._standing.network_efficiency

    @property
    def allreduce_time_s(self) -> float | None:
        """Of one iteration's all-reduces; None where it is withheld, and `summary.allreduce.missing` says why."""
        return self._standing.allreduce.time_s if self._standing.allreduce else None

    @property
    def command_time_s(self) -> float | None:
        """Of a command of the user's, from its start to its end on the last worker."""
        return self._standing.command.time_s if self._standing.command else None

    @cached_property
    def record(self) -> Record:
        """Everything of the record at once."""
        return load(self.path)

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The resolved spec, every default spelled out."""
        return resolved_spec(self.path)

    @cached_property
    def per_iteration(self) -> pl.DataFrame:
        """A row for each measured iteration that every worker finished: index, start_s of the first and end_s of the
        last worker (wall), num_samples, loss, and means over workers in virtual seconds: time_s, the sum of
        compute_s, data_s, waiting_s, exposed_s, optimizer_s, other_s."""
        return measured_iterations(self.iterations, self.summary)

    @cached_property
    def iterations(self) -> pl.DataFrame:
        """A row for each worker and iteration. Columns of this and all other tables: testbed.record.frames."""
        return load_frame(self.path, "iterations")

    @cached_property
    def buckets(self) -> pl.DataFrame:
        """A row for each worker, iteration and bucket of gradients."""
        return load_frame(self.path, "buckets")

    @cached_property
    def links(self) -> pl.DataFrame:
        """A row for each direction of a link and sample of its counters."""
        return load_frame(self.path, "links")

    @cached_property
    def backlog(self) -> pl.DataFrame:
        """A row for each probe of a link whose queue held packets."""
        return load_frame(self.path, "backlog")

    @cached_property
    def machine(self) -> pl.DataFrame:
        """A row for each sample of the machine's cores and network code."""
        return load_frame(self.path, "machine")

    @cached_property
    def changes(self) -> pl.DataFrame:
        """A row for each setting of a direction that changed meanwhile."""
        return load_frame(self.path, "changes")

    @cached_property
    def stages(self) -> pl.DataFrame:
        """A row for each worker and stretch of starting or reading data."""
        return load_frame(self.path, "stages")

    @cached_property
    def waits(self) -> pl.DataFrame:
        """A row for each stretch in which threads of a host waited for a core."""
        return load_frame(self.path, "waits")

    @cached_property
    def figures(self) -> Mapping[str, Picture]:
        """Those of its report that it left something to draw for: `utilization`, `rates`, `breakdown`, `timeline`,
        `loss`."""
        return {name: Picture(name, each, self._caption) for name, each in record_figures(self.record).items()}

    @property
    def report(self) -> Path:
        """The page for people, in one file that opens offline."""
        return self.path / "report.html"

    @property
    def _caption(self) -> str:
        return f"{self.summary.name}, run {self.run_id}: {self._verdict}"

    @property
    def _verdict(self) -> str:
        """`valid`, or in capitals with the first reason."""
        return "valid" if self.outcome == "valid" else f"{self.outcome.upper()}: {self.reasons[0]}"

    def __repr__(self) -> str:
        answer = wording.headline(self.summary)
        return f"<Run {self._caption};{f' {answer}' if answer else ''} {self.path}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """What IPython shows: verdict, reasons, numbers and links."""
        return {"text/markdown": run_markdown(self.summary, [], self.path), "text/plain": repr(self)}


class Results:
    """Runs below a directory, newest first."""

    def __init__(self, directory: Path, rows: Sequence[Mapping[str, Any]], problems: Sequence[Problem]) -> None:
        self.directory = directory.absolute()
        self.problems = tuple(problems)
        """What looks like a record below the directory and cannot be read as one."""
        self._rows = tuple(rows)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """A row for each run: `testbed results columns` says what its columns are. `outcome` says whether numbers
        stand; they are all there."""
        return runs_frame(self.directory, self._rows)

    def table(self, name: Table) -> pl.DataFrame:
        """All rows of a table of the runs (`iterations`, `buckets`, `links`), each with its run_id, the run's outcome
        and the dilation: their times are wall seconds, to be divided by it for virtual ones. Runs whose table cannot be
        read are left out with a ResultWarning; raises SpecError where that is all of them."""
        if name == "runs":
            return self.frame
        rows = rows_of(self.directory, self._rows, name)
        for problem in rows.left_out:
            warnings.warn(f"left out: {problem.record}: {problem.problem}", ResultWarning, stacklevel=2)
        return rows.frame

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Run]:
        return (Run(self.directory / row["record"]) for row in self._rows)

    def __getitem__(self, which: int | str) -> Run:
        """By its place, or by the beginning of its id or of its record's name. Raises SpecError where none, or more
        than one, begins so, and IndexError."""
        if isinstance(which, int):
            return Run(self.directory / self._rows[which]["record"])
        found = [row for row in self._rows if row["run_id"].startswith(which) or row["record"].startswith(which)]
        if len(found) != 1:
            several = f"several of the runs begin so: {', '.join(row['run_id'] for row in found[:5])}"
            raise SpecError(f"{which}: {several if found else 'none of the runs has an id or a record that begins so'}")
        return Run(self.directory / found[0]["record"])

    def __repr__(self) -> str:
        left_out = f", {len(self.problems)} left out" if self.problems else ""
        return f"<Results: {len(self)} runs below {self.directory}{left_out}>\n{self.frame.select(_SHOWN)}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        shown: str = self.frame.select(_SHOWN)._repr_html_()
        return {"text/html": shown, "text/plain": repr(self)}
