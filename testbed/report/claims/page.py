"""A page for each paper, with its figures redrawn from our runs; beside it Markdown, LaTeX and JSON."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testbed.claims.judge import Judgement
from testbed.claims.wording import expected_text, value_text
from testbed.errors import MissingRequirementError
from testbed.experiment.claims import Claim
from testbed.experiment.papers import Paper
from testbed.record.writer import replace_text
from testbed.report.claims.figures import claims_figures
from testbed.report.claims.table import (
    QUICK_TEXT,
    claim_rows,
    claims_json,
    claims_latex,
    claims_markdown,
    paper_text,
)
from testbed.report.drawing import write_pictures
from testbed.report.markdown import pictures_markdown
from testbed.report.page import inlined, template

INDEX: Final = "index"


def _stem(name: str, *, quick: bool) -> str:
    """Of a file's name: what two iterations say does not replace what a night has measured."""
    return f"{name}-quick" if quick else name


def write_claims(
    name: str,
    paper: Paper | None,
    judgements: Sequence[Judgement],
    *,
    left_out: Sequence[Claim] = (),
    quick: bool,
    folder: Path,
    sweeps: Sequence[Path],
    command: str,
) -> Path:
    """Write, or write again, `<name>.html`, `.md`, `.tex` and `.json` in the folder, and its figures; returns the page.
    Of the quick version they are called `<name>-quick`.

    `sweeps` are the directories of the runs' own pages, `left_out` the claims that `--quick` does not try. Raises
    MissingRequirementError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingRequirementError(f"cannot write {folder}: {error.strerror}; choose another --output") from error
    stem = _stem(name, quick=quick)
    figures = claims_figures(judgements)
    page = template("claims.html.j2").render(
        name=name,
        paper=paper,
        rows=list(claim_rows(judgements, paper, left_out)),
        judgements=list(enumerate(judgements)),
        paper_text=paper_text,
        value_text=value_text,
        expected_text=expected_text,
        quick_text=QUICK_TEXT if quick else "",
        sweeps=[(path.name, os.path.relpath(path / "sweep.html", folder)) for path in sweeps],
        command=command,
        **inlined(figures),
    )
    replace_text(folder / f"{stem}.html", page)
    drawn = write_pictures(folder / f"{stem}.html", figures)
    markdown = claims_markdown(name, paper, judgements, left_out, quick=quick)
    replace_text(folder / f"{stem}.md", markdown + pictures_markdown(drawn, folder))
    replace_text(folder / f"{stem}.tex", claims_latex(judgements, paper, left_out, quick=quick))
    document = claims_json(name, paper, judgements, left_out, quick=quick)
    replace_text(folder / f"{stem}.json", json.dumps(document, indent=2, allow_nan=False) + "\n")
    return folder / f"{stem}.html"


def write_index(pages: Sequence[tuple[str, Sequence[Judgement], str]], *, quick: bool, folder: Path) -> Path:
    """One line for each paper: its title, its claims, its page's file name. Returns the index."""
    index = folder / f"{_stem(INDEX, quick=quick)}.html"
    text = template("claims_index.html.j2").render(
        pages=[
            (
                title,
                [sum(judgement.state == state for judgement in judgements) for state in _COUNTED],
                len(judgements),
                file,
            )
            for title, judgements, file in pages
        ],
        states=_COUNTED,
        quick_text=QUICK_TEXT if quick else "",
    )
    replace_text(index, text)
    return index


_COUNTED: Final = ("holds", "degraded", "fails", "not judged")
