"""sweep.html: a sweep for people, in one file that opens offline and links the runs' own reports; beside it the same
as Markdown, and its figures."""

import os
from pathlib import Path
from typing import Final

from testbed.record.summary import Summary
from testbed.record.writer import replace_text
from testbed.report import wording
from testbed.report.comparison import plots
from testbed.report.comparison.answer import answer
from testbed.report.comparison.comparison import columns, write_comparison
from testbed.report.comparison.markdown import sweep_markdown
from testbed.report.comparison.points import Comparison
from testbed.report.comparison.time_to_loss import HEADERS, TimeToLoss, loss_figure, time_rows, time_to_loss
from testbed.report.drawing import write_pictures
from testbed.report.figures import Figure
from testbed.report.page import inlined, template
from testbed.report.terminal.setup import SEPARATOR

_FIGURES: Final = (
    (plots.command, "Time of the command"),
    (plots.iteration, "Iteration time"),
    (plots.allreduce, "All-reduce time of one iteration"),
    (plots.scaling, "Scaling factor"),
    (plots.breakdown, "Where an iteration goes"),
)


def write_sweep(comparison: Comparison, *, pictures: bool = True) -> Path:
    """Write, or write again, everything in the sweep's directory, with or without pictures of its figures for papers;
    returns the page. Raises MissingRequirementError."""
    write_comparison(comparison, goes_on=True)
    soon = time_to_loss(comparison)
    figures = comparison_figures(comparison, soon)
    rows = [point.row() for point in comparison.points]
    page = template("sweep.html.j2").render(
        comparison=comparison,
        answer=answer(comparison),
        alike=_alike(comparison),
        rows=[(point, row) for point, row in zip(comparison.points, rows, strict=True)],
        columns=[(header.replace("-\n", "-").replace("\n", " "), text) for header, text, _ in columns(rows)],
        titles=[(make.__name__, title, plots.DEFINITIONS[make.__name__]) for make, title in _FIGURES],
        soon=soon,
        soon_headers=HEADERS,
        soon_rows=[] if soon is None else list(time_rows(soon)),
        report_of=lambda run: _report_of(run, comparison.directory),
        wording=wording,
        **inlined(figures),
    )
    path = comparison.directory / "sweep.html"
    replace_text(path, page)
    replace_text(
        path.with_suffix(".md"), sweep_markdown(comparison, soon, write_pictures(path, figures if pictures else {}))
    )
    # The last: a sweep that is killed before has not come to its end.
    write_comparison(comparison)
    return path


def _report_of(run: Summary, directory: Path) -> str | None:
    """The way from a directory to the run's report; None where it has none, as it ended early."""
    path = Path(run.record) / "report.html"
    return os.path.relpath(path, directory) if path.is_file() else None


def comparison_figures(comparison: Comparison, soon: TimeToLoss | None) -> dict[str, Figure]:
    """Those that the sweep has something to draw for, by name."""
    made = {make.__name__: figure for make, _ in _FIGURES if (figure := make(comparison)) is not None}
    losses = None if soon is None else loss_figure(soon, comparison.paths)
    return made if losses is None else {**made, "time_to_loss": losses}


def _alike(comparison: Comparison) -> str:
    """What all runs have in common, of what each says it was: `4 workers · star · ring over tcp`."""
    reported = [
        [f"{run.num_workers} workers", *filter(None, run.setup.split(SEPARATOR))]
        for point in comparison.points
        for run in point.runs
    ]
    return SEPARATOR.join(
        part for part in (reported[0] if reported else ()) if all(part in others for others in reported)
    )
