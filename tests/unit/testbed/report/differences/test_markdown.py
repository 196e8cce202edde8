"""The Markdown of compared settings has what the page has."""

from pathlib import Path

from testbed.report.differences.page import write_compared
from testbed.report.terminal.results import sentences
from testbed.store.compare import compare
from tests.compared_runs import modelled_runs

SETTINGS = (("ring", 100e6), ("tree", 92e6), ("halving", 100e6))


def test_the_markdown_has_every_setting_and_where_the_difference_is(tmp_path: Path) -> None:
    compared = compare(modelled_runs(tmp_path / "runs", SETTINGS, repeat=2))
    page = write_compared(compared, tmp_path / "compared.html")
    text = page.with_suffix(".md").read_text(encoding="utf-8")
    assert text.startswith("# quickstart: 3 settings compared\n")
    assert all(sentence in text for sentence in sentences(compared))
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tables) == 2 * (2 + 3)
    assert {line.count("|") for line in tables[:5]} == {8}
    assert "| exposed communication |" in tables[5]
    assert "![differences](compared-figures/differences.svg)" in text
