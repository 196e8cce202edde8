"""Who came last, and by how much."""

from dataclasses import replace

import polars as pl
import pytest

from testbed.record.frames import ITERATION_SCHEMA
from testbed.verdict.facts import End
from testbed.verdict.scaling import Alone
from testbed.verdict.stragglers import worker_summaries
from tests.facts import facts


def frame(ready_s: list[list[float]]) -> pl.DataFrame:
    rows = [
        dict.fromkeys(ITERATION_SCHEMA, 0)
        | {"rank": rank, "phase": "measured", "index": index, "start_s": 10.0 * index}
        | {"data_end_s": 10.0 * index + 0.1, "host_to_device_end_s": 10.0 * index + 0.1, "end_s": 10.0 * index + 6}
        | {"backward_compute_end_s": 10.0 * index + at_s, "backward_end_s": 10.0 * index + 5}
        | {"optimizer_end_s": 10.0 * index + 5.1, "slowdown": 1.0 + rank}
        for index, iteration in enumerate(ready_s)
        for rank, at_s in enumerate(iteration)
    ]
    return pl.DataFrame(rows, schema=ITERATION_SCHEMA)


def test_the_last_worker_has_delayed_the_others_by_what_it_came_later() -> None:
    rows = frame([[1.0, 1.2, 2.0], [1.0, 1.1, 1.5], [1.0, 1.4, 1.3], [1.0, 1.1, 1.1001]])
    alone = {2: Alone(num_iterations=8, overrun_share=0.0, iteration_s=1.0, computing_s=0.9, contention=1.01)}
    first, second, third = worker_summaries(facts(iterations=rows, num_workers=3), alone)
    assert (first.last_share, second.last_share, third.last_share) == (0, 0.25, 0.75)
    assert third.straggler_wait_s == pytest.approx((0.8 + 0.4 + 0.0001) / 4)
    assert second.straggler_wait_s == pytest.approx(0.1 / 4)
    assert first.straggler_wait_s == 0
    assert third.slowdown_mean == 3
    assert second.compute_time_s == pytest.approx((1.2 + 1.1 + 1.4 + 1.1) / 4 - 0.1)
    assert (third.compute_alone_s, third.compute_contention) == (0.9, 1.01)
    assert first.compute_alone_s is first.compute_contention is None


def test_iterations_that_not_everyone_finished_do_not_count() -> None:
    cut = frame([[1.0, 2.0], [1.0, 2.0]]).head(3)
    (_, second) = worker_summaries(facts(iterations=cut, dilation=2.0), {})
    assert second.straggler_wait_s == pytest.approx(0.5)
    assert worker_summaries(facts(iterations=cut.head(1)), {}) == []


def test_a_straggler_of_local_sgd_is_waited_for_once_a_round() -> None:
    """By then it is late by all that it lost in the round; in a last round that is shorter, too."""
    rows = frame([[0.5, 1.0], [1.0, 2.0], [1.5, 3.0], [2.0, 4.0], [0.5, 1.5]])
    known = facts(iterations=rows, exchanges_always=False, exchange_every=4)
    first, second = worker_summaries(known, {})
    assert second.straggler_wait_s == pytest.approx((2.0 + 1.0) / 5)
    assert (first.last_share, second.last_share) == (0, 1)
    (_, cut) = worker_summaries(replace(known, end=End("failed", "w1 was killed")), {})
    assert cut.straggler_wait_s == pytest.approx(2.0 / 5), "the round in which it ended was not exchanged"


def test_nobody_waits_for_workers_that_go_on_without_each_other() -> None:
    rows = frame([[0.5, 1.0], [1.0, 2.0]])
    for worker in worker_summaries(facts(iterations=rows, exchanges_always=False, in_step=False), {}):
        assert (worker.straggler_wait_s, worker.last_share) == (0, 0)
