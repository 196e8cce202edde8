import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from switch_agg.control.service import ControlClient, job_message, job_of, served
from switch_agg.dataplanes.reference import ReferenceDataPlane
from switch_agg.errors import JobError, UnsupportedError
from switch_agg.faults import FaultRates, Faults
from switch_agg.job import Job
from switch_agg.status import status_of

JOB = Job(workers=("10.0.0.1", "10.0.0.2"), num_slots=8, straggler_timeout_s=0.5)


@pytest.fixture
def plane() -> Iterator[ReferenceDataPlane]:
    found = ReferenceDataPlane(("127.0.0.1", 0), generation=1)
    yield found
    found.close()


def test_an_aggregator_is_configured_inspected_and_reset(plane: ReferenceDataPlane, tmp_path: Path) -> None:
    path = tmp_path / "agg.sock"

    def status():  # type: ignore[no-untyped-def]
        return status_of(plane, name="reference", address=plane.address, since_s=0.0)

    with served(plane, path, status), ControlClient(path) as client:
        assert path.stat().st_mode & 0o777 == 0o660
        client.configure(JOB)
        with pytest.raises(JobError, match="job 0 is being served"):
            client.configure(JOB)
        client.inject(Faults(up=FaultRates(loss=0.5)))
        [first] = [each.epoch for each in client.status().jobs]
        assert client.reset(0) == (first + 1) % 2**32
        found = client.status()
        assert [(each.job, each.epoch) for each in found.jobs] == [(JOB, (first + 1) % 2**32)]
        assert found.counters["rx"] == found.in_flight == 0
        assert found.violations == ()
        client.remove(0)
        with pytest.raises(JobError, match="not being served"):
            client.reset(0)
    assert not path.exists()
    with ControlClient(path) as client, pytest.raises(UnsupportedError, match="switch-agg serve --control"):
        client.status()


@pytest.mark.parametrize("job", [JOB, Job(workers=("a",), parent="b", parent_index=3), Job(workers=("a",), number=7)])
def test_jobs_survive_the_wire(job: Job) -> None:
    assert job_of(job_message(job)) == job


def test_an_aggregator_that_takes_no_connections_keeps_its_socket(plane: ReferenceDataPlane, tmp_path: Path) -> None:
    """One that is stopped, say: whoever wanted to serve there waited for it."""
    path = tmp_path / "agg.sock"

    def status():  # type: ignore[no-untyped-def]
        return status_of(plane, name="reference", address=plane.address, since_s=0.0)

    with socket.socket(socket.AF_UNIX) as stopped, socket.socket(socket.AF_UNIX) as waiting:
        stopped.bind(str(path))
        stopped.listen(0)
        waiting.connect(str(path))
        with pytest.raises(UnsupportedError, match="another aggregator is served there"), served(plane, path, status):
            pass
    assert path.is_socket()
