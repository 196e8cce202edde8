"""The machine and the queues, by hand."""

import math

import polars as pl
import pytest

from testbed.record.frames import BACKLOG_SCHEMA
from testbed.verdict.machine import backlog_summary, machine_summary, run_queue_share
from tests.rows import bucket, buckets, iteration, iterations, machine


def test_run_queue_share_counts_overlapping_buckets_once() -> None:
    frame = buckets(
        bucket(0, 12.0, 15.0), bucket(0, 13.0, 16.0), bucket(1, 12.0, 13.0), bucket(1, 0.0, 9.0, phase="warmup")
    )
    rows = iterations(iteration(0, 10.0), iteration(1, 10.0), iteration(1, 1.0, "warmup"))
    assert run_queue_share(rows, frame) == pytest.approx(0.2 / 5.0)
    assert run_queue_share(rows, buckets()) is None


def test_the_machine_over_the_measured_window_by_hand() -> None:
    summary = machine_summary(machine(), iterations(iteration(0, 10.0)), buckets(bucket(0, 12.0, 15.0)))
    assert summary is not None
    end_s = iterations(iteration(0, 10.0))["end_s"].max()
    assert summary.saturated_share == pytest.approx(1 / 3)  # 12 to 13 of 12 to 15
    assert summary.softnet_drops * 2 == summary.softnet_squeezes == 2 * (int(end_s) - 10)  # type: ignore[arg-type]
    assert machine_summary(machine()[:1], iterations(iteration(0, 10.0)), buckets()) is None


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
