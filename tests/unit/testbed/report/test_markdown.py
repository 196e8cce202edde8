"""The Markdown of a run says what its summary says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.record.number_text import time_text
from testbed.record.reader import Record
from testbed.report.markdown import plain, run_markdown, table


def test_it_says_what_the_summary_says(record: Callable[..., Record], tmp_path: Path) -> None:
    summary = record(outcome="degraded", reasons=["the | hypervisor"], notes=["a_b_"]).summary
    text = run_markdown(summary, [tmp_path / "f" / "a.svg", tmp_path / "f" / "a.png"], tmp_path)
    assert text.startswith(f"# {summary.name}\n")
    assert "**DEGRADED**" in text
    assert "- the \\| hypervisor\n- note: a_b\\_\n" in text
    assert summary.iteration_time_s is not None
    assert f"| iteration | {time_text(summary.iteration_time_s.mean)} |" in text
    took = summary.allreduce
    assert took is not None
    assert f"| All-reduce, predicted | {time_text(took.predicted_s)} | the cost model's prediction, " in text
    for link in summary.links:
        assert f"| {link.from_} → {link.to} |" in text
        assert f"| {link.bytes:,} |" in text
    assert text.endswith("![a](f/a.svg)\n")
    assert "None" not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {4, 9}, "every table's rows have its columns"


def test_a_run_that_failed_early_has_its_reason_alone(record: Callable[..., Record], tmp_path: Path) -> None:
    nothing = {"iteration_time_s": None, "prediction": None, "scaling_factor": None, "network_efficiency": None}
    more = {"samples_per_s": None, "allreduce": None, "loss": None, "links": [], "reasons": ["w1 was killed"]}
    summary = record().summary.model_copy(update={**nothing, **more, "outcome": "failed"})
    text = run_markdown(summary, [], tmp_path)
    assert "- w1 was killed" in text
    assert "w0" not in text


def test_a_withheld_time_is_a_dash_with_its_reason(record: Callable[..., Record], tmp_path: Path) -> None:
    summary = record().summary
    assert summary.allreduce is not None
    withheld = summary.allreduce.model_copy(update={"time_s": None, "missing": "too much waiting"})
    links = [link.model_copy(update={"utilization_busy": None}) for link in summary.links]
    text = run_markdown(summary.model_copy(update={"allreduce": withheld, "links": links}), [], tmp_path)
    assert "withheld: too much waiting; the bound of the task is" in text
    assert "None" not in text


def test_a_cell_cannot_end_its_row() -> None:
    assert table(("a", "b"), "lr", [("x|y\nz", "1")]) == ["| a | b |", "| --- | ---: |", "| x\\|y z | 1 |", ""]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("w0 ended: Traceback\n# Heading\n  <img src=x>", "w0 ended: Traceback # Heading \\<img src=x>"),
        ("# a", "\\# a"),
        ("- a", "\\- a"),
        ("-5 % of top_k, a-b #1", "-5 % of top_k, a-b #1"),
        ("__init__ *a* `b` &lt; [c](d) [e]", r"\_\_init\_\_ \*a\* \`b\` \&lt; [c\](d) [e]"),
    ],
)
def test_text_of_others_is_shown_as_it_is(text: str, shown: str) -> None:
    assert plain(text) == shown
