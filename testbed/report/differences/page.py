"""A page of compared settings, in one file that opens offline; beside it the same as Markdown, and its figures."""

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import quote

from testbed.errors import MissingRequirementError, SpecError
from testbed.record.writer import replace_text
from testbed.report import wording
from testbed.report.differences import figures
from testbed.report.differences.markdown import compared_markdown
from testbed.report.differences.table import COMPARED, HEADERS, PARTS_HEADERS, parts_rows, rows, title
from testbed.report.drawing import write_pictures
from testbed.report.figures import Figure
from testbed.report.page import inlined, require_page_name, template
from testbed.report.terminal.results import sentences
from testbed.store.compare import Compared
from testbed.store.differences import CONFIDENCE

_OURS: Final = re.compile(r"differences|runs|parts|iterations-\d+")
"""Figures of such a page, by name."""
_NUM_ANSWERS: Final = 6
"""Sentences that head the page; the table says more."""


def require_page(path: Path) -> None:
    """Raise SpecError for a name that Markdown beside the page would have, too, and where somebody else's Markdown of
    that name is in the way."""
    require_page_name(path)
    markdown = path.with_suffix(".md")
    try:
        first = markdown.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    except OSError:  # there is none; or writing it will say what is wrong
        return
    if not first.endswith(COMPARED):
        raise SpecError(f"--page {path}: {markdown} exists, and is not of such a page; choose another name")


def write_compared(compared: Compared, path: Path) -> Path:
    """Write the page, and Markdown and figures beside it; returns the page's path. Raises MissingRequirementError where
    they cannot be written, and SpecError for a record that cannot be read."""
    require_page(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingRequirementError(f"cannot write {path.parent}: {error.strerror}; choose another --page") from error
    panels = figures.iterations(compared)
    drawn = compared_figures(compared)
    named = {f"iterations-{number}": figure for number, (*_, figure) in enumerate(panels, start=1)}
    said = sentences(compared)
    page = template("differences.html.j2").render(
        compared=compared,
        title=title(compared),
        confidence=CONFIDENCE,
        answers=said[:_NUM_ANSWERS],
        num_more=max(0, len(said) - _NUM_ANSWERS),
        headers=HEADERS,
        rows=list(rows(compared)),
        parts_headers=PARTS_HEADERS,
        parts_rows=parts_rows(compared),
        left_out=figures.num_runs_left_out(compared),
        panels=[(name, setting, run) for name, (setting, run, _) in zip(named, panels, strict=True)],
        num_runs=sum(len(setting.summaries) for setting in compared.settings),
        report_of=lambda run: _link(Path(run.record) / "report.html", path.parent),
        wording=wording,
        **inlined({**drawn, **named}),
    )
    replace_text(path, page)
    pictures = write_pictures(path, {**drawn, **named}, is_ours=lambda name: _OURS.fullmatch(name) is not None)
    replace_text(path.with_suffix(".md"), compared_markdown(compared, pictures, path.parent))
    return path


def _link(report: Path, folder: Path) -> str | None:
    """From a page in that folder; None where there is no such report."""
    return quote(os.path.relpath(report, folder)) if report.exists() else None


def compared_figures(compared: Compared) -> dict[str, Figure]:
    """Those that there is something to draw for, by name."""
    made = {"differences": figures.differences(compared), "runs": figures.runs(compared)}
    side_by_side = figures.parts(compared)
    return made if side_by_side is None else {**made, "parts": side_by_side}
