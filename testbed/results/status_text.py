"""Runs that go on, as a person reads them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.console import Console
from rich.table import Table

from testbed.results import wording
from testbed.status import RunStatus

_NUM_LETTERS: Final = 40


def render_status(runs: Sequence[RunStatus], console: Console, *, now: datetime) -> None:
    """One line for each, and of a single one where its record is."""
    if not runs:
        console.print("no run is alive here", highlight=False)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in ("Run", "name", "phase"):
        table.add_column(column, no_wrap=True)
    for column in ("for", "iteration", "workers", "links", "age"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("does", overflow="ellipsis", no_wrap=True, max_width=_NUM_LETTERS)
    for run in runs:
        table.add_row(
            run.run_id,
            run.name,
            run.phase,
            age_text(run.phase_since, now),
            iteration_text(run),
            str(run.num_workers),
            str(run.num_links),
            age_text(run.started_at, now),
            run.workload,
        )
    console.print(table, highlight=False)
    if len(runs) == 1:
        console.print(f"record {runs[0].record}", highlight=False, soft_wrap=True, markup=False)


def iteration_text(run: RunStatus) -> str:
    """`12/30`; a dash where the phase has none."""
    return wording.DASH if run.iteration is None else f"{run.iteration}/{run.num_iterations}"


def age_text(since: datetime, now: datetime) -> str:
    """`12 s`, `3:05`, `1:02:03`."""
    seconds = max(0, int((now - since).total_seconds()))
    if seconds < 60:
        return f"{seconds} s"
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"
