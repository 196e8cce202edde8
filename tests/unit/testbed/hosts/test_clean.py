"""Cleaning after coordinators that died, without namespaces: those are in tests/integration/test_crashes.py."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed.hosts.clean
from testbed.errors import SpecError
from testbed.hosts.clean import clean, clean_stale, leftovers, named_run
from testbed.system.processes import RUN_ID_VARIABLE, ProcessIdentity, end_processes, processes_of_run
from testbed.system.run_state import RunState, new_run_id

# A coordinator with a recorded process, an unrecorded one (as if it died between fork and record) and a file.
COORDINATOR = """
import json, os, subprocess, sys, time
from pathlib import Path
from testbed.system.run_state import RunState
run_id, root, path = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
state = RunState.create(run_id, root=root)
environment = {**os.environ, "TESTBED_RUN_ID": run_id}
children = [subprocess.Popen(["sleep", "60"], env=environment) for _ in range(2)]
state.add_process("recorded", children[0].pid)
state.add_path(path)
path.mkdir()
(path / "file").touch()
print(json.dumps([child.pid for child in children]), flush=True)
time.sleep(60)
"""


def test_a_run_that_ends_between_being_listed_and_looked_at_has_left_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testbed.hosts.clean, "run_ids", lambda **_: [new_run_id()])
    assert leftovers(root=tmp_path) == []
    assert clean_stale(root=tmp_path).removed == []


class Run:
    """A run of another process."""

    def __init__(self, root: Path, path: Path) -> None:
        self.run_id = new_run_id()
        self.path = path
        argv = [sys.executable, "-c", COORDINATOR, self.run_id, str(root), str(path)]
        self.coordinator = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert self.coordinator.stdout is not None
        found = [ProcessIdentity.of(pid) for pid in json.loads(self.coordinator.stdout.readline())]
        self.children = [identity for identity in found if identity]

    def kill_coordinator(self) -> None:
        self.coordinator.kill()
        self.coordinator.wait()

    def end(self) -> None:
        self.kill_coordinator()
        assert self.coordinator.stdout is not None
        self.coordinator.stdout.close()
        end_processes(self.children, grace_s=1.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def run(root: Path, tmp_path: Path) -> Iterator[Run]:
    run = Run(root, tmp_path / "outside")
    yield run
    run.end()


@pytest.fixture
def innocent() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, RUN_ID_VARIABLE: "another-run"})
    yield process
    process.kill()
    process.wait()


def test_everything_a_killed_coordinator_left_is_removed_and_nothing_else(
    run: Run, root: Path, tmp_path: Path, innocent: "subprocess.Popen[bytes]"
) -> None:
    foreign = tmp_path / "foreign"
    foreign.touch()
    run.kill_coordinator()
    assert [child.alive() for child in run.children] == [True, True]
    report = clean(root=root)
    assert sorted(left.kind for left in report.removed) == ["path", "path", "process", "process"]
    assert not report.remaining
    assert [child.alive() for child in run.children] == [False, False]
    assert not run.path.exists()
    assert list(root.iterdir()) == []
    assert innocent.poll() is None
    assert foreign.exists()


def test_a_live_run_is_left_alone_unless_it_is_named(run: Run, root: Path) -> None:
    report = clean_stale(root=root)
    assert (list(report.removed), list(report.live_run_ids)) == ([], [run.run_id])
    assert run.coordinator.poll() is None
    assert all(child.alive() for child in run.children)
    report = clean(run.run_id, root=root)
    assert not report.remaining
    assert run.coordinator.wait(5) == -signal.SIGTERM
    assert not any(child.alive() for child in run.children)


def test_a_dry_run_says_what_would_go_and_touches_nothing(run: Run, root: Path) -> None:
    run.kill_coordinator()
    report = clean(dry_run=True, root=root)
    assert sorted(left.kind for left in report.removed) == ["path", "path", "process", "process"]
    assert all(child.alive() for child in run.children)
    assert run.path.exists()
    assert leftovers(root=root) == list(report.removed)


def test_cleaning_twice_is_cleaning_once(run: Run, root: Path) -> None:
    run.kill_coordinator()
    clean(root=root)
    assert leftovers(run.run_id, root=root) == []
    for run_id in (None, run.run_id):
        report = clean(run_id, root=root)
        assert (list(report.removed), list(report.remaining)) == ([], [])


def test_processes_are_found_even_when_the_state_is_gone(run: Run, root: Path) -> None:
    run.kill_coordinator()
    RunState.load(run.run_id, root=root).remove()
    report = clean(run.run_id, root=root)
    assert [left.kind for left in report.removed] == ["process", "process"]
    assert not any(child.alive() for child in run.children)


def test_a_coordinator_can_clean_its_own_run_and_survives(root: Path) -> None:
    state = RunState.create(new_run_id(), root=root)
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, RUN_ID_VARIABLE: state.run_id})
    deadline_s = time.monotonic() + 10
    while not processes_of_run(state.run_id):  # Popen returns a moment before its environment is seen
        assert time.monotonic() < deadline_s
    report = clean(state.run_id, root=root)
    assert process.wait(5) == -signal.SIGTERM
    assert not report.remaining
    assert list(root.iterdir()) == []


def test_what_cannot_be_removed_is_reported_and_its_record_kept(root: Path, tmp_path: Path) -> None:
    state = RunState.create(new_run_id(), root=root)
    group = tmp_path / "group"
    state.add_cgroup(group)
    (group / "busy").mkdir(parents=True)
    report = clean(state.run_id, root=root)
    assert [left.what for left in report.remaining] == [str(group), str(state.directory)]
    (group / "busy").rmdir()
    assert not clean(state.run_id, root=root).remaining
    assert not group.exists()


def test_containers_of_a_daemon_that_does_not_answer_are_reported_and_their_record_kept(root: Path) -> None:
    state = RunState.create(new_run_id(), root=root)
    state.add_containers("unix:///no/such/daemon.sock", ["testbed-r1-w0"])
    report = clean(state.run_id, root=root)
    assert [left.kind for left in report.remaining] == ["container", "path"]
    assert report.remaining[0].what == "testbed-r1-w0"
    assert report.remaining[0].problem.startswith("docker")
    assert RunState.load(state.run_id, root=root).owned().containers == {"testbed-r1-w0": "unix:///no/such/daemon.sock"}


def test_containers_of_a_daemon_that_is_gone_for_good_are_complained_of_once_and_forgotten_on_request(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = RunState.create(new_run_id(), root=root)
    state.add_containers("unix:///no/such/daemon.sock", ["testbed-r1-w0"])
    monkeypatch.setattr(RunState, "coordinator_alive", lambda _: False)
    with caplog.at_level(logging.WARNING):
        assert len(clean_stale(root=root).remaining) == 2
    assert [record for record in caplog.records if record.name.startswith("testbed.")] == []
    report = clean(forget=True, root=root)
    assert ([left.kind for left in report.removed], report.remaining) == (["container", "path"], [])
    assert list(root.iterdir()) == []


DOCKER = """#!/bin/sh
# A daemon that answers once it is back, and has one container that it can remove.
[ -e "$0.back" ] || { echo "Cannot connect to the Docker daemon" >&2; exit 1; }
case $3 in ps) [ -e "$0.removed" ] || echo testbed-r1-w0 ;; rm) touch "$0.removed" ;; esac
"""


def test_a_daemon_that_is_being_restarted_is_waited_for(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    state = RunState.create(new_run_id(), root=root)
    state.add_containers("unix:///a/daemon.sock", ["testbed-r1-w0"])
    threading.Timer(0.7, (tmp_path / "docker.back").touch).start()
    assert clean(state.run_id, patience_s=20.0, root=root).remaining == []
    assert (tmp_path / "docker.removed").exists()
    assert "waiting at most 20 s for the Docker daemon at unix:///a/daemon.sock" in caplog.text


def test_directories_of_creations_that_were_cut_short_are_removed(root: Path) -> None:
    own = ProcessIdentity.own()
    dead = root / f".r1.{own.pid}.{own.start_time - 1}"
    dead.mkdir(parents=True)
    report = clean(root=root)
    assert [left.what for left in report.removed] == [str(dead)]
    assert not dead.exists()


def test_nothing_to_clean_is_no_error(tmp_path: Path) -> None:
    report = clean(root=tmp_path / "never-made")
    assert (list(report.removed), list(report.remaining), list(report.live_run_ids)) == ([], [], [])


def test_a_run_is_named_by_the_beginning_of_its_id(root: Path) -> None:
    for run_id in ("261121t175417-df5345", "261121t175417-aa5345", "261122t000000-000000"):
        RunState.create(run_id, root=root)
    assert named_run("261122", root=root) == "261122t000000-000000"
    for name in ("", "2611"):
        with pytest.raises(SpecError, match=r"--run-id: .* with .*; there are 261121t175417-aa5345, 261121t175417-df"):
            named_run(name, root=root)


def test_a_run_that_nothing_is_known_of_has_gone_if_it_can_have_been_one(tmp_path: Path) -> None:
    gone = new_run_id()
    assert named_run(gone, root=tmp_path) == gone
    with pytest.raises(SpecError, match="no run begins with 'nonesuch'; no run has left anything here"):
        named_run("nonesuch", root=tmp_path)
