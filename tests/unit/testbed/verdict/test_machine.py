"""The machine and the queues, calculated manually."""

import math

import numpy as np
import polars as pl
import pytest

from testbed.record.frames import BACKLOG_SCHEMA
from testbed.verdict.machine import (
    alone_wait_shares,
    backlog_summary,
    machine_summary,
)
from tests.rows import iteration, iterations, machine


def test_waiting_for_a_core_while_alone_by_rank() -> None:
    rows = [iteration(rank, 10.0, "compute_alone", run_queue_delay_s=0.675 * rank) for rank in range(2)]
    assert alone_wait_shares(iterations(*rows)) == pytest.approx({0: 0.0, 1: 0.1})


def test_the_machine_over_the_measured_window_as_calculated_manually() -> None:
    busy = (np.array([12.0]), np.array([15.0]))
    summary = machine_summary(machine(), (10.0, 16.75), busy, others_share=0.25)
    assert summary is not None
    assert summary.others_share == 0.25
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
