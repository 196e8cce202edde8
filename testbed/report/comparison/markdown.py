"""sweep.md: a sweep's answer and its points as Markdown."""

from collections.abc import Sequence
from pathlib import Path

from testbed.report.comparison.answer import answer
from testbed.report.comparison.comparison import columns
from testbed.report.comparison.points import Comparison
from testbed.report.markdown import pictures_markdown, table


def sweep_markdown(comparison: Comparison, pictures: Sequence[Path]) -> str:
    """A sweep: what it answers, every point, what to know of them, and its pictures."""
    rows = [point.row() for point in comparison.points]
    shown = columns(rows)
    headers = [*comparison.paths, *(" ".join(header.split()) for header, *_ in shown), "outcome"]
    cells = (
        [*(str(row[path]) for path in comparison.paths), *(text(row) for _, text, _ in shown), str(row["outcome"])]
        for row in rows
    )
    lines = [f"# {comparison.name}", "", *(f"{sentence}  " for sentence in answer(comparison)), ""]
    lines += table(headers, "l" * len(comparison.paths) + "r" * len(shown) + "l", cells)
    lines += [f"- {reason}" for reason in comparison.reasons] + ([""] if comparison.reasons else [])
    return "\n".join(lines) + pictures_markdown(pictures, comparison.directory)
