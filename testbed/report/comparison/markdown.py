"""sweep.md: a sweep's answer and its points as Markdown."""

from collections.abc import Sequence
from pathlib import Path

from testbed.report.comparison.answer import answer
from testbed.report.comparison.comparison import columns
from testbed.report.comparison.points import Comparison
from testbed.report.comparison.time_to_loss import HEADERS, TimeToLoss, time_rows
from testbed.report.markdown import pictures_markdown, plain, table


def sweep_markdown(comparison: Comparison, soon: TimeToLoss | None, pictures: Sequence[Path]) -> str:
    """A sweep: what it answers, every point, how soon each reaches a loss, what to know of them, and its pictures."""
    rows = [point.row() for point in comparison.points]
    shown = columns(rows)
    headers = [*comparison.paths, *(" ".join(header.split()) for header, *_ in shown), "outcome"]
    cells = (
        [*(str(row[path]) for path in comparison.paths), *(text(row) for _, text, _ in shown), str(row["outcome"])]
        for row in rows
    )
    lines = [f"# {comparison.name}", "", *(f"{plain(sentence)}  " for sentence in answer(comparison)), ""]
    lines += table(headers, "l" * len(comparison.paths) + "r" * len(shown) + "l", cells)
    if soon is not None:
        lines += [soon.text, ""]
        lines += table(
            (*comparison.paths, *HEADERS),
            "l" * len(comparison.paths) + "r" * (len(HEADERS) - 1) + "l",
            ([*(str(point.row()[path]) for path in comparison.paths), *row] for point, row in time_rows(soon)),
        )
    lines += [f"- {plain(reason)}" for reason in comparison.reasons] + ([""] if comparison.reasons else [])
    return "\n".join(lines) + pictures_markdown(pictures, comparison.directory)
