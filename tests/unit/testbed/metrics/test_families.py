"""The table of metrics and its twin in the documentation."""

from pathlib import Path

from testbed.metrics.families import FAMILIES, Family, max_series

DOCUMENT = Path(__file__).parents[4] / "docs" / "metrics.md"


def row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels) or "—"
    return f"| `{family.name}` | {family.kind} | {labels} | {family.text} | {family.source} |"


def test_the_documentation_has_every_metric_and_no_other() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `testbed_")]
    assert rows == [row(family) for family in FAMILIES]


def test_the_documentation_says_how_many_series_there_are() -> None:
    text = DOCUMENT.read_text()
    assert f"4 workers has at most {max_series(8, 4)}, one of 64 workers {max_series(128, 64)}" in text
    assert f"and full queues {max_series(128, 64) - 7 * 128}" in text.replace("\n", " ")
