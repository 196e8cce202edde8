"""A worker of another job: reduces until it is stopped, checks every sum, and outlives the switch."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from switch_agg.dataplanes.reference import ReferenceDataPlane
from switch_agg.job import Job
from switch_agg.wire import PORTS
from testbed.worker.tenant import Tenant, TenantConfiguration, contribution
from tests.loopback import own_address

ADDRESS = own_address(0)
JOBS = tuple(
    Job(number=number, workers=hosts, num_elements=64, first_slot=8 * number, num_slots=8)
    for number, hosts in enumerate([(own_address(1),), ("127.0.0.1",)])
)


@pytest.fixture
def plane() -> Iterator[ReferenceDataPlane]:
    made = ReferenceDataPlane((ADDRESS, PORTS.start), generation=1)
    for job in JOBS:
        made.configure(job)
    yield made
    made.close()


def configuration(tmp_path: Path) -> TenantConfiguration:
    return TenantConfiguration(
        job=JOBS[1], index=0, aggregator=ADDRESS, size_bytes=4000, report_path=tmp_path / "tenant"
    )


def until(condition: object) -> None:
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it does not come true")


def test_it_reduces_until_it_is_stopped_and_its_sums_are_right(plane: ReferenceDataPlane, tmp_path: Path) -> None:
    tenant = Tenant(configuration(tmp_path))
    until(lambda: tenant.report.reductions > 3)
    report = tenant.stop()
    assert (report.wrong, report.failure) == (0, None)
    assert report.chunks_sent >= 16 * report.reductions
    assert plane.counters().violations(plane.in_flight()) == []


def test_a_wrong_sum_is_noticed(plane: ReferenceDataPlane, tmp_path: Path) -> None:
    tenant = Tenant(configuration(tmp_path))
    tenant._expected = tenant._expected + 1
    until(lambda: tenant.report.wrong > 0)
    tenant.stop()
    assert plane.counters().bad == 0


def test_when_the_switch_forgets_it_the_load_ends_and_says_why(plane: ReferenceDataPlane, tmp_path: Path) -> None:
    tenant = Tenant(configuration(tmp_path))
    until(lambda: tenant.report.reductions > 0)
    plane.reset(1)
    until(lambda: tenant.report.failure)
    assert "epoch" in (tenant.stop().failure or "")


def test_as_a_process_it_writes_its_report_when_it_is_ordered_to_stop(
    plane: ReferenceDataPlane, tmp_path: Path
) -> None:
    requested = configuration(tmp_path)
    words = [sys.executable, "-m", "testbed.worker.tenant", requested.model_dump_json()]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        until(lambda: plane.counters().done > 32)
        process.stdin.write("stop\n")
        process.stdin.flush()
        assert process.stdout.readline() == "changed stop\n"
        report = json.loads(requested.report_path.read_text())
        assert report["reductions"] > 0
        assert (report["wrong"], report["failure"]) == (0, None)
        process.stdin.close()
        assert process.wait(10) == 0


def test_what_is_added_is_exact_in_floats_and_differs_by_worker() -> None:
    values = np.stack([contribution(index, 5000) for index in range(32)])
    assert np.array_equal(values.sum(axis=0, dtype=np.float64), values.sum(axis=0, dtype=np.float32))
    assert len({row.tobytes() for row in values}) == 32
