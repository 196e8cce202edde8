"""Results and progress in a terminal: one screen at the end, a live display while the run goes on."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.bar import Bar
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from testbed.metrics.server import DIRECTORY, reopen_command
from testbed.record import number_text
from testbed.report import wording

if TYPE_CHECKING:  # the record's module imports polars, which progress does not need
    from testbed.record.summary import LinkSummary, Outcome, Summary

_WIDTH: Final = 100
_STYLES: Final["dict[Outcome, str]"] = {
    "valid": "bold white on green",
    "degraded": "bold black on yellow",
    "invalid": "bold white on red",
    "failed": "bold white on red",
    "unsupported": "bold white on red",
}
_BAR_WIDTH: Final = 30
_METER_WIDTH: Final = 25
_REFRESH_HZ: Final = 4
_LINE_INTERVAL_S: Final = 5.0
_NUM_CHANGES: Final = 12
_NUM_LINKS_APART: Final = 8
"""More link directions than this are shown as groups, with the range of each number."""


def render_summary(summary: "Summary", console: Console) -> None:
    """The whole result on one screen."""
    title = Text.assemble((summary.name, "bold"), (f"   {summary.setup or f'run {summary.run_id}'}", "dim"))
    parts: list[RenderableType] = [title, _verdict(summary), ""]
    if (sentence := wording.headline(summary)) is not None:
        parts += [Text(sentence), ""]
    parts.append(_numbers(summary))
    if summary.links:
        parts += ["", _links(summary.links, wide=console.width >= _WIDTH), *_checks(summary)]
    if summary.changes or summary.num_changes_not_reached:
        parts += ["", _changes(summary)]
    parts += ["", _where(summary)]
    console.print()
    for part in parts:
        console.print(Padding(part, (0, 1)), width=min(console.width, _WIDTH), highlight=False)


def _verdict(summary: "Summary") -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column()
    badge = Text(f" {summary.outcome.upper()} ", style=_STYLES[summary.outcome])
    grid.add_row(badge, wording.OUTCOMES[summary.outcome])
    for reason in summary.reasons:
        grid.add_row("", Text(f"• {reason}"))
    for note in summary.notes:
        grid.add_row("", Text(f"note: {note}", style="dim"))
    return grid


def _numbers(summary: "Summary") -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column()
    time_s = summary.iteration_time_s
    if time_s is not None:
        spread = ", ".join(
            f"{name} {number_text.time_text(value)}"
            for name, value in (("median", time_s.median), ("p10", time_s.p10), ("p90", time_s.p90))
        )
        requested = f"{summary.num_iterations} iterations of {summary.num_workers} workers"
        every = summary.synchronisation.every if summary.synchronisation else None
        rounds = f"; each {every} that average once count as one" if every else ""
        grid.add_row("Iteration", number_text.time_text(time_s.mean), f"mean of {requested}{rounds}; {spread}")
        for (name, part_s), share, (_, _, color, _) in zip(
            wording.parts(summary), wording.shares(summary), wording.PARTS, strict=True
        ):
            grid.add_row(Text(f"  {name}", style="not bold"), number_text.time_text(part_s), _share(share, color))
    if summary.prediction is not None and time_s is not None:
        # Dashes, not bars: what is predicted is never drawn like what was measured.
        predicted, text = wording.prediction_text(summary.prediction)
        grid.add_row(
            Text("- predicted", style="dim italic"), Text(predicted, style="dim italic"), Text(text, style="dim")
        )
    if summary.computing:
        pace = number_text.time_text(summary.pace.pace_s) if summary.pace else ""
        grid.add_row("Computing", pace, Text(wording.computing_text(summary)))
    if summary.command is not None:
        line = Text(wording.command_text(summary.command))
        grid.add_row("Command", number_text.time_text(summary.command.time_s), line)
    if summary.samples_per_s is not None:
        grid.add_row("Throughput", f"{number_text.digits(summary.samples_per_s)}/s", "samples per second, all workers")
    if (factor := wording.factor(summary)) is not None:
        grid.add_row(*factor)
    if summary.allreduce is not None:
        took = summary.allreduce
        grid.add_row(
            wording.exchange_name(summary),
            number_text.time_text(took.time_s),
            f"for {number_text.size_text(took.size_bytes)}; {wording.bounds_text(took)}, "
            f"{wording.predicted_exchange_text(took)}",
        )
    if summary.machine is not None:
        idle, text = wording.machine_text(summary.machine)
        grid.add_row("Cores", idle, text)
    if (rate := wording.backlog_text(summary.links)) is not None:
        grid.add_row("Shaping accuracy", *rate)
    if (late := wording.lateness_text(summary.links)) is not None:
        grid.add_row("Delay held", *late)
    if (marks := wording.marks_text(summary.links)) is not None:
        grid.add_row("Marked", *marks)
    if (worker := wording.straggler(summary)) is not None:
        slowed = f", slowed {worker.slowdown_mean:.3g} x" if worker.slowdown_mean > 1 else ""
        last = f"{worker.name} came last in {100 * worker.last_share:.0f} % of the exchanges{slowed}"
        grid.add_row(
            "Straggler",
            number_text.time_text(worker.straggler_wait_s),
            f"per iteration that everyone waited for {last}",
        )
    for aggregator in summary.aggregators:
        grid.add_row("Aggregator", f"{aggregator.chunks:,}", wording.aggregator_text(aggregator))
    if summary.stages is not None:
        whole_s = number_text.time_text(summary.stages.wall_s)
        grid.add_row("Stages", whole_s, wording.stages_text(summary.stages))
    if summary.storage is not None:
        reading_s = summary.stages.reading_s if summary.stages is not None else None
        grid.add_row("Storage", "", Text(wording.storage_text(summary.storage, reading_s)))
    for flow in summary.background:
        grid.add_row("Background", number_text.rate_text(flow.received_bps), Text(wording.background_text(flow)))
    if summary.compression is not None:
        ratio = number_text.percent_text(summary.compression.payload_ratio)
        grid.add_row("Compression", ratio, wording.compression_text(summary.compression))
    if summary.synchronisation is not None:
        mean = f"{summary.synchronisation.staleness_mean:.3g}"
        grid.add_row("Staleness", mean, wording.staleness_text(summary.synchronisation))
    if summary.loss is not None:
        first, last = (_loss(value) for value in (summary.loss.first, summary.loss.last))
        grid.add_row("Loss", last, f"mean over workers; {first} in the first measured iteration")
    if summary.overhead_s:
        spent = ", ".join(f"{name.replace('_', ' ')} {value:.1f} s" for name, value in summary.overhead_s.items())
        total_s = f"{sum(summary.overhead_s.values()):.1f} s"
        grid.add_row("Overhead", total_s, f"{spent} (wall time)")
    if summary.dilation != 1:
        text = "times above are virtual: wall time divided by this"
        grid.add_row("Dilation", f"{summary.dilation:g}", text)
    return grid


def _share(percent: float, color: str) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_row(f"{percent:5.1f} %", Bar(1, 0, percent / 100, width=40, color=color))
    return grid


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _links(links: "Sequence[LinkSummary]", *, wide: bool) -> Table:
    table = Table(box=None, padding=(0, 2 if wide else 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("Link", no_wrap=True)
    for column in ("rate\nset", "\nmeasured", "delay\nset", "\nmeasured", "bytes\nsent", "vs\nschedule"):
        if wide or column != "bytes\nsent":
            table.add_column(column, justify="right", no_wrap=True)
    shared = any(link.background_bytes != 0 for link in links)
    busy = wide or not shared  # where there is no room for both
    columns = ["used\nmean", *(["\nbusy"] if busy else []), *(["back-\nground"] if shared else []), "drops\n"]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for group in _groups(links):
        cells = [
            _directions(group),
            number_text.rate_text(group[0].rate_bps),
            _measured_rates(group),
            number_text.time_text(group[0].delay_s),
            _span([link.measured_delay_s for link in group], number_text.time_text),
            *([_span([link.bytes for link in group], number_text.size_text)] if wide else []),
            _span([wording.deviation(link) for link in group], wording.deviation_text),
            _span([link.utilization_mean for link in group], number_text.percent_text),
            *([_span([link.utilization_busy for link in group], number_text.percent_text)] if busy else []),
            *([_span([link.background_utilization for link in group], number_text.percent_text)] if shared else []),
            _span([link.drops for link in group], lambda drops: f"{drops or 0:,.0f}"),
        ]
        table.add_row(*cells)
    return table


def _checks(summary: "Summary") -> list[RenderableType]:
    """What the verdict has looked at, and what it has not."""
    marked = wording.marked_rates(summary.links)
    marks = f"; ~: {marked}" if marked else ""
    lines = [f"{wording.checked_text(summary.checked)}{marks}. Definitions: {wording.DEFINITIONS_PAGE}"]
    lines += [f"not checked: {text}" for text in summary.checked.not_checked]
    return [Text(line, style="dim") for line in lines]


def _measured_rates(group: "Sequence[LinkSummary]") -> str:
    """With a mark where none of them was measured itself."""
    text = _span([link.measured_rate_bps for link in group], number_text.rate_text)
    return f"~{text}" if all(wording.measured_on(link) for link in group) else text


def _groups(links: "Sequence[LinkSummary]") -> "list[list[LinkSummary]]":
    """Directions one by one where they are few, else those alike in rate, delay and kind of nodes together."""
    if len(links) <= _NUM_LINKS_APART:
        return [[link] for link in links]
    groups: dict[tuple[object, ...], list[LinkSummary]] = {}
    for link in links:
        kinds = (link.from_.rstrip("0123456789"), link.to.rstrip("0123456789"))
        groups.setdefault((link.rate_bps, link.delay_s, *kinds), []).append(link)
    return list(groups.values())


def _directions(group: "Sequence[LinkSummary]") -> str:
    """`w0 → s0`; on two lines where both ends are several nodes."""
    senders, receivers = _names([link.from_ for link in group]), _names([link.to for link in group])
    gap = "\n" if ".." in senders and ".." in receivers else " "
    return f"{senders} →{gap}{receivers}"


def _names(nodes: Sequence[str]) -> str:
    """`w0`, or `w0..w15` for several."""
    distinct = sorted(set(nodes), key=lambda node: (node.rstrip("0123456789"), len(node), node))
    return distinct[0] if len(distinct) == 1 else f"{distinct[0]}..{distinct[-1]}"


def _span(values: Sequence[float | None], text: Callable[[float | None], str]) -> str:
    """One line, or two where the values differ: the lowest and the highest."""
    known = [value for value in values if value is not None]
    low, high = (text(min(known)), text(max(known))) if known else (text(None), text(None))
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number if unit == high.partition(' ')[2] else low} to\n{high}"


def _changes(summary: "Summary") -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column()
    for number, change in enumerate(summary.changes[:_NUM_CHANGES]):
        grid.add_row("" if number else "Changes", f"{change.at_s:.2f} s", wording.change_text(change))
    left = len(summary.changes) - _NUM_CHANGES
    if left > 0:
        grid.add_row("", "", f"and {left} more, in changes.parquet")
    if summary.num_changes_not_reached:
        grid.add_row("" if summary.changes else "Changes", "", f"{summary.num_changes_not_reached} not reached")
    return grid


def _where(summary: "Summary") -> Text:
    report = Path(summary.record).absolute() / "report.html"
    text = Text.assemble(("Record  ", "bold"), summary.record, "\n")
    for capture in summary.captures:
        missed = f", {capture.num_dropped:,} missed" if capture.num_dropped else ""
        text.append("Capture ", style="bold").append(f"{summary.record}/{capture.file}")
        text.append(f"  ({capture.num_packets:,} packets{missed})\n", style="dim")
    if summary.prometheus is not None:
        text.append("Metrics ", style="bold").append(f"{summary.record}/{DIRECTORY}")
        text.append(f"  ({wording.prometheus_text(summary.prometheus)})\n")
        text.append(f"        {reopen_command(Path(summary.record))}\n", style="dim")
    text.append("Report  ", style="bold")
    text.append(f"{summary.record}/report.html", style=f"link {report.as_uri()}")
    return text.append("  (one file; opens in any browser, offline)", style="dim")


class LiveProgress:
    """What the run is doing: a live display on a terminal, plain lines elsewhere, nothing when not enabled.

    Give it a console on standard error, so that standard output stays the result's. Any thread may call it.
    """

    def __init__(self, console: Console, *, enabled: bool = True, now_s: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._enabled = enabled
        self._now_s = now_s
        self._lock = threading.Lock()
        self._done: list[tuple[str, float]] = []
        """Phases that are over and the seconds they took."""
        self._phase = ""
        self._phase_start_s = now_s()
        self._position: _Position | None = None
        self._links: list[tuple[str, float]] = []
        self._line_s = 0.0
        self._live: Live | None = None

    def phase(self, name: str) -> None:
        """A phase begins: deploy, calibrate, start, compute-only, warmup, measured, ..."""
        if not self._enabled or name == self._phase:
            return
        with self._lock:
            self._end_phase()
            self._phase, self._phase_start_s, self._position = name, self._now_s(), None
        if not self._console.is_terminal:
            self._console.print(f"{name} ...", highlight=False)
        elif self._live is None:
            # Standard output is left alone: it carries the result.
            self._live = Live(
                self, console=self._console, refresh_per_second=_REFRESH_HZ, transient=True, redirect_stdout=False
            )
            self._live.start()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._enabled:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def iteration(self, phase: str, index: int, total: int, loss: float) -> None:
        """Iteration `index` (from 1) of `total` is over."""
        if not self._enabled:
            return
        now_s = self._now_s()
        with self._lock:
            before = self._position
            fresh = before is None or before.phase != phase
            first_s = now_s if fresh or before is None else before.first_s
            first_number = index if fresh or before is None else before.first_number
            self._position = _Position(phase, index, total, loss, first_number, first_s, now_s)
            # One line every few seconds, and the last.
            due = not self._console.is_terminal and (index == total or now_s - self._line_s >= _LINE_INTERVAL_S)
            line = self._line(self._position)
            self._line_s = now_s if due else self._line_s
        if due:
            self._console.print(f"{phase.replace('_', '-')}: {line}", highlight=False)

    def links(self, utilizations: Sequence[tuple[str, float]]) -> None:
        """Name and utilization, 0 to 1, of every link direction since the last sample."""
        with self._lock:
            self._links = list(utilizations)

    def above(self, text: str) -> bool:
        """Write lines, which may hold escape sequences, above the display; False where there is none."""
        if self._live is None:
            return False
        self._console.print(Text.from_ansi(text.removesuffix("\n")), soft_wrap=True, highlight=False)
        return True

    def close(self) -> None:
        """End the display. Idempotent."""
        with self._lock:
            self._end_phase()
            self._phase = ""
        live, self._live = self._live, None
        if live is not None:
            with suppress(OSError):  # the terminal is gone
                live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            yield self._phases()
            if self._position is not None:
                grid = Table.grid(padding=(0, 1))
                share = self._position.number / self._position.total
                grid.add_row(Bar(1, 0, share, width=_BAR_WIDTH, color="green"), self._line(self._position))
                yield grid
            if self._links:
                yield self._meters(options.max_width)

    def _end_phase(self) -> None:
        if self._phase:
            self._done.append((self._phase, self._now_s() - self._phase_start_s))

    def _phases(self) -> Text:
        text = Text()
        for name, took_s in self._done:
            text.append("✓ ", style="green").append(f"{name} ").append(f"{took_s:.1f} s   ", style="dim")
        if self._phase:
            elapsed_s = self._now_s() - self._phase_start_s
            text.append("▸ ", style="yellow").append(f"{self._phase} ", style="bold").append(f"{elapsed_s:.0f} s")
        return text

    def _line(self, position: "_Position") -> str:
        parts = [f"iteration {position.number}/{position.total}"]
        if math.isfinite(position.loss):
            parts.append(f"loss {position.loss:.4g}")
        if self._links:
            parts.append(f"links {sum(used for _, used in self._links) / len(self._links) * 100:.0f} %")
        if position.iteration_s is not None:
            parts.append(f"{number_text.time_text(position.iteration_s)} each")
            parts.append(f"{(position.total - position.number) * position.iteration_s:.0f} s to go")
        return ", ".join(parts)

    def _meters(self, width: int) -> RenderableType:
        """A bar for each direction while there is room, else one character."""
        if len(self._links) > _NUM_LINKS_APART:
            names = f"{self._links[0][0]} .. {self._links[-1][0]}"
            return Text.assemble(("".join(_level(used) for _, used in self._links), "cyan"), f"  {names}")
        columns = max(1, min(4, width // _METER_WIDTH))
        grid = Table.grid(padding=(0, 2, 0, 0))
        cells = [
            Text.assemble(f"{name:<9}", ("█" * round(8 * min(used, 1.0))).ljust(8, "·"), f"{100 * used:4.0f} %")
            for name, used in self._links
        ]
        for start in range(0, len(cells), columns):
            grid.add_row(*cells[start : start + columns])
        return grid


def _level(used: float) -> str:
    """One of eight heights."""
    return "▁▂▃▄▅▆▇█"[min(max(round(used * 7), 0), 7)]


class _Position(NamedTuple):
    """Where a phase is."""

    phase: str
    number: int
    total: int
    loss: float
    first_number: int
    first_s: float
    now_s: float

    @property
    def iteration_s(self) -> float | None:
        """Mean over the phase so far; None before its second iteration."""
        num_done = self.number - self.first_number
        return (self.now_s - self.first_s) / num_done if num_done > 0 else None
