"""Rows say what holds and against which bar; an unknown name says which there are."""

import io

import pytest
from rich.console import Console

from testbed.errors import SpecError
from testbed.link_benchmarks import BENCHMARKS, _quietly, _row, render_targets, row_text, target_rows


def test_a_bar_is_an_upper_or_a_lower_one() -> None:
    assert _row("error", 0.004, 0.005, {})["holds"]
    assert not _row("error", 0.006, 0.005, {})["holds"]
    assert _row("total", 18.9, 18.0, {}, at_least=True)["holds"]
    assert not _row("total", 17.9, 18.0, {}, at_least=True)["holds"]
    assert not _row("error", float("nan"), 0.005, {})["holds"]


def test_a_row_in_words_and_in_a_table() -> None:
    rows = [_row("total", 17.9, 18.0, {"steal_share": 0.1}, at_least=True), _row("error", 0.001, 0.005, {})]
    assert row_text(rows[0]) == "total: 17.9 (at least 18): NO"
    stream = io.StringIO()
    render_targets(rows, Console(file=stream, width=100))
    assert ">= 18" in stream.getvalue()
    assert "<= 0.005" in stream.getvalue()


def test_an_unknown_benchmark_names_those_there_are() -> None:
    with pytest.raises(SpecError, match=rf"--only nonesuch: allowed: {', '.join(BENCHMARKS)}"):
        target_rows(["rate", "nonesuch"])


def test_a_quiet_sample_is_taken_once_with_what_the_cores_did() -> None:
    taken: list[int] = []
    value, facts = _quietly(lambda: taken.append(1) or len(taken))
    assert value == len(taken)
    assert facts.keys() == {"steal_share", "busy_share"}
