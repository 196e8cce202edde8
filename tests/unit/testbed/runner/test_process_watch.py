"""What is noticed of real processes that somebody stops, holds to a quota or starves of memory."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.hosts.cgroups import Controller, ControllerName, available_controllers, freezer, remove_cgroup
from testbed.runner.process_watch import ProcessWatch, RunWatch

DEADLINE_S = 20.0


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def until(found: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not found():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def group(name: ControllerName) -> tuple[Controller, Path]:
    controller = available_controllers()[name]
    assert controller is not None, "the machine that runs privileged tests has it"
    path = controller.mount_point / f"testbed-test-{os.getpid()}-{name}"
    path.mkdir()
    return controller, path


def test_a_stop_is_reported_when_it_is_over_with_its_length(sleeper: subprocess.Popen[bytes]) -> None:
    watch = ProcessWatch("w1", sleeper.pid, 0.0)
    assert watch.look(0.1) == []
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: watch.look(0.2) == [] and watch.is_stopped)
    assert watch.look(1.0) == []
    sleeper.send_signal(signal.SIGCONT)
    reported: list[str] = []
    until(lambda: reported.extend(watch.look(2.2)) or reported)
    assert reported == ["w1 was stopped for 2.0 s (SIGSTOP, or a debugger)"]
    assert watch.look(2.3) == []


def test_processes_beside_the_workers_are_called_by_their_names(sleeper: subprocess.Popen[bytes]) -> None:
    watch = RunWatch({"relay": sleeper.pid, "ps0": os.getpid()}, 0.0)
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    assert watch.look(0.1) == []
    sleeper.send_signal(signal.SIGCONT)
    reported: list[str] = []
    until(lambda: reported.extend(watch.look(1.1)) or reported)
    assert reported == ["relay was stopped for 1.0 s (SIGSTOP, or a debugger)"]


def test_whoever_watches_says_that_it_did_not() -> None:
    watch = RunWatch({}, 1.0)
    assert watch.look(10.0) == [], "it begins with the first look"
    assert watch.look(11.9) == []
    assert watch.look(14.0) == ["the testbed itself stood still for 2.1 s and watched nothing"]
    assert watch.look(14.1) == []


@pytest.mark.privileged
def test_a_frozen_process_is_reported_as_a_stopped_one_is(sleeper: subprocess.Popen[bytes]) -> None:
    controller = freezer()
    assert controller is not None, "the machine that runs privileged tests has it"
    path = controller.mount_point / f"testbed-test-{os.getpid()}-freezer"
    path.mkdir()
    file, frozen, thawed = (
        ("freezer.state", "FROZEN", "THAWED") if controller.version == 1 else ("cgroup.freeze", "1", "0")
    )
    watch = ProcessWatch("w1", sleeper.pid, 0.0)
    try:
        (path / "cgroup.procs").write_text(str(sleeper.pid))
        assert watch.look(0.1) == []
        (path / file).write_text(frozen)
        until(lambda: watch.look(1.0) == [] and watch.is_stopped)
        (path / file).write_text(thawed)
        reported: list[str] = []
        until(lambda: reported.extend(watch.look(2.5)) or reported)
        assert reported == ["w1 was frozen for 1.5 s (its control group)"]
    finally:
        (path / file).write_text(thawed)
        sleeper.kill()
        sleeper.wait()
        remove_cgroup(path)


def test_a_process_that_was_killed_by_a_signal_was_not_out_of_memory(sleeper: subprocess.Popen[bytes]) -> None:
    watch = ProcessWatch("w1", sleeper.pid, 0.0)
    sleeper.kill()
    sleeper.wait()
    assert watch.look(5.0) == []
    assert watch.cause_of_kill() == ""


@pytest.mark.privileged
def test_the_quota_of_the_spec_is_nobodys_interference_until_it_changes(sleeper: subprocess.Popen[bytes]) -> None:
    watch = ProcessWatch("w1", sleeper.pid, 0.0, requested_cores=0.5)
    controller, path = group("cpu")
    names = ("cpu.cfs_quota_us", "{}") if controller.version == 1 else ("cpu.max", "{} 100000")
    try:
        (path / names[0]).write_text(names[1].format(50000))
        (path / "cgroup.procs").write_text(str(sleeper.pid))
        assert watch.look(2.0) == []
        (path / names[0]).write_text(names[1].format(20000))
        assert watch.look(4.0) == ["a CPU quota of 0.2 cores was put on w1"]
        (controller.mount_point / "cgroup.procs").write_text(str(sleeper.pid))
        assert watch.look(6.0) == ["the CPU quota of w1, 0.2 cores, was taken away"]
    finally:
        sleeper.kill()
        sleeper.wait()
        path.rmdir()


@pytest.mark.privileged
def test_a_quota_that_somebody_plants_is_reported_and_its_end_too(sleeper: subprocess.Popen[bytes]) -> None:
    watch = ProcessWatch("w1", sleeper.pid, 0.0)
    controller, path = group("cpu")
    try:
        limit = {"cpu.cfs_quota_us": "50000"} if controller.version == 1 else {"cpu.max": "50000 100000"}
        for file, value in limit.items():
            (path / file).write_text(value)
        (path / "cgroup.procs").write_text(str(sleeper.pid))
        assert watch.look(2.0) == ["a CPU quota of 0.5 cores was put on w1"]
        assert watch.look(4.0) == []
        (controller.mount_point / "cgroup.procs").write_text(str(sleeper.pid))
        assert watch.look(6.0) == ["the CPU quota of w1, 0.5 cores, was taken away"]
    finally:
        sleeper.kill()
        sleeper.wait()
        remove_cgroup(path)


@pytest.mark.privileged
def test_a_process_that_was_ended_for_want_of_memory_is_distinguished_from_a_killed_one() -> None:
    controller, path = group("memory")
    limit = "memory.limit_in_bytes" if controller.version == 1 else "memory.max"
    (path / limit).write_text(str(32 << 20))
    code = "import sys; sys.stdin.readline(); held = bytearray(256 << 20)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        try:
            (path / "cgroup.procs").write_text(str(process.pid))
            watch = ProcessWatch("w1", process.pid, 0.0)
            process.communicate(b"go\n", timeout=DEADLINE_S)
            assert process.returncode == -signal.SIGKILL
            assert watch.cause_of_kill() == "out of memory (OOM): the memory limit of its control group was reached"
        finally:
            process.kill()
            process.wait()
            remove_cgroup(path)
