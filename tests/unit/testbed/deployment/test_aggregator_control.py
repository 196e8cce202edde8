"""A run's aggregators as people see them from another terminal."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from switch_agg.aggregator import Counters, Stragglers
from switch_agg.control.service import ControlClient
from switch_agg.errors import JobError, UnsupportedError
from switch_agg.faults import Faults
from switch_agg.job import Job
from switch_agg.status import JobStatus, Status
from testbed.deployment.aggregator_control import controlled, sockets
from testbed.errors import RunFailedError

JOB = Job(workers=("10.0.0.1", "10.0.0.2"))


class FakeAggregator:
    plan = SimpleNamespace(name="a0", title="aggregator a0 at s0 (ebpf)")

    def __init__(self) -> None:
        self.epoch = 3
        self.alive = True

    def status(self) -> Status | None:
        job = JobStatus(job=JOB, epoch=self.epoch, stragglers=Stragglers(gaps=(0,) * 32, last=(0, 0)))
        counters = dict.fromkeys(Counters.__slots__, 0)
        status = Status(
            dataplane="ebpf", address="", jobs=(job,), counters=counters, in_flight=0, violations=(), uptime_s=1.0
        )
        return status if self.alive else None

    def reset(self, number: int) -> None:
        if number != 0:
            raise RunFailedError(f"job {number} is not being served")
        self.epoch += 1


def test_it_is_looked_at_and_reset_and_the_rest_is_the_run_s(tmp_path: Path) -> None:
    directory = tmp_path / "r1"
    directory.mkdir()
    aggregator: Any = FakeAggregator()
    with controlled([aggregator], directory):
        (path,) = sockets("r1", root=tmp_path)
        with ControlClient(path) as client:
            assert client.status().jobs[0].epoch == 3
            assert client.reset(0) == 4
            with pytest.raises(JobError, match="job 1 is not being served"):
                client.reset(1)
            with pytest.raises(JobError, match=r"collective\.tenants"):
                client.configure(JOB)
            with pytest.raises(JobError, match="switch-agg reset"):
                client.remove(0)
            with pytest.raises(JobError, match=r"link\.loss"):
                client.inject(Faults())
            aggregator.alive = False
            with pytest.raises(UnsupportedError, match=r"a0 at s0 .* has ended"):
                client.status()
    assert sockets("r1", root=tmp_path) == []
