"""Rows say what holds and against which bar; an unknown name says which there are."""

import io
import math

import pytest
from rich.console import Console

from testbed.errors import SpecError
from testbed.targets import jain_index, quietly, render_targets, row_text, target_row, target_rows


def test_jains_index_is_one_for_equals_and_a_share_where_one_has_all() -> None:
    assert jain_index([5e6, 5e6, 5e6]) == pytest.approx(1.0)
    assert jain_index([8e6, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def test_a_bar_is_an_upper_or_a_lower_one() -> None:
    assert target_row("error", 0.004, 0.005, {})["holds"]
    assert not target_row("error", 0.006, 0.005, {})["holds"]
    assert target_row("total", 18.9, 18.0, {}, at_least=True)["holds"]
    assert not target_row("total", 17.9, 18.0, {}, at_least=True)["holds"]
    assert not target_row("error", math.nan, 0.005, {})["holds"]
    assert target_row("CPU", 2.0, None, {})["holds"] is None


def test_a_row_in_words_and_in_a_table() -> None:
    rows = [
        target_row("total", 17.9, 18.0, {"steal_share": 0.1}, at_least=True),
        target_row("error", 0.001, 0.005, {}),
        target_row("CPU", 2.0, None, {}),
    ]
    assert row_text(rows[0]) == "total: 17.9 (at least 18): NO"
    assert row_text(rows[2]) == "CPU: 2"
    stream = io.StringIO()
    render_targets(rows, Console(file=stream, width=100))
    assert ">= 18" in stream.getvalue()
    assert "<= 0.005" in stream.getvalue()


def test_an_unknown_benchmark_names_those_there_are() -> None:
    benchmarks = {"rate": lambda: iter([target_row("rate", 1.0, 2.0, {})]), "delay": lambda: iter([])}
    with pytest.raises(SpecError, match="--only nonesuch: allowed: rate, delay"):
        target_rows(benchmarks, ["rate", "nonesuch"])
    told: list[object] = []
    assert target_rows(benchmarks, ["rate"], on_row=told.append) == told
    assert [row["what"] for row in target_rows(benchmarks)] == ["rate"]


def test_a_quiet_sample_is_taken_once_with_what_the_cores_did() -> None:
    taken: list[int] = []
    value, facts = quietly(lambda: taken.append(1) or len(taken))
    assert value == len(taken)
    assert facts.keys() == {"steal_share", "busy_share"}
