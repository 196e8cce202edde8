from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.record.frames import CHANGE_SCHEMA
from testbed.verdict.changes import RateHistory, change_notes, changed_directions, summarize_changes


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    plain = {"link": "w1-s0", "node": "w1", "to": "s0", "setting": "rate", "before": "100mbit", "after": "50mbit"}
    filled = [plain | {"at_s": 0.0, "rate_bps": 50e6, "source": "schedule"} | row for row in rows]
    return pl.DataFrame(filled, schema=CHANGE_SCHEMA)


def history(*steps: tuple[float, float]) -> RateHistory:
    rows = frame(*({"at_s": at_s, "rate_bps": rate_bps} for at_s, rate_bps in steps))
    return RateHistory(rows, link="w1-s0", node="w1", rate_bps=100e6)


def test_without_changes_a_link_carries_its_rate_times_the_time() -> None:
    assert history().mean_bps(np.array([3.0]), np.array([8.0])) == 100e6
    assert list(history().bits(np.array([0.0, 5.0]), np.array([1.0, 7.0]))) == [100e6, 200e6]


def test_another_direction_of_the_link_does_not_count() -> None:
    rows = frame({"at_s": 1.0, "node": "s0", "rate_bps": 1e6})
    assert RateHistory(rows, link="w1-s0", node="w1", rate_bps=2e6).mean_bps(np.array([0.0]), np.array([9.0])) == 2e6


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(1e6, 1e10)), max_size=12, unique_by=lambda step: step[0]),
    st.floats(-10, 110),
    st.floats(0, 50),
)
def test_bits_are_the_integral_of_the_rate(steps: list[tuple[float, float]], start_s: float, length_s: float) -> None:
    edges = sorted({start_s, start_s + length_s, *(at for at, _ in steps if start_s < at < start_s + length_s)})
    expected = 0.0
    for begin, end in pairwise(edges):
        in_force = [rate for at, rate in sorted(steps) if at <= begin] or [100e6]
        expected += in_force[-1] * (end - begin)
    (found,) = history(*sorted(steps)).bits(np.array([start_s]), np.array([start_s + length_s]))
    assert found == pytest.approx(expected, rel=1e-6, abs=1e4)


def test_both_directions_changed_at_once_are_one_line() -> None:
    rows = frame(
        {"at_s": 12.0},
        {"at_s": 12.001, "node": "s0", "to": "w1"},
        {"at_s": 14.0, "setting": "carrier", "before": "up", "after": "down", "source": "manual"},
    )
    first, second = summarize_changes(rows, origin_s=10.0, dilation=2.0)
    assert (first.at_s, first.links, first.before, first.after) == (1.0, "w1 ↔ s0", "100mbit", "50mbit")
    assert (second.at_s, second.links, second.source) == (2.0, "w1 → s0", "manual")


def test_a_trace_is_one_line_however_many_steps_it_has() -> None:
    rows = [{"at_s": float(at), "source": "trace", "after": f"{at + 1}mbit"} for at in range(50)]
    rows += [row | {"node": "s0", "to": "w1"} for row in rows]
    (change,) = summarize_changes(frame(*rows), origin_s=0.0, dilation=1.0)
    assert (change.num_steps, change.links, change.after) == (50, "w1 ↔ s0", "50mbit")


def test_the_same_change_made_twice_is_two_lines() -> None:
    rows = frame({"at_s": 1.0}, {"at_s": 1.2})
    assert len(summarize_changes(rows, origin_s=0.0, dilation=1.0)) == 2


def test_directions_that_changed_are_reported_once() -> None:
    rows = frame({"setting": "carrier"}, {"setting": "rate"}, {"node": "s0", "setting": "rate"})
    assert changed_directions(rows) == {("w1-s0", "w1"), ("w1-s0", "s0")}


def test_the_verdict_names_what_was_done_manually() -> None:
    assert change_notes(frame()) == []
    (note,) = change_notes(frame({}))
    assert "for what they were at its start" in note
    assert "changed manually (w1-s0)" in change_notes(frame({"source": "manual"}))[1]
