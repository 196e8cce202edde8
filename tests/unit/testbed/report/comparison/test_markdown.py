"""The Markdown of a sweep has its answer, every point, and what to know of them."""

from collections.abc import Callable
from pathlib import Path

from testbed.record.reader import Record
from testbed.report.comparison.answer import answer
from testbed.report.comparison.markdown import sweep_markdown
from testbed.report.comparison.points import Comparison
from tests.compared import compared_point


def test_every_point_is_a_row(record: Callable[..., Record], tmp_path: Path) -> None:
    made = record().summary.model_copy(update={"outcome": "degraded", "reasons": ["cores were busy:\n# top <b>"]})
    points = tuple(compared_point({"link.rate": rate}, *runs) for rate, runs in (("100mbit", (made,)), ("1gbit", ())))
    comparison = Comparison(name="rates", axes=(("link.rate",),), points=points, directory=tmp_path)
    text = sweep_markdown(comparison, None, [tmp_path / "sweep-figures" / "iteration.svg"])
    assert text.startswith("# rates\n")
    for sentence in answer(comparison):
        assert sentence in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 2
    assert len({row.count("|") for row in rows}) == 1
    assert rows[2].startswith("| 100mbit |")
    assert rows[3].endswith("| not run |")
    assert "- link.rate=100mbit: degraded: cores were busy: # top \\<b>" in text
    assert "![iteration](sweep-figures/iteration.svg)" in text
