"""A table of claims: what the paper says, what the model says, what was emulated, whether it holds. As plain rows.

What of a paper is reconstructed or not checked is shown with that word: nobody may take it for the paper's own.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from testbed.claims.judge import Judgement
from testbed.claims.wording import expected_text, value_text
from testbed.experiment.claims import Claim, PaperSays
from testbed.experiment.papers import Paper
from testbed.record import number_text
from testbed.report.markdown import plain

HEADERS: Final = ("", "claim", "paper", "model", "emulated", "")
SCHEMA_VERSION: Final = 1
NOT_QUICK: Final = "not with --quick"
QUICK_TEXT: Final = "With --quick: fewer iterations, and fewer or smaller points, than the claims are of."
NOT_RUN: Final = ("elsewhere", "out of reach", NOT_QUICK)
"""States of claims that this command did not try."""


class ClaimRow(NamedTuple):
    """One line of the table."""

    feature: str
    name: str
    paper: str
    model: str
    emulated: str
    state: str
    reason: str
    says: PaperSays | None
    """What the paper says, as plain data."""


def claim_rows(
    judgements: Sequence[Judgement], paper: Paper | None, left_out: Sequence[Claim] = ()
) -> Iterator[ClaimRow]:
    """Those that ran, those that `--quick` left out, those that another command checks, those that cannot be tried
    here."""
    for judgement in judgements:
        claim = judgement.claim
        yield ClaimRow(
            claim.feature,
            claim.name,
            paper_text(claim.paper),
            value_text(judgement.model, claim.unit),
            value_text(judgement.measured, claim.unit),
            judgement.state,
            judgement.reason,
            claim.paper,
        )
    for claim in left_out:
        yield ClaimRow(claim.feature, claim.name, paper_text(claim.paper), "", "", NOT_QUICK, "", claim.paper)
    for each in paper.elsewhere if paper else ():
        yield ClaimRow(each.feature, each.name, paper_text(each.paper), "", "", "elsewhere", each.command, each.paper)
    for out in paper.out_of_reach if paper else ():
        yield ClaimRow(out.feature, out.name, paper_text(out.paper), "", "", "out of reach", out.reason, out.paper)


def paper_text(says: PaperSays | None) -> str:
    """`1.8 times [abstract]`."""
    return number_text.DASH if says is None else f"{says.says} [{says.evidence}]"


def claims_json(
    name: str,
    paper: Paper | None,
    judgements: Sequence[Judgement],
    left_out: Sequence[Claim] = (),
    *,
    quick: bool = False,
) -> dict[str, Any]:
    """What `testbed reproduce --json` prints of one paper: every row of the table."""
    not_run = list(claim_rows((), paper, left_out))
    return {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "quick": quick,
        "paper": paper.model_dump(mode="json", include={"title", "authors", "venue", "url", "basis"})
        if paper
        else None,
        "holds": all(judgement.holds for judgement in judgements),
        "claims": [
            *(_claim_json(judgement) for judgement in judgements),
            *(
                {
                    "name": row.name,
                    "feature": row.feature,
                    "paper": row.says.model_dump() if row.says else None,
                    "state": row.state,
                    "reason": row.reason,
                }
                for row in not_run
            ),
        ],
    }


def _claim_json(judgement: Judgement) -> Mapping[str, Any]:
    claim = judgement.claim
    return {
        "name": claim.name,
        "feature": claim.feature,
        "paper": claim.paper.model_dump() if claim.paper else None,
        "model": judgement.model,
        "emulated": judgement.measured,
        "unit": claim.unit,
        "expected": expected_text(claim),
        "why": claim.why,
        "state": judgement.state,
        "holds": judgement.holds,
        "reason": judgement.reason,
        "points": [point._asdict() for point in judgement.points],
    }


def claims_markdown(
    name: str,
    paper: Paper | None,
    judgements: Sequence[Judgement],
    left_out: Sequence[Claim] = (),
    *,
    quick: bool = False,
) -> str:
    """The table as Markdown, for a paper's appendix or an issue."""
    lines = [f"## {paper.title if paper else name}", ""]
    if paper is not None:
        lines += [f"{paper.authors}, {paper.venue}. <{paper.url}>", "", f"Known of it: {paper.basis}.", ""]
    if quick:
        lines += [QUICK_TEXT, ""]
    lines += ["| | claim | paper | model | emulated | |", "|---|---|---|---:|---:|---|"]
    rows = list(claim_rows(judgements, paper, left_out))
    for row in rows:
        cells = (row.feature, row.name, row.paper, row.model, row.emulated, row.state)
        lines.append("| " + " | ".join(map(plain, cells)) + " |")
    lines += [""] + [f"- {plain(f'{row.name}: {row.reason}')}" for row in rows if row.reason]
    return "\n".join(lines) + "\n"


_LATEX: Final = str.maketrans(
    {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "^": r"\^{}", "~": r"\~{}",
     "\\": r"\textbackslash{}", "\u00b5": r"$\mu$", number_text.DASH: "--"}
)  # fmt: skip


def claims_latex(
    judgements: Sequence[Judgement], paper: Paper | None, left_out: Sequence[Claim] = (), *, quick: bool = False
) -> str:
    """A tabular of all rows; it needs no package."""
    said = [rf"\multicolumn{{5}}{{l}}{{{_latex(QUICK_TEXT)}}} \\"] if quick else []
    lines = [r"\begin{tabular}{llrrl}", *said, r"\hline", r"claim & paper & model & emulated & \\", r"\hline"]
    for row in claim_rows(judgements, paper, left_out):
        cells = (row.name, row.paper, row.model, row.emulated, row.state)
        lines.append(" & ".join(map(_latex, cells)) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


def _latex(text: str) -> str:
    """Two hyphens stay two: LaTeX makes a dash of them."""
    return "-{}-".join(part.translate(_LATEX) for part in text.split("--"))
