"""The machine and the queues, calculated manually."""

import math
from typing import Any

import numpy as np
import polars as pl
import pytest

from testbed.record.frames import BACKLOG_SCHEMA
from testbed.verdict.machine import (
    alone_wait_shares,
    backlog_summary,
    lengthened_share,
    machine_summary,
    other_load_share,
    run_queue_share,
)
from tests.rows import bucket, buckets, iteration, iterations, machine


def test_run_queue_share_is_of_exposed_communication_and_no_share_where_it_cannot_matter() -> None:
    rows = iterations(iteration(0, 10.0), iteration(1, 10.0), iteration(1, 1.0, "warmup"))
    assert run_queue_share(rows, num_workers=2, ranks=[0, 1]) == pytest.approx(0.2 / 6.0)
    assert run_queue_share(rows, num_workers=2, ranks=[1]) == pytest.approx(0.1 / 3.0)
    assert run_queue_share(rows, num_workers=2, ranks=[]) is None
    assert run_queue_share(iterations(), num_workers=2, ranks=[0, 1]) is None
    hidden = [iteration(rank, 10.0, backward_end_s=13.0, optimizer_end_s=13.5, end_s=13.75) for rank in range(2)]
    waited = [{**row, "communication_run_queue_delay_s": 0.03} for row in hidden]
    assert run_queue_share(iterations(*waited), num_workers=2, ranks=[0, 1]) == 0, "less than 1 % of 3.75 s"
    waited = [{**row, "communication_run_queue_delay_s": 0.05} for row in hidden]
    assert run_queue_share(iterations(*waited), num_workers=2, ranks=[0, 1]) == 1


def lengthened(bound_s: float, *, waited_s: float = 1.0, **changes: Any) -> float | None:
    """Two buckets, handed over 2 s before the last gradient and with it, that took 5 s and ended 3 s after it; each of
    two workers waited so long for a core."""
    rows = [iteration(rank, 10.0, communication_run_queue_delay_s=waited_s, **changes) for rank in range(2)]
    times = [
        bucket(rank, at_s, done_s) | {"sequence": sequence}
        for rank in range(2)
        for sequence, (at_s, done_s) in enumerate([(11.0, 13.5), (13.0, 16.0)])
    ]
    return lengthened_share(iterations(*rows), buckets(*times), num_workers=2, ranks=[0, 1], bound_s=bound_s)


def test_waiting_lengthens_communication_by_no_more_than_it_took_beyond_what_links_allow() -> None:
    assert lengthened(0.0) == pytest.approx(1 / 3), "of exposed communication, all of which may be the wait's"
    assert lengthened(2.0) == pytest.approx(1 / 3), "2 of 3 s are beyond the least"
    assert lengthened(4.8) == pytest.approx(0.2 / 3), "the first bucket hides 2 s of 2.4 s: 2.8 s had to be exposed"
    assert lengthened(4.95) == pytest.approx(0.05 / 5), (
        "0.05 of 6.75 s change no iteration, and are 1 % of communication"
    )
    assert lengthened(5.0) == 0, "as fast as links"
    assert lengthened(4.8, forward_stall_s=0.1) == pytest.approx(1 / 3.1), (
        "what is left may hide in the next forward pass"
    )
    assert lengthened(0.0, waited_s=0.06) == 0, "less than 1 % of 6.75 s"
    rows = iterations(iteration(0, 10.0), iteration(1, 10.0))
    assert lengthened_share(rows, buckets(), num_workers=2, ranks=[], bound_s=1.0) is None
    alone = lengthened_share(rows, buckets(), num_workers=2, ranks=[0], in_step=False, bound_s=9.0)
    assert alone == pytest.approx(0.1 / 3), "workers that do not wait for each other have no least in common"


