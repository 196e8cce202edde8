"""Runs that go on, as a person reads them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

from rich.console import Console
from rich.text import Text

from testbed.record.status import RunStatus


def render_status(
    runs: Mapping[str, RunStatus | None],
    console: Console,
    *,
    now: datetime,
    sockets: Mapping[str, Sequence[Path]] = MappingProxyType({}),
) -> None:
    """What each run does, how far it is and where its record is, by id; None: it has not said anything yet. `sockets`
    are those of its aggregating switches."""
    if not runs:
        console.print("no run is alive here", highlight=False)
    for run_id, status in runs.items():
        console.print(title(run_id, status, now), highlight=False, soft_wrap=True)
        if status is not None:
            reported = {"does": status.workload, "record": status.record, "page": status.metrics}
            for word, text in reported.items():
                if text is None:
                    continue
                console.print(f"  {word:<6}  {text}", highlight=False, soft_wrap=True, markup=False)
        for path in sockets.get(run_id, ()):
            console.print(f"  adds    switch-agg top --control {path}", highlight=False, soft_wrap=True, markup=False)


def title(run_id: str, status: RunStatus | None, now: datetime) -> Text:
    """`261121t080000-aaaaaa  quickstart  measured for 12 s, iteration 7/30  4 workers, 8 links, up 3:05`."""
    text = Text(run_id)
    if status is None:
        return text.append("  has not said anything yet", style="dim")
    text.append(f"  {status.name}", style="bold cyan")
    text.append(f"  {status.phase} for {age_text(status.phase_since, now)}")
    if status.iteration is not None:
        text.append(f", iteration {status.iteration}/{status.num_iterations}")
    what = f"  {status.num_workers} workers, {status.num_links} links, up {age_text(status.started_at, now)}"
    return text.append(what, style="dim")


def age_text(since: datetime, now: datetime) -> str:
    """`12 s`, `3:05`, `1:02:03`."""
    seconds = max(0, int((now - since).total_seconds()))
    if seconds < 60:
        return f"{seconds} s"
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"
