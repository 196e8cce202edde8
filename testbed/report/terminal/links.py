"""The links of a run that goes on, as a person reads them."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from testbed.experiment.link import UNSHAPED_BPS
from testbed.record import number_text
from transports.units import parse_rate_bps


def render_links(run_id: str, rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """`rows` as testbed.runner.link_client.show_links gives them."""
    console.print(f"run {run_id}", highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("Link", no_wrap=True)
    for column in ("rate", "delay", "loss", "queue", "used", "of rate", "waiting", "drops"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        requested = row["requested"]
        rate_bps = parse_rate_bps(requested["rate"])
        table.add_row(
            f"{row['from']} → {row['to']}",
            "[red]down[/]" if row["down"] else "unshaped" if rate_bps == UNSHAPED_BPS else requested["rate"],
            requested["delay"],
            number_text.percent_text(requested["loss"]) if isinstance(requested["loss"], int | float) else "bursts",
            requested["queue"],
            number_text.rate_text(row["used_bps"]),
            number_text.percent_text(None if rate_bps == UNSHAPED_BPS else row["used_bps"] / rate_bps),
            number_text.size_text(row["backlog_bytes"]),
            f"{row['drops']:,}",
        )
    console.print(table)
