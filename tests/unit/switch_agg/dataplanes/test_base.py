"""Every data plane is found by its file's name; those that are processes serve a job on loopback."""

from contextlib import closing

import pytest

from switch_agg.dataplanes.base import data_plane, data_planes
from switch_agg.errors import JobError
from switch_agg.job import Job


@pytest.mark.parametrize("kind", data_planes())
def test_a_file_is_a_data_plane_of_its_name(kind: str) -> None:
    plane = data_plane(kind)
    assert plane.kind == kind
    assert plane.__doc__
    assert isinstance(plane.problem(), str)
    assert plane.needs or not plane.in_kernel, "what a kernel must have is said"


@pytest.mark.parametrize("kind", [each for each in data_planes() if not data_plane(each).in_kernel])
def test_a_process_serves_jobs_and_forgets_them(kind: str) -> None:
    with closing(data_plane(kind).open(("127.0.0.1", 0), generation=1, epochs=None, program=None)) as plane:
        job = Job(workers=("127.0.0.2", "127.0.0.3"), num_slots=16)
        plane.configure(job)
        assert plane.jobs == (job,)
        assert plane.in_flight() == 0
        plane.remove(job.number)
        assert plane.jobs == ()
        plane.check()


def test_what_is_none_is_refused_with_what_there_is() -> None:
    with pytest.raises(JobError, match="'asic' is no data plane; allowed: ebpf, reference"):
        data_plane("asic")
