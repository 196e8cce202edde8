import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.system.processes import (
    RUN_ID_VARIABLE,
    UNCLAIMED,
    ProcessIdentity,
    end_processes,
    is_sleeping,
    processes_of_run,
)

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


@contextmanager
def running(*argv: str, run_id: str = "") -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(argv, env={**os.environ, RUN_ID_VARIABLE: run_id}, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_an_identity_is_of_one_process_only() -> None:
    with running("sleep", "60") as process:
        identity = ProcessIdentity.of(process.pid)
        assert identity is not None
        assert identity.alive()
        assert not ProcessIdentity(identity.pid, identity.start_time - 1).alive()
        # Popen returns when the old program's descriptors are closed, a moment before the new one's arguments are seen.
        deadline_s = time.monotonic() + 10
        while "sleep 60" not in identity.describe():
            assert time.monotonic() < deadline_s, identity.describe()
    assert not identity.alive()
    assert ProcessIdentity.of(identity.pid) is None


def test_a_process_that_wants_a_core_does_not_sleep() -> None:
    with (
        running(sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass") as busy,
        running("sleep", "60") as idle,
    ):
        assert busy.stdout is not None
        busy.stdout.readline()
        assert not is_sleeping(busy.pid)
        deadline_s = time.monotonic() + 10
        while not is_sleeping(idle.pid):
            assert time.monotonic() < deadline_s
    assert is_sleeping(idle.pid), "it is no more"


def test_a_zombie_is_not_alive() -> None:
    with running("true") as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert ProcessIdentity.of(process.pid) is None


def test_a_command_name_may_contain_what_separates_fields(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    shutil.copy(shutil.which("sleep") or "", program)
    with running(str(program), "60") as process:
        identity, other = ProcessIdentity.of(process.pid), ProcessIdentity.own()
        assert identity is not None
        assert identity.start_time >= other.start_time


def test_processes_are_found_by_the_run_they_were_executed_for() -> None:
    with running("sleep", "60", run_id="r-one") as one, running("sleep", "60", run_id="r-one-more"):
        deadline_s = time.monotonic() + 10  # a new program's environment is seen as late as its arguments
        while not processes_of_run("r-one-more"):
            assert time.monotonic() < deadline_s
        while not (found := processes_of_run("r-one")):
            assert time.monotonic() < deadline_s
        assert [identity.pid for identity in found] == [one.pid]


def test_ending_asks_first_and_then_insists() -> None:
    with running("sleep", "60") as meek, running(sys.executable, "-c", STUBBORN) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        identities = [ProcessIdentity.of(process.pid) for process in (meek, stubborn)]
        end_processes([identity for identity in identities if identity], grace_s=0.2)
        assert meek.wait(0) == -signal.SIGTERM
        assert stubborn.wait(0) == -signal.SIGKILL


def test_ending_leaves_a_process_that_got_the_pid_later_alone() -> None:
    with running("sleep", "60") as process:
        identity = ProcessIdentity.of(process.pid)
        assert identity is not None
        begun_s = time.monotonic()
        end_processes([ProcessIdentity(identity.pid, identity.start_time - 1)], grace_s=5.0)
        assert time.monotonic() - begun_s < 4.0
        assert process.poll() is None


CARRY = """
import os, sys
from testbed.system.processes import carry_run_id
for run_id in sys.argv[1:]:
    if os.fork() == 0:
        carry_run_id(run_id)
        sys.stdout.write("x")
        sys.stdout.flush()
        sys.stdin.read()
        os._exit(0)
sys.stdin.read()
"""


def test_forks_of_an_unclaimed_process_carry_the_id_that_each_takes() -> None:
    ids = ["260101t000000-00000a", "260101t000000-00000b"]
    environment = {**os.environ, RUN_ID_VARIABLE: UNCLAIMED, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    argv = [sys.executable, "-c", CARRY, *ids]
    process = subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"xx"
        found = [processes_of_run(run_id) for run_id in ids]
        assert [len(processes) for processes in found] == [1, 1]
        others = Path(f"/proc/{found[0][0].pid}/environ").read_bytes()
        assert {f"{name}={value}".encode() for name, value in environment.items() if name != RUN_ID_VARIABLE} <= set(
            others.split(b"\0")
        ), "nothing else of it has changed"
        assert process.pid not in {identity.pid for processes in found for identity in processes}
    finally:
        process.communicate()
    assert [processes_of_run(run_id) for run_id in ids] == [[], []]


def test_a_process_that_was_not_started_unclaimed_carries_no_other_id() -> None:
    script = "from testbed.system.processes import carry_run_id; carry_run_id('260101t000000-00000c')"
    environment = {**os.environ, RUN_ID_VARIABLE: "other", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot carry the run id 260101t000000-00000c" in done.stderr
