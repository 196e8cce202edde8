"""An aggregator in a run: what it is given, what it reports, and what becomes of one that has ended."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.deployment.aggregators import RunningAggregator
from testbed.errors import MissingRequirementError
from testbed.experiment.experiment import validate
from testbed.hosts.base import ProcessSpec
from testbed.plan.plan import make_plan
from testbed.worker.aggregator import AggregatorConfiguration


class FakeProcess:
    def __init__(self, spec: ProcessSpec, on_output: Callable[[str], None], log_path: Path) -> None:
        self.spec, self.on_output, self.log_path = spec, on_output, log_path
        self.status: int | None = None
        self.answer = "changed counters"
        log_path.write_text("its last line\n")

    def tell(self, line: str) -> None:
        assert line == "counters"
        path = AggregatorConfiguration.model_validate_json(self.spec.arguments[-1]).counters_path
        stragglers = {"gaps": [0] * 32, "last": [2, 3], "partial": 0}
        found = {"counters": {"done": 5}, "violations": ["7 received and 6 accounted for"], "stragglers": stragglers}
        path.write_text(json.dumps(found))
        self.on_output(self.answer)

    def poll(self) -> int | None:
        return self.status

    def wait(self, timeout_s: float) -> int | None:
        return self.status


class FakeHost:
    def __init__(self, tmp_path: Path, *, pid: int = 1, status: int | None = None) -> None:
        self.pid, self.status, self.tmp_path = pid, status, tmp_path
        self.started: list[FakeProcess] = []

    def start(self, spec: ProcessSpec, on_output: Callable[[str], None]) -> FakeProcess:
        process = FakeProcess(spec, on_output, self.tmp_path / f"{spec.name}.log")
        process.status = self.status
        self.started.append(process)
        if self.status is None:
            on_output("ready")
        return process


def running(tmp_path: Path, host: FakeHost) -> RunningAggregator:
    collective = {"kind": "in_network", "at": "tree", "num_slots": 64}
    plan = make_plan(validate({"name": "x", "topology": "leaf_spine", "collective": collective}))
    hosts = {"a1": host, "s0": FakeHost(tmp_path, pid=4711)}
    return RunningAggregator(plan.aggregators[1], hosts, directory=tmp_path)  # type: ignore[arg-type]


def test_it_is_given_its_job_and_where_its_switch_is(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    aggregator = running(tmp_path, host)
    (process,) = host.started
    assert process.spec.argv == (sys.executable,)
    reported = AggregatorConfiguration.model_validate_json(process.spec.arguments[-1])
    assert (reported.dataplane, reported.address, reported.switch_pid) == ("ebpf", aggregator.plan.port.address, 4711)
    (job,) = reported.jobs
    assert job == aggregator.plan.job
    assert job.num_slots == 64
    assert job.parent is not None
    assert reported.switch_interface == aggregator.plan.switch_port.interface


def test_its_report_is_what_it_wrote(tmp_path: Path) -> None:
    report = running(tmp_path, FakeHost(tmp_path)).report()
    assert report.stragglers is not None
    assert list(report.stragglers.last) == [2, 3]
    assert (report.counters, report.violations, report.failure) == (
        {"done": 5},
        ("7 received and 6 accounted for",),
        None,
    )


def test_one_that_has_ended_is_reported_with_how_and_its_last_lines(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    aggregator = running(tmp_path, host)
    host.started[0].status = -9
    report = aggregator.report()
    assert report.counters == {}
    assert report.failure is not None
    assert report.failure.startswith("aggregator a1 at s0 (ebpf) was killed by signal 9: nobody answers")
    assert "its last line" in report.failure


def test_one_that_does_not_begin_to_serve_is_a_missing_requirement(tmp_path: Path) -> None:
    with pytest.raises(
        MissingRequirementError, match=r"aggregator a1 at s0 \(ebpf\) ended with status 1: its last line"
    ):
        running(tmp_path, FakeHost(tmp_path, status=1))
