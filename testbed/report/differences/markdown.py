"""What was compared, as Markdown."""

from collections.abc import Sequence
from pathlib import Path

from testbed.report.differences.table import HEADERS, PARTS_HEADERS, parts_rows, rows, title
from testbed.report.markdown import pictures_markdown, plain, table
from testbed.report.terminal.results import sentences
from testbed.store.compare import Compared


def compared_markdown(compared: Compared, pictures: Sequence[Path], folder: Path) -> str:
    """What it says, every setting, where iterations go, what to know of them, and pictures, whose paths are written
    from `folder` on."""
    header = tuple(compared.metric if name == "mean" else name for name in HEADERS)
    lines = [f"# {title(compared)}", "", *(f"{plain(sentence)}  " for sentence in sentences(compared)), ""]
    lines += [f"- {plain(note)}" for note in compared.notes] + ([""] if compared.notes else [])
    lines += table(header, "lrrrrll", (cells for _, cells in rows(compared)))
    if found := parts_rows(compared):
        cells = ([row.name, *(f"{time} ({more})" if more else time for time, more in row.cells)] for row in found)
        lines += ["Parts of the mean iteration, and by how much each is more than the first setting's:", ""]
        lines += table(("setting", *PARTS_HEADERS), "l" + "r" * len(PARTS_HEADERS), cells)
    return "\n".join(lines) + pictures_markdown(pictures, folder)
