"""The points of a sweep side by side: one table in the terminal, one page for browsers, one CSV and JSON for scripts.

    <name>-sweep-<sha256>/
      sweep.json    what varies, how the runs are made, and every point with its numbers, its theory and its runs;
                    replaced after every run
      sweep.csv     the same numbers, a row for each point
      sweep.html    plots with theory drawn in, and the table; opens offline
      sweep.md      what it answers and the table, as Markdown
      sweep-figures/<figure>.svg, .png   the plots, for papers

The runs stay records of their own beside that directory and are linked. A point's numbers are of its valid and degraded
runs, those of other runs are nobody's: of iterations and their parts means, so that parts add up, else medians.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed.errors import MissingRequirementError
from testbed.experiment.sweep import value_text
from testbed.record import number_text
from testbed.record.writer import replace_text
from testbed.report import wording
from testbed.report.comparison.answer import answer
from testbed.report.comparison.points import Comparison, State

_STYLES: Final[Mapping[State, str]] = {"valid": "green", "degraded": "yellow", "not run": "dim"}
_WIDE: Final = 110
"""Columns of a terminal; in fewer the table leaves out what can be derived."""
_WIDER: Final = 190
"""For what is in the page and in sweep.json anyway."""
_SETTING_WIDTH: Final = 24


def write_comparison(comparison: Comparison, *, goes_on: bool = False) -> None:
    """Write, or write again, the sweep's numbers; while it goes on they say so. Raises MissingRequirementError."""
    directory = comparison.directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingRequirementError(f"cannot write {directory}: {error.strerror}; choose another --output") from error
    replace_text(directory / "sweep.json", json.dumps(comparison.to_json(goes_on=goes_on), indent=2) + "\n")
    replace_text(directory / "sweep.csv", comparison.frame().write_csv())


def render_comparison(comparison: Comparison, console: Console) -> None:
    """The table, what was wrong, and where everything is."""
    rows = [point.row() for point in comparison.points]
    table = Table(box=None, padding=(0, 2 if console.width >= _WIDE else 1, 0, 0), pad_edge=False, header_style="bold")
    for path in comparison.paths:
        least = max(len(part) for row in rows for part in re.split(r"(?<=[(,])", str(row[path])))
        table.add_column(Text(path.replace(".", ".\n")), overflow="fold", min_width=min(least, _SETTING_WIDTH))
    shown = [(header, text) for header, text, least in columns(rows) if console.width >= least]
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
        console.print(Text(sentence), highlight=False)
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
        table.add_column(Text(path), overflow="fold")
    for column in ("iteration predicted", "all-reduce predicted", "bound of the task", "of the schedule", "to run"):
        table.add_column(column, justify="right")
    for point in comparison.points:
        left = point.num_missing
        table.add_row(
            *(Text(value_text(point.settings[path])) for path in comparison.paths),
            number_text.time_text(point.predicted.iteration_time_s if point.predicted else None),
            number_text.time_text(point.predicted_s),
            number_text.time_text(point.bound_s),
            number_text.time_text(point.schedule_bound_s),
            f"{left} of {point.num_requested}" if point.num_requested > 1 else "yes" if left else "has a result",
        )
    console.print(Text.assemble("\n", (comparison.name, "bold"), f"  {len(comparison.points)} points\n"))
    console.print(table, highlight=False)


def columns(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Callable[[Mapping[str, Any]], str], int]]:
    """Headers, how their cells are written, how wide a terminal they need; without those that say nothing here."""
    if any(row["command_time_s"] is not None for row in rows):
        return [
            ("command\ntime", lambda row: number_text.time_text(row["command_time_s"]), 0),
            ("links\nused", lambda row: number_text.percent_text(row["utilization_mean"]), 0),
        ]
    # One number for all points: where cores decide at any of them, the scaling factor is none.
    scales = all(row["scaling_factor"] is not None for row in rows if row["iteration_time_s"] is not None)
    factor = ("scaling", "factor") if scales else ("network", "efficiency")
    first_s = next((row["iteration_time_s"] for row in rows if row["iteration_time_s"] is not None), None)
    columns: list[tuple[str, Callable[[Mapping[str, Any]], str], int]] = [
        ("iteration\nmean", lambda row: number_text.time_text(row["iteration_time_s"]), 0),
        ("\npredicted", lambda row: number_text.time_text(row["iteration_predicted_s"]), _WIDER),
        ("pred.\nerror", lambda row: _error_text(row, "iteration"), 0),
        ("speed-\nup", lambda row: _speed_up_text(first_s, row["iteration_time_s"]), _WIDER),
        *_part_columns(),
        ("\nsamples/s", lambda row: number_text.number_text(row["samples_per_s"]), _WIDE),
        (f"{factor[0]}\n{factor[1]}", lambda row: number_text.number_text(row["_".join(factor)]), 0),
        ("all-\nreduce", lambda row: number_text.time_text(row["allreduce_time_s"]), 0),
        ("\npredicted", lambda row: number_text.time_text(row["allreduce_predicted_s"]), _WIDE),
        ("pred.\nerror", lambda row: _error_text(row, "allreduce"), _WIDER),
        ("bound:\ntask", lambda row: number_text.time_text(row["allreduce_bound_s"]), 0),
        ("\nschedule", lambda row: number_text.time_text(row["allreduce_schedule_bound_s"]), _WIDE),
        ("links\nused", lambda row: number_text.percent_text(row["utilization_mean"]), 0),
    ]
    if any(row["payload_ratio"] not in (None, 1.0) for row in rows):
        columns.append(("payload\nsent", lambda row: number_text.percent_text(row["payload_ratio"]), _WIDE))
        columns.append(("codec\nCPU", lambda row: number_text.time_text(row["codec_time_s"]), 0))
        columns.append(("loss at\nthe end", lambda row: number_text.number_text(row["loss"]), 0))
    return columns


def _part_columns() -> list[tuple[str, Callable[[Mapping[str, Any]], str], int]]:
    """Shares of the iteration, which add up to 100 %."""

    def share(field: str) -> Callable[[Mapping[str, Any]], str]:
        def text(row: Mapping[str, Any]) -> str:
            if row["iteration_time_s"] is None:
                return number_text.DASH
            return f"{wording.shares(row)[[each for _, each, *_ in wording.PARTS].index(field)]:.1f} %"

        return text

    headers = {name: name.replace(" ", "\n", 1) if " " in name else f"\n{name}" for name, *_ in wording.PARTS}
    headers["waiting for slower workers"], headers["exposed communication"] = "waiting\nfor slower", "exposed\ncomm."
    return [(headers[name], share(field), _WIDE) for name, field, *_ in wording.PARTS]


def _speed_up_text(first_s: float | None, time_s: float | None) -> str:
    """`1.85 x`: the iteration of the first point that has one over this one's."""
    return f"{number_text.digits(first_s / time_s)} x" if first_s is not None and time_s else number_text.DASH


def _error_text(row: Mapping[str, Any], what: str) -> str:
    """`+1.2 %`, in brackets where the point lies outside what predictions were compared with."""
    error = row[f"{what}_prediction_error"]
    if error is None:
        return number_text.DASH
    text = f"{100 * error:+.1f} %"
    return f"({text})" if row["prediction_outside"] else text
