"""Whether computing kept its pace: counted over the measured iterations, each as late as its latest worker."""

import polars as pl
import pytest

from testbed.record.frames import ITERATION_SCHEMA
from testbed.verdict.pace import pace_summary


def iterations(late_s: list[tuple[float, float]], *, pace_s: float = 0.1, phase: str = "measured") -> pl.DataFrame:
    """By how much the gradients of two workers were late."""
    rows = [
        {"rank": rank, "phase": phase, "index": index, "pace_s": pace_s, "overrun_s": late}
        for index, both in enumerate(late_s)
        for rank, late in enumerate(both)
    ]
    return pl.DataFrame(rows, schema={name: ITERATION_SCHEMA[name] for name in rows[0]})


def test_an_iteration_overruns_where_any_worker_is_late_by_more_than_two_percent() -> None:
    pace = pace_summary(iterations([(0.0, 0.001), (0.003, 0.0), (0.0, 0.01), (0.0019, 0.0019)]), dilation=1)
    assert pace is not None
    assert (pace.num_iterations, pace.num_overrun) == (4, 2)
    assert pace.overrun_share_mean == pytest.approx((0.01 + 0.03 + 0.1 + 0.019) / 4)
    assert (pace.pace_s, pace.overrun_max_s) == pytest.approx((0.1, 0.01))


def test_times_are_virtual_and_shares_are_of_either_clock() -> None:
    pace = pace_summary(iterations([(0.3, 0.0)], pace_s=10.0), dilation=100)
    assert pace is not None
    assert (pace.pace_s, pace.overrun_max_s, pace.overrun_share_mean) == pytest.approx((0.1, 0.003, 0.03))


def test_without_a_pace_there_is_nothing_to_say() -> None:
    assert pace_summary(iterations([(0.0, 0.0)], pace_s=0.0), dilation=1) is None
    assert pace_summary(iterations([(0.5, 0.5)], phase="warmup"), dilation=1) is None