def test_each_worker_waits_for_the_server_that_waited_longest() -> None:
    def share(serving_s: float, *, waited_s: float = 0.0, **changes: Any) -> float | None:
        rows = [iteration(rank, 10.0, communication_run_queue_delay_s=waited_s) for rank in range(2)]
        known: dict[str, Any] = {"num_workers": 2, "ranks": [0, 1], "bound_s": 1.0, **changes}
        return lengthened_share(iterations(*rows), buckets(bucket(0, 13.0, 16.0)), serving_s=serving_s, **known)

    assert share(0.3) == pytest.approx(0.3 / 3), "as if each worker had waited so long itself"
    assert share(0.3) == share(0.0, waited_s=0.3)
    assert share(0.3, ranks=[1]) == pytest.approx(0.3 / 3), "of those that are judged"
    assert share(0.3, in_step=False) == pytest.approx(0.3 / 3)
    assert share(2.9) == pytest.approx(2.0 / 3), "no more than what is beyond the least"
    assert share(0.06) == 0, "less than 1 % of 6.75 s"


def test_waiting_in_communication_that_computing_hides_lengthens_it_all_the_same() -> None:
    hidden: dict[str, Any] = {"backward_end_s": 13.0, "optimizer_end_s": 13.5, "end_s": 13.75}
    rows = [iteration(rank, 10.0, communication_run_queue_delay_s=0.5, **hidden) for rank in range(2)]
    times = buckets(*(bucket(rank, 10.5, 12.5) for rank in range(2)))

    def share(bound_s: float) -> float | None:
        return lengthened_share(iterations(*rows), times, num_workers=2, ranks=[0, 1], bound_s=bound_s)

    assert share(1.9) == pytest.approx(0.1 / 2)
    assert share(1.0) == pytest.approx(0.5 / 2)


def test_waiting_for_a_core_while_alone_by_rank() -> None:
    rows = [iteration(rank, 10.0, "compute_alone", run_queue_delay_s=0.675 * rank) for rank in range(2)]
    assert alone_wait_shares(iterations(*rows)) == pytest.approx({0: 0.0, 1: 0.1})


def test_other_load_is_what_the_workers_have_not_used() -> None:
    """From 11 s to 13 s all of 2 cores are busy: 4 s of CPU time out of 13 that were sampled."""
    rows = iterations(*(iteration(rank, 10.0, "compute_only", cpu_s=1.0) for rank in range(2)))
    own_s = 2 * 1.0 * 6 / 6.75  # of the time that was sampled, 10 to 16
    stolen = 3
    assert other_load_share(machine(), rows, phase="compute_only") == pytest.approx((400 - stolen - 100 * own_s) / 1200)
    busy = iterations(*(iteration(rank, 10.0, "compute_only", cpu_s=3.0) for rank in range(2)))
    assert other_load_share(machine(), busy, phase="compute_only") == 0
    assert other_load_share(machine(), rows, phase="compute_alone") is None
    assert other_load_share(machine()[:1], rows, phase="compute_only") is None


def test_the_machine_over_the_measured_window_as_calculated_manually() -> None:
    busy = (np.array([12.0]), np.array([15.0]))
    summary = machine_summary(machine(), (10.0, 16.75), busy)
    assert summary is not None
    assert summary.saturated_share == pytest.approx(1 / 3)  # 12 to 13 of 12 to 15
    assert summary.softnet_drops * 2 == summary.softnet_squeezes == 2 * 6
    assert machine_summary(machine()[:1], (10.0, 16.75), busy) is None
    assert machine_summary(machine(), None, busy) is None


def test_backlog_probes_sum_up_and_those_out_of_line_are_not_held() -> None:
    rows = [
        {
            "at_s": 1.0,
            "link": "l",
            "node": "n",
            "elapsed_s": 0.02,
            "backlog_bytes": 9,
            "sent_bytes": sent,
            "due_bytes": 2e5,
        }
        for sent in (200_000, 140_000, 50_000)
    ]
    summary = backlog_summary(pl.DataFrame(rows, schema=dict(BACKLOG_SCHEMA)), granule_bytes=68_000)
    assert summary is not None
    assert (summary.num_probes, summary.sent_bytes, summary.due_bytes) == (3, 390_000, 6e5)
    assert summary.held_share == pytest.approx(2 / 3)
    assert summary.chance == pytest.approx(3 * 68_000 / math.sqrt(6) * math.sqrt(3) / 6e5)
    assert backlog_summary(pl.DataFrame(schema=dict(BACKLOG_SCHEMA)), granule_bytes=1514) is None
