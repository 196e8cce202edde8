"""The path has no gaps, ends where the iteration ends, and goes through whoever was late."""

import itertools
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.record.reader import Record
from testbed.report import plots
from testbed.report.critical_path import critical_path


def iteration(rank: int, *, ready_s: float, reduced_s: float, **changes: float) -> dict[str, Any]:
    moments = {"start_s": 10.0, "host_to_device_end_s": 10.1, "forward_end_s": 11.0, "forward_stall_s": 0.0}
    ends = {"backward_compute_end_s": ready_s, "backward_end_s": reduced_s, "optimizer_end_s": reduced_s + 0.2}
    return {"rank": rank, **moments, **ends, "end_s": reduced_s + 0.3, **changes}


def bucket(rank: int, sequence: int, enqueued_s: float, started_s: float, done_s: float) -> dict[str, Any]:
    return {"rank": rank, "sequence": sequence, "enqueued_s": enqueued_s, "started_s": started_s, "done_s": done_s}


def path(iterations: list[dict[str, Any]], buckets: list[dict[str, Any]]) -> list[tuple[str, float]]:
    steps = critical_path(pl.DataFrame(iterations), pl.DataFrame(buckets))
    for one, other in itertools.pairwise(steps):
        assert one.end_s == other.begin_s, "no gaps"
    assert steps[-1].end_s == max(row["end_s"] for row in iterations)
    return [(step.what, round(step.end_s - step.begin_s, 6)) for step in steps]


def test_buckets_that_follow_each_other_are_one_step_after_whoever_handed_the_first_over_last() -> None:
    found = path(
        [iteration(0, ready_s=12.0, reduced_s=16.0), iteration(1, ready_s=12.5, reduced_s=15.9)],
        [
            *(bucket(rank, 6, 11.5 + rank, 11.5 + rank, 14.0) for rank in (0, 1)),
            *(bucket(rank, 7, 12.0 + 0.5 * rank, 14.0, 16.0 - 0.1 * rank) for rank in (0, 1)),
        ],
    )
    assert found == [
        ("w1: data", 0.1), ("w1: forward", 0.9), ("w1: backward", 1.5), ("buckets 0 to 1 in service", 3.5),
        ("w0: optimizer", 0.2), ("w0: bookkeeping", 0.1),
    ]  # fmt: skip


def test_a_bucket_that_was_handed_over_after_the_one_before_it_had_gone_through_begins_the_exchange() -> None:
    found = path(
        [iteration(0, ready_s=14.0, reduced_s=15.0), iteration(1, ready_s=13.0, reduced_s=15.0)],
        [
            bucket(rank, number, at_s, at_s, at_s + 1)
            for rank in (0, 1)
            for number, at_s in ((0, 11.5), (1, 14.0 - rank))
        ],
    )
    assert ("bucket 1 in service", 1.0) in found
    assert ("w0: backward", 3.0) in found


def test_where_all_was_hidden_the_path_is_the_slowest_workers() -> None:
    found = path(
        [iteration(0, ready_s=14.0, reduced_s=14.0), iteration(1, ready_s=12.0, reduced_s=12.0)],
        [bucket(rank, 0, 11.5, 11.5, 11.8) for rank in (0, 1)],
    )
    assert [what for what, _ in found] == [
        "w0: data", "w0: forward", "w0: backward", "w0: optimizer", "w0: bookkeeping"
    ]  # fmt: skip


def test_there_is_none_where_nothing_was_exchanged_or_the_cause_lies_before() -> None:
    row = iteration(0, ready_s=12.0, reduced_s=12.0)
    one = pl.DataFrame([bucket(0, 0, 11.5, 11.5, 11.8)])
    assert critical_path(pl.DataFrame([row]), one.clear()) == []
    assert critical_path(pl.DataFrame([row]).clear(), one) == []
    assert critical_path(pl.DataFrame([{**row, "forward_stall_s": 0.1}]), one) == []


@given(st.data())
def test_whatever_happened_the_path_covers_the_iteration(data: st.DataObject) -> None:
    draw = data.draw
    numbers = st.floats(0, 3)
    num_workers, num_buckets = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    rows, buckets = [], []
    for rank in range(num_workers):
        done_s, ready_s = 0.0, 11.0 + draw(numbers)
        for number in range(num_buckets):
            enqueued_s = 11.0 + draw(numbers)
            started_s = enqueued_s + draw(numbers)
            done_s = max(done_s, started_s + draw(numbers))
            buckets.append(bucket(rank, number, enqueued_s, started_s, done_s))
        rows.append(
            iteration(rank, ready_s=ready_s, reduced_s=max(ready_s, done_s) + draw(st.sampled_from([0.0, 0.1])))
        )
    found = path(rows, buckets)
    assert sum(length for _, length in found) == pytest.approx(max(row["end_s"] for row in rows) - 10.0, abs=1e-4)


def test_of_a_run_it_lasts_as_long_as_its_median_iteration(record: Callable[..., Record]) -> None:
    for dilation in (1.0, 10.0):
        loaded = record(num_iterations=9, dilation=dilation)
        steps = plots.critical_path(loaded)
        assert steps[0].begin_s == 0
        assert loaded.summary.iteration_time_s is not None
        assert steps[-1].end_s == pytest.approx(loaded.summary.iteration_time_s.median, rel=0.05)
        assert "buckets 0 to 3 in service" in [step.what for step in steps]
        for each in loaded.path.iterdir():
            if each.is_file():
                each.unlink()
