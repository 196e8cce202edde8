"""Who came last, and by how much."""

import polars as pl
import pytest

from testbed.record.frames import ITERATION_SCHEMA
from testbed.verdict.stragglers import worker_summaries


def frame(ready_s: list[list[float]]) -> pl.DataFrame:
    rows = [
        dict.fromkeys(ITERATION_SCHEMA, 0)
        | {"rank": rank, "phase": "measured", "index": index, "start_s": 10.0 * index}
        | {"backward_compute_end_s": 10.0 * index + at_s, "backward_end_s": 10.0 * index + 5}
        | {"optimizer_end_s": 10.0 * index + 5.1, "slowdown": 1.0 + rank}
        for index, iteration in enumerate(ready_s)
        for rank, at_s in enumerate(iteration)
    ]
    return pl.DataFrame(rows, schema=ITERATION_SCHEMA)


def test_the_last_worker_has_held_up_the_others_by_what_it_came_later() -> None:
    first, second, third = worker_summaries(
        frame([[1.0, 1.2, 2.0], [1.0, 1.1, 1.5], [1.0, 1.4, 1.3], [1.0, 1.1, 1.1001]]), num_workers=3, dilation=1.0
    )
    assert (first.last_share, second.last_share, third.last_share) == (0, 0.25, 0.75)
    assert third.held_up_s == pytest.approx((0.8 + 0.4 + 0.0001) / 4)
    assert second.held_up_s == pytest.approx(0.1 / 4)
    assert first.held_up_s == 0
    assert third.slowdown_mean == 3
    assert second.compute_time_s == pytest.approx(1.15 + 0.1)


def test_iterations_that_not_everyone_finished_do_not_count() -> None:
    cut = frame([[1.0, 2.0], [1.0, 2.0]]).head(3)
    (_, second) = worker_summaries(cut, num_workers=2, dilation=2.0)
    assert second.held_up_s == pytest.approx(0.5)
    assert worker_summaries(cut.head(1), num_workers=2, dilation=1.0) == []
