"""What the doctor measured, as a person reads it."""

from typing import Final

from rich.console import Console
from rich.table import Table

from testbed.machine.budget import NUM_WORKERS, PROBED_DELAY, Budget, Lateness
from testbed.record.number_text import rate_text, time_text

BUSY_SHARE: Final = 0.2
"""Of the cores by other programs: more, and the numbers are theirs as well."""


def render_budget(budget: Budget, console: Console) -> None:
    """A table, and a warning where other programs were busy."""
    title = f"what this machine carries, {budget.measured_at}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in ("what", "measured", ""):
        table.add_column(column, justify="right" if column == "measured" else "left")
    star = f"sum over a ring of {NUM_WORKERS} workers on a routed star of shaped links"
    delayed = {f" through delays by {backend}": carried for backend, carried in budget.delayed.items()}
    for through, carried in {"": budget.undelayed, **delayed}.items():
        table.add_row(f"traffic{through}, super-frames", rate_text(carried.superframe_bps), star)
        table.add_row(f"traffic{through}, single packets", rate_text(carried.mtu_bps), "the same with packet_mode: mtu")
    for backend, late in budget.delays.items():
        table.add_row(f"delay by {backend}", *_late(late, f"through {PROBED_DELAY}"))
    table.add_row("timer", *_late(budget.timer, "waking up"))
    console.print(table)
    if budget.busy_share > BUSY_SHARE:
        busy = f"other programs used {100 * budget.busy_share:.0f} % of the cores"
        console.print(f"{busy}: repeat on an idle machine", style="yellow")


def _late(late: Lateness, what: str) -> tuple[str, str]:
    return f"+{time_text(late.mean_s)}", f"later than requested, {what}: mean; 99th percentile +{time_text(late.p99_s)}"
