"""Claims in the terminal."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from testbed.claims.judge import Judgement
from testbed.experiment.claims import Claim
from testbed.experiment.papers import Paper
from testbed.report.claims.table import HEADERS, NOT_RUN, QUICK_TEXT, claim_rows

_STYLES: Final = {"holds": "green", "degraded": "yellow", "fails": "bold red", "not judged": "yellow"}


def render_claims(
    name: str,
    paper: Paper | None,
    judgements: Sequence[Judgement],
    console: Console,
    left_out: Sequence[Claim] = (),
    *,
    quick: bool = False,
) -> None:
    """A heading and a row for each claim, then why those that do not hold do not."""
    console.print()
    console.print(Text(paper.title if paper else name, style="bold"))
    if paper is not None:
        console.print(Text(f"{paper.authors}, {paper.venue}. {paper.url}", style="dim"))
        console.print(Text(f"Known of it: {paper.basis}.", style="dim"))
    if quick:
        console.print(Text(QUICK_TEXT, style="dim"))
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for header in HEADERS:
        right = header in ("model", "emulated")
        table.add_column(
            header,
            justify="right" if right else "left",
            no_wrap=right,
            overflow="fold",
            min_width=10 if right else None,
        )
    rows = list(claim_rows(judgements, paper, left_out))
    for row in rows:
        state = Text(row.state, style=_STYLES.get(row.state, "dim"))
        # As text: rich would take `[abstract]` for markup.
        table.add_row(*(Text(cell) for cell in row[:5]), state)
    console.print(table, highlight=False)
    console.print()
    for row in rows:
        if row.reason:
            style = "dim" if row.state in NOT_RUN else ""
            console.print(Text(f"• {row.name}: {row.reason}", style=style), highlight=False)
