from dataclasses import replace

import pytest

from switch_agg import clock
from switch_agg.aggregator import Counters, Stragglers
from switch_agg.control.service import message_of, status_from
from switch_agg.dataplanes.reference import ReferenceDataPlane
from switch_agg.job import Job
from switch_agg.status import JobStatus, Status, from_json, status_of, to_json


def test_a_data_plane_that_serves_nobody_yet_says_so() -> None:
    plane = ReferenceDataPlane(("127.0.0.1", 0), generation=1)
    try:
        plane.configure(Job(workers=("10.0.0.1", "10.0.0.2"), num_slots=8))
        status = status_of(plane, name="reference", address=plane.address, since_s=0.0)
    finally:
        plane.close()
    assert status.counters["rx"] == status.in_flight == 0
    assert status.violations == ()
    assert status.address == f"127.0.0.1:{plane.address[1]}"
    assert from_json(to_json(status)) == status


def test_where_time_is_dilated_it_has_been_up_for_seconds_of_the_machine() -> None:
    """By which its counters are divided, and in which its chunks wait."""
    plane = ReferenceDataPlane(("127.0.0.1", 0), generation=1)
    clock.dilate(10.0)
    try:
        since_s = clock.now_s() - clock.protocol_s(5.0)
        status = status_of(plane, name="reference", address=plane.address, since_s=since_s)
    finally:
        clock.dilate(1.0)
        plane.close()
    assert status.uptime_s >= 5.0


def test_a_status_survives_the_way_to_another_process() -> None:
    job = Job(number=3, workers=("a", "b"), num_elements=64, straggler_timeout_s=0.5)
    status = Status(
        dataplane="ebpf",
        address="10.0.0.1:48864",
        jobs=(
            JobStatus(job=job, epoch=2, stragglers=Stragglers(gaps=(1,) * 32, last=(1, 2), partial=4), busy_slots=5),
        ),
        counters=dict.fromkeys(Counters.__slots__, 1),
        in_flight=3,
        violations=("7 datagrams received and 6 accounted for",),
        uptime_s=1.5,
        unsent={"10.0.0.1": 3},
        link_rate_bps=1e8,
    )
    assert from_json(to_json(status)) == status
    assert status_from(message_of(status)) == status


def test_the_bound_is_what_links_let_through_of_a_chunk_s_frames() -> None:
    job = Job(workers=("a", "b"), num_elements=256, payload="fp16")
    status = Status(
        dataplane="ebpf", address="", jobs=(), counters={}, in_flight=0, violations=(), uptime_s=0.0, link_rate_bps=1e8
    )
    assert status.bound_elements_per_s(job) == pytest.approx(1e8 / 8 / 1080 * 512)
    original = replace(status, dataplane="switchml")
    assert original.bound_elements_per_s(Job(workers=("a", "b"), num_elements=64)) == pytest.approx(1e8 / 8 / 308 * 64)
    assert replace(status, link_rate_bps=None).bound_elements_per_s(job) is None
