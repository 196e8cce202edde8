"""`testbed top`: the links of a run that goes on, as they are at this moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from testbed.experiment.link import UNSHAPED_BPS
from testbed.record import number_text
from testbed.record.status import RunStatus
from testbed.report.terminal.status import title
from transports.units import parse_rate_bps, parse_time_s

_BAR_WIDTH: Final = 20
_NUM_OTHER_LINES: Final = 6
"""Of the screen: title, totals, heads, what is left out."""
_WARN_SHARE, _FULL_SHARE = 0.7, 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkView:
    """One direction between two looks at it."""

    name: str
    """`w0 → s0`."""
    down: bool
    rate_bps: float
    """As requested."""
    delay_s: float
    """One way, as requested."""
    used_bps: float
    backlog_bytes: int
    drops: int
    drops_per_s: float
    marks: int
    marks_per_s: float

    @property
    def share(self) -> float:
        """The share of its rate that the direction carries."""
        return self.used_bps / self.rate_bps

    @property
    def weight(self) -> tuple[float, ...]:
        """What is most worth seeing has most."""
        return (self.drops_per_s, self.share, self.backlog_bytes)


def views(
    rows: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]] | None, *, elapsed_s: float
) -> list[LinkView]:
    """`rows` and those of the look before as testbed.runner.link_client.show_links gives them; the virtual seconds in
    between."""
    earlier = {(row["from"], row["to"]): row for row in before or ()}

    def per_second(row: Mapping[str, Any], counter: str) -> float:
        known = earlier.get((row["from"], row["to"]))
        return (row[counter] - known[counter]) / elapsed_s if known and elapsed_s > 0 else 0.0

    return [
        LinkView(
            name=f"{row['from']} → {row['to']}",
            down=row["down"],
            delay_s=parse_time_s(row["requested"]["delay"]),
            rate_bps=parse_rate_bps(row["requested"]["rate"]),
            used_bps=row["used_bps"],
            backlog_bytes=row["backlog_bytes"],
            drops=row["drops"],
            drops_per_s=per_second(row, "drops"),
            marks=row["marks"],
            marks_per_s=per_second(row, "marks"),
        )
        for row in rows
    ]


def screen(
    run_id: str, status: RunStatus | None, links: Sequence[LinkView], *, now: datetime, num_lines: int | None
) -> RenderableType:
    """Everything; where it does not fit that many lines, the busiest links in the plan's order. None: all."""
    shown = list(links)
    room = len(links) if num_lines is None else max(1, num_lines - _NUM_OTHER_LINES)
    if len(links) > room:
        keep = set(sorted(range(len(links)), key=lambda index: links[index].weight, reverse=True)[:room])
        shown = [link for index, link in enumerate(links) if index in keep]
    parts: list[RenderableType] = [
        Text.assemble(("testbed top  ", "bold"), title(run_id, status, now)),
        _totals(links),
        "",
        _table(shown),
    ]
    if len(shown) < len(links):
        parts.append(Text(f"and {len(links) - len(shown)} less busy ones", style="dim"))
    return Group(*parts)


def _totals(links: Sequence[LinkView]) -> Text:
    if not links:
        return Text("its links are not there yet", style="dim")
    used_bps, most = sum(link.used_bps for link in links), max(links, key=lambda link: link.share)
    drops, marks = sum(link.drops_per_s for link in links), sum(link.marks_per_s for link in links)
    return Text(
        f"{len(links)} directions carry {number_text.rate_text(used_bps)}; busiest {most.name} at "
        f"{number_text.percent_text(most.share)}; {drops:.0f} drops/s, {marks:.0f} marks/s"
    )


def _table(links: Sequence[LinkView]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold reverse")
    table.add_column("Link", no_wrap=True)
    for column in ("rate", "delay", "carries"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("of it", justify="right", no_wrap=True)
    table.add_column(max_width=_BAR_WIDTH)  # alone gives way in a narrow terminal
    for column in ("waiting", "drops", "/s", "marks", "/s"):
        table.add_column(column, justify="right", no_wrap=True)
    for link in links:
        table.add_row(
            link.name,
            Text("down", style="bold red") if link.down else number_text.rate_text(link.rate_bps),
            number_text.time_text(link.delay_s) if link.delay_s else number_text.DASH,
            number_text.rate_text(link.used_bps),
            *((number_text.DASH, "") if link.rate_bps == UNSHAPED_BPS else _meter(link.share)),
            number_text.size_text(link.backlog_bytes) if link.backlog_bytes else number_text.DASH,
            *_counter(link.drops, link.drops_per_s, "red"),
            *_counter(link.marks, link.marks_per_s, "yellow"),
        )
    return table


def _meter(share: float) -> tuple[str, ProgressBar]:
    color = "red" if share > _FULL_SHARE else "yellow" if share > _WARN_SHARE else "green"
    return f"{100 * share:.0f} %", ProgressBar(1.0, min(share, 1.0), complete_style=color, finished_style=color)


def _counter(count: int, per_s: float, color: str) -> tuple[Text, Text]:
    style = color if per_s else ""
    return Text(f"{count:,}", style=style), Text(f"{per_s:.0f}" if per_s else number_text.DASH, style=style)
