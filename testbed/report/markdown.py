"""report.md: a run's results as Markdown, for an issue, a notebook or a paper's appendix."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from testbed.record.number_text import DASH, digits, percent_text, rate_text, size_text, time_text
from testbed.record.summary import Summary
from testbed.report import wording

Row = Sequence[str]


def run_markdown(summary: Summary, pictures: Sequence[Path], folder: Path) -> str:
    """A run: verdict, headline where its numbers stand, numbers, links, and its pictures, whose paths are written from
    `folder` on."""
    lines = [f"# {summary.name}", ""]
    lines += [
        f"{summary.setup}  " if summary.setup else "",
        f"run `{summary.run_id}`, started {summary.started_at}",
        "",
    ]
    lines += [f"**{summary.outcome.upper()}**: {wording.OUTCOMES[summary.outcome]}", ""]
    if (sentence := wording.headline(summary)) is not None:
        lines += [sentence, ""]
    said = [*summary.reasons, *(f"note: {note}" for note in summary.notes)]
    lines += [*(f"- {plain(each)}" for each in said), ""] if said else []
    lines += table(("", "", ""), "lrl", _numbers(summary))
    if summary.links:
        lines += table(_LINK_COLUMNS, "lrrrrrrr", _links(summary))
        lines += [f"{wording.checked_text(summary.checked)}.".capitalize(), ""]
    if summary.changes:
        changes = ((f"{change.at_s:.2f} s", wording.change_text(change)) for change in summary.changes)
        lines += table(("at", "change"), "rl", changes)
    return "\n".join(lines) + pictures_markdown(pictures, folder)


def _numbers(summary: Summary) -> Iterator[Row]:
    time_s = summary.iteration_time_s
    if time_s is not None:
        spread = f"median {time_text(time_s.median)}, p10 {time_text(time_s.p10)}, p90 {time_text(time_s.p90)}"
        yield "iteration", time_text(time_s.mean), f"mean of {summary.num_iterations}; {spread}"
        for (name, part_s), share in zip(wording.parts(summary), wording.shares(summary), strict=True):
            yield f"{name}, of it", time_text(part_s), f"{share:.1f} %"
        if summary.prediction is not None:
            yield "iteration, predicted", *wording.prediction_text(summary.prediction)
    if summary.command is not None:
        yield "command", time_text(summary.command.time_s), wording.command_text(summary.command)
    if (factor := wording.factor(summary)) is not None:
        yield factor
    if summary.samples_per_s is not None:
        yield "throughput", f"{digits(summary.samples_per_s)}/s", "samples per second, all workers"
    if (took := summary.allreduce) is not None:
        about = f"{size_text(took.size_bytes)}; {wording.bounds_text(took)}"
        yield wording.exchange_name(summary), time_text(took.time_s), about
        about = wording.prediction_name(took)
        if took.time_s is not None:
            about += f", {wording.deviation_text(took.predicted_s / took.time_s - 1)} off what was measured"
        yield f"{wording.exchange_name(summary)}, predicted", time_text(took.predicted_s), about
    for each in summary.aggregators:
        yield f"aggregator {each.name}", f"{each.chunks:,}", wording.aggregator_text(each)
    if summary.loss is not None and summary.loss.last is not None:
        first = DASH if summary.loss.first is None else digits(summary.loss.first)
        yield "loss", digits(summary.loss.last), f"{first} in the first measured iteration"


_LINK_COLUMNS = ("link", "rate", "measured", "bytes", "expected", "differ by", "mean", "busy")


def _links(summary: Summary) -> Iterator[Row]:
    for link in summary.links:
        yield (
            f"{link.from_} → {link.to}",
            rate_text(link.rate_bps),
            rate_text(link.measured_rate_bps),
            f"{link.bytes:,}",
            DASH if link.expected_bytes is None else f"{link.expected_bytes:,}",
            wording.deviation_text(wording.deviation(link)),
            percent_text(link.utilization_mean),
            percent_text(link.utilization_busy),
        )


def table(header: Row, alignment: str, rows: Iterable[Row]) -> list[str]:
    """With an empty line after it; `alignment` has a letter for each column, `l` or `r`."""
    rules = ["---:" if side == "r" else "---" for side in alignment]
    cells = [[plain(text) for text in header], rules, *([plain(text) for text in row] for row in rows)]
    return [*(f"| {' | '.join(row)} |" for row in cells), ""]


def plain(text: str) -> str:
    """Text of whatever origin, in a line that Markdown shows as it is."""
    line = " ".join(text.split())
    escaped = re.sub(r"[\\`*<&|]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", line)
    return re.sub(r"^(?:>|[#+-](?=[ #-]))", r"\\\g<0>", escaped)


def pictures_markdown(pictures: Sequence[Path], folder: Path) -> str:
    """The SVGs among them, one below the other, their paths written from `folder` on."""
    drawn = [path for path in pictures if path.suffix == ".svg"]
    return "".join(f"\n![{path.stem}]({path.relative_to(folder).as_posix()})\n" for path in drawn)
