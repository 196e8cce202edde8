"""The process of an aggregator, as a run drives it: over its standard input and output."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from switch_agg.aggregator import Counters
from switch_agg.client import Client
from switch_agg.dataplanes.reference import ReferenceDataPlane
from switch_agg.job import Job
from switch_agg.status import from_json
from switch_agg.wire import PORTS
from testbed.worker.aggregator import AggregatorConfiguration, write_counters
from tests.loopback import own_address

ADDRESS = own_address(0)
JOB = Job(workers=(own_address(1),), num_elements=64, num_slots=8)


def configuration(tmp_path: Path, address: str = ADDRESS) -> AggregatorConfiguration:
    return AggregatorConfiguration(
        dataplane="reference",
        address=address,
        jobs=(JOB,),
        switch_pid=1,
        switch_interface="s0-eth0",
        counters_path=tmp_path / "counters",
        status_path=tmp_path / "status",
    )


@contextmanager
def started(requested: AggregatorConfiguration) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "testbed.worker.aggregator", requested.model_dump_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_lines_that_come_together_are_answered_one_after_the_other(tmp_path: Path) -> None:
    with started(configuration(tmp_path)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("status\ncounters\nsta")
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(2)] == ["changed status\n", "changed counters\n"]
        process.stdin.write("tus\n")
        process.stdin.flush()
        assert process.stdout.readline() == "changed status\n"
        process.stdin.close()
        assert process.wait(20) == 0


def test_it_serves_its_job_answers_for_its_counters_and_ends_with_its_standard_input(tmp_path: Path) -> None:
    requested = configuration(tmp_path)
    with started(requested) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with Client(JOB, 0, (ADDRESS, PORTS.start), local=(JOB.workers[0], 0)) as client:
            client.join()
            found = client.reduce(np.full((3, 64), 7, np.int32), np.zeros(3, np.int8))
            assert (found.elements == 7).all()
        process.stdin.write("counters\n")
        process.stdin.flush()
        assert process.stdout.readline() == "changed counters\n"
        reported = json.loads(requested.counters_path.read_text())
        assert (reported["counters"]["done"], reported["counters"]["bad_job"], reported["violations"]) == (3, 0, [])
        process.stdin.write("status\n")
        process.stdin.flush()
        assert process.stdout.readline() == "changed status\n"
        assert from_json(requested.status_path.read_text()).dataplane == "reference"
        for line, answer in (("reset:0", "changed reset"), ("reset:7", "refused job 7 is not being served")):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            assert process.stdout.readline().startswith(answer)
        process.stdin.close()
        assert process.wait(10) == 0


def test_an_address_that_is_not_here_is_said_before_it_is_ready(tmp_path: Path) -> None:
    with started(configuration(tmp_path, "192.0.2.1")) as process:
        _, said = process.communicate(timeout=20)
        assert process.returncode == 1
        assert "Cannot assign requested address" in said


def test_its_configuration_has_no_room_for_what_it_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="parents"):
        AggregatorConfiguration.model_validate(configuration(tmp_path).model_dump() | {"parents": []})


class DrainingDataPlane(ReferenceDataPlane):
    """To which packets still come while its counters are read: one before each of so many readings of its slots."""

    def __init__(self, num_coming: int, *, num_lost: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), generation=1)
        self.configure(JOB)
        self._num_coming = num_coming
        self._seen = Counters(rx=num_lost, fresh=num_lost)

    def counters(self) -> Counters:
        return replace(self._seen)

    def in_flight(self) -> int:
        if self._num_coming:
            self._num_coming -= 1
            self._seen.rx += 1
            self._seen.fresh += 1
            self._seen.contributions_done += 1
            return 1
        return 0


@pytest.mark.parametrize(
    ("num_coming", "num_lost", "said"),
    [
        (30, 0, None),
        (0, 2, "2 contributions added and 0 accounted for"),
        (10**6, 0, "packets still come after all jobs have ended"),
    ],
    ids=["packets of jobs that have ended", "a loss", "packets without end"],
)
def test_counters_are_read_once_what_ended_jobs_left_in_their_links_has_come(
    tmp_path: Path, num_coming: int, num_lost: int, said: str | None
) -> None:
    plane = DrainingDataPlane(num_coming, num_lost=num_lost)
    try:
        write_counters(plane, path := tmp_path / "counters", num_looks=40)
    finally:
        plane.close()
    found = json.loads(path.read_text())
    assert len(found["violations"]) == (said is not None)
    assert said is None or said in found["violations"][0]
    assert found["counters"]["fresh"] >= min(num_coming, 30), "read after the last has come"
