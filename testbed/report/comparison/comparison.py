"""The points of a sweep side by side: one table in the terminal, one page for browsers, one CSV and JSON for scripts.

    <name>-sweep-<sha256>/
      sweep.json    what varies, and every point with its numbers, its theory and its runs
      sweep.csv     the same numbers, a row for each point
      sweep.html    plots with theory drawn in, and the table; opens offline

The runs stay records of their own beside that directory and are linked. A point's numbers are medians over its valid
and degraded runs; those of other runs are nobody's.
"""

import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed.errors import EnvironmentLacksError
from testbed.experiment.sweep import settings_text, value_text
from testbed.record.summary import Summary
from testbed.record.writer import replace_text
from testbed.report import wording
from testbed.report.comparison.answer import answer

State = Literal["valid", "degraded", "invalid", "failed", "unsupported", "not run"]
SCHEMA_VERSION: Final = 1
_SEVERITY: Final[tuple[State, ...]] = ("valid", "degraded", "not run", "invalid", "unsupported", "failed")
_STYLES: Final[Mapping[State, str]] = {"valid": "green", "degraded": "yellow", "not run": "dim"}
_WIDE: Final = 110
"""Columns of a terminal; in fewer the table leaves out what can be derived."""
_SETTING_WIDTH: Final = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedPoint:
    """One point of a sweep with what theory says of it and the runs that it has."""

    settings: Mapping[str, Any]
    spec_sha256: str
    bound_s: float
    """Of one iteration's all-reduces, as planned; `predicted_s` too."""
    predicted_s: float
    num_asked: int
    """Runs that the sweep wants of it."""
    runs: tuple[Summary, ...]

    @property
    def outcome(self) -> State:
        """The worst of its runs; `not run` where runs are missing."""
        found: list[State] = [run.outcome for run in self.runs]
        if len(found) < self.num_asked:
            found.append("not run")
        return max(found, key=_SEVERITY.index)

    @property
    def usable(self) -> list[Summary]:
        """Runs whose numbers stand."""
        standing = [run for run in self.runs if run.outcome in ("valid", "degraded")]
        return [run for run in standing if run.iteration_time_s or run.command]

    def row(self) -> dict[str, float | int | str | None]:
        """Its numbers; None where no run has them. Times in virtual seconds."""
        runs = self.usable
        times = [run.iteration_time_s for run in runs if run.iteration_time_s]
        medians = [time.median for time in times]
        theory = next((run.allreduce for run in runs if run.allreduce), None)  # with the latency that was measured
        single = times[0] if len(times) == 1 else None
        return {
            **{path: value_text(value) for path, value in self.settings.items()},
            "outcome": self.outcome,
            "num_runs": len(runs),
            "iteration_time_s": _median(medians),
            "iteration_time_low_s": single.p10 if single else min(medians, default=None),
            "iteration_time_high_s": single.p90 if single else max(medians, default=None),
            "compute_only_time_s": _of(runs, lambda run: run.compute_only_time_s),
            "exposed_communication_s": _of(runs, lambda run: run.exposed_communication_s),
            "samples_per_s": _of(runs, lambda run: run.samples_per_s),
            "scaling_factor": _of(runs, lambda run: run.scaling_factor),
            "allreduce_time_s": _of(runs, lambda run: run.allreduce.time_s if run.allreduce else None),
            "allreduce_predicted_s": self.predicted_s if theory is None else theory.predicted_s,
            "allreduce_bound_s": self.bound_s if theory is None else theory.bound_s,
            "utilization_mean": _of(runs, _utilization),
            "payload_ratio": _of(runs, lambda run: run.compression.payload_ratio if run.compression else 1.0),
            "codec_time_s": _of(runs, _codec_time_s),
            "command_time_s": _of(runs, lambda run: run.command.time_s if run.command else None),
            "loss": _of(runs, lambda run: run.loss.end if run.loss else None),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A sweep as far as it has come."""

    name: str
    axes: tuple[tuple[str, ...], ...]
    """The paths of what varies; several where they vary together."""
    points: tuple[ComparedPoint, ...]
    directory: Path
    """Of sweep.json and the others."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Everything that varies."""
        return tuple(path for axis in self.axes for path in axis)

    @property
    def outcomes(self) -> set[State]:
        """Of its points."""
        return {point.outcome for point in self.points}

    @property
    def reasons(self) -> list[str]:
        """Why points are not valid: what differs only in its numbers is said once, as the worst of them has it."""
        found: dict[str, list[tuple[ComparedPoint, Summary, str]]] = {}
        for point in self.points:
            for run in point.runs:
                for reason in run.reasons if run.outcome != "valid" else ():
                    found.setdefault(_kind_of(reason), []).append((point, run, reason))
        texts = []
        for alike in found.values():
            worst, run, reason = max(alike, key=lambda each: _SEVERITY.index(each[1].outcome))
            num_points = len({id(point) for point, *_ in alike})
            among = f" (the worst of {num_points} points)" if num_points > 1 else ""
            texts.append(f"{settings_text(worst.settings)}: {run.outcome}{among}: {reason}")
        return texts

    def with_run(self, position: int, summary: Summary) -> "Comparison":
        """One more run of the point there."""
        points = list(self.points)
        points[position] = replace(points[position], runs=(*points[position].runs, summary))
        return replace(self, points=tuple(points))

    def frame(self) -> pl.DataFrame:
        """A row for each point, in the order of the sweep."""
        return pl.DataFrame([point.row() for point in self.points], infer_schema_length=None)

    def to_json(self) -> dict[str, Any]:
        """sweep.json, and what `testbed sweep --json` prints."""
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "varied": list(self.paths),
            "directory": str(self.directory),
            "answer": answer(self),
            "points": [
                {
                    **{key: value for key, value in point.row().items() if key not in point.settings},
                    "settings": dict(point.settings),
                    "spec_sha256": point.spec_sha256,
                    "runs": [
                        {"run_id": run.run_id, "outcome": run.outcome, "reasons": run.reasons, "record": run.record}
                        for run in point.runs
                    ],
                }
                for point in self.points
            ],
        }


def write_comparison(comparison: Comparison) -> None:
    """Write, or write again, the sweep's directory. Raises EnvironmentLacksError."""
    directory = comparison.directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentLacksError(f"cannot write {directory}: {error.strerror}; choose another --output") from error
    replace_text(directory / "sweep.json", json.dumps(comparison.to_json(), indent=2) + "\n")
    replace_text(directory / "sweep.csv", comparison.frame().write_csv())


def render_comparison(comparison: Comparison, console: Console) -> None:
    """The table, what was wrong, and where everything is."""
    rows = [point.row() for point in comparison.points]
    table = Table(box=None, padding=(0, 2 if console.width >= _WIDE else 1, 0, 0), pad_edge=False, header_style="bold")
    for path in comparison.paths:
        least = max(len(part) for row in rows for part in re.split(r"(?<=[(,])", str(row[path])))
        table.add_column(path.replace(".", ".\n"), overflow="fold", min_width=min(least, _SETTING_WIDTH))
    shown = [(header, text) for header, text, wide in columns(rows) if console.width >= _WIDE or not wide]
    for header, _ in shown:
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("\noutcome", no_wrap=True)
    for point, row in zip(comparison.points, rows, strict=True):
        outcome = Text(point.outcome, style=_STYLES.get(point.outcome, "red"))
        varied = [Text(str(row[path])) for path in comparison.paths]
        table.add_row(*varied, *(text(row) for _, text in shown), outcome)
    console.print(Text.assemble("\n", (comparison.name, "bold"), f"  {len(rows)} points\n"))
    console.print(table, highlight=False)
    console.print()
    for sentence in answer(comparison):
        console.print(sentence, highlight=False)
    for reason in comparison.reasons:
        console.print(Text(f"• {reason}"), highlight=False)
    page = (comparison.directory / "sweep.html").absolute()
    console.print(Text.assemble("\n", ("Sweep   ", "bold"), str(comparison.directory)), soft_wrap=True)
    where = (f"{comparison.directory}/sweep.html", f"link {page.as_uri()}")
    console.print(Text.assemble(("Plots   ", "bold"), where), soft_wrap=True)


def render_points(comparison: Comparison, console: Console) -> None:
    """What would run: every point, what theory says of it, and whether it has its results already."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for path in comparison.paths:
        table.add_column(path, overflow="fold")
    for column in ("all-reduce predicted", "bound", "to run"):
        table.add_column(column, justify="right")
    for point in comparison.points:
        left = point.num_asked - len(point.runs)
        table.add_row(
            *(value_text(point.settings[path]) for path in comparison.paths),
            wording.time_text(point.predicted_s),
            wording.time_text(point.bound_s),
            f"{left} of {point.num_asked}" if point.num_asked > 1 else "yes" if left else "has a result",
        )
    console.print(Text.assemble("\n", (comparison.name, "bold"), f"  {len(comparison.points)} points\n"))
    console.print(table, highlight=False)


def columns(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Callable[[Mapping[str, Any]], str], bool]]:
    """Headers, how their cells are written, whether they need a wide terminal; without those that say nothing here."""
    if any(row["command_time_s"] is not None for row in rows):
        return [
            ("command\ntime", lambda row: wording.time_text(row["command_time_s"]), False),
            ("links\nused", lambda row: wording.percent_text(row["utilization_mean"]), False),
        ]
    columns: list[tuple[str, Callable[[Mapping[str, Any]], str], bool]] = [
        ("iteration\nmedian", lambda row: wording.time_text(row["iteration_time_s"]), False),
        ("exposed\ncomm.", lambda row: wording.time_text(row["exposed_communication_s"]), True),
        ("\nsamples/s", lambda row: _number(row["samples_per_s"]), True),
        ("scaling\nfactor", lambda row: _number(row["scaling_factor"]), False),
        ("all-\nreduce", lambda row: wording.time_text(row["allreduce_time_s"]), False),
        ("\npredicted", lambda row: wording.time_text(row["allreduce_predicted_s"]), True),
        ("\nbound", lambda row: wording.time_text(row["allreduce_bound_s"]), False),
        ("links\nused", lambda row: wording.percent_text(row["utilization_mean"]), False),
    ]
    if any(row["payload_ratio"] not in (None, 1.0) for row in rows):
        columns.append(("payload\nsent", lambda row: wording.percent_text(row["payload_ratio"]), True))
        columns.append(("codec\nCPU", lambda row: wording.time_text(row["codec_time_s"]), False))
        columns.append(("loss at\nthe end", lambda row: _number(row["loss"]), False))
    return columns


def _kind_of(reason: str) -> str:
    """A reason without its numbers and what is in brackets: what it has in common with others of its kind."""
    return re.sub(r"\([^)]*\)|\d+", "", reason)


def _number(value: float | None) -> str:
    return wording.DASH if value is None else wording.digits(value)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _of(runs: Sequence[Summary], value: Callable[[Summary], float | None]) -> float | None:
    return _median([found for run in runs if (found := value(run)) is not None])


def _codec_time_s(run: Summary) -> float | None:
    """CPU time of encoding and decoding in one iteration, on each worker."""
    return run.compression.encode_s + run.compression.decode_s if run.compression else None


def _utilization(run: Summary) -> float | None:
    known = [link.utilization_mean for link in run.links if link.utilization_mean is not None]
    return statistics.fmean(known) if known else None
