import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import RunFailedError
from testbed.hosts.spawn import Output, SpawnedProcess, log_tail, spawn
from testbed.system.processes import ProcessIdentity, end_processes

STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.1; done"


def start(directory: Path, *argv: str, on_output: Any = None, listens: bool = False) -> SpawnedProcess:
    return spawn("p", argv, Output(directory / "p.log", on_output), environment=dict(os.environ), listens=listens)


def wait_for_line(path: Path, line: str) -> None:
    deadline_s = time.monotonic() + 10.0
    while line not in path.read_text() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert line in path.read_text()


def test_output_is_in_the_log_and_the_status_is_reported(tmp_path: Path) -> None:
    process = start(tmp_path, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert process.wait(10.0) == 3
    assert process.poll() == 3
    assert process.log_path.read_text() == "out\nerr\n"


def test_each_line_is_handed_to_the_listener_as_well(tmp_path: Path) -> None:
    lines: list[str] = []
    process = start(tmp_path, "sh", "-c", "echo one; echo two; printf three", on_output=lines.append)
    assert process.wait(10.0) == 0
    assert lines == ["one", "two", "three"]
    assert process.log_path.read_text() == "one\ntwo\nthree"


def test_the_log_keeps_the_bytes_and_the_listener_gets_text(tmp_path: Path) -> None:
    lines: list[str] = []
    said = b"caf\xe9 \xff\n50 %\r100 %\r\nna\xc3\xafve"
    script = f"import os, time; said = {said!r}\nfor byte in said: os.write(1, bytes([byte])); time.sleep(0.002)"
    process = start(tmp_path, sys.executable, "-c", script, on_output=lines.append)
    assert process.wait(10.0) == 0
    assert process.log_path.read_bytes() == said
    assert lines == ["caf\N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}", "50 %", "100 %", "na\xefve"]


def test_many_lines_and_one_without_an_end_are_all_reported(tmp_path: Path) -> None:
    lines: list[str] = []
    script = "seq 100000; head -c 5000000 /dev/zero | tr '\\0' x"
    process = start(tmp_path, "sh", "-c", script, on_output=lines.append)
    assert process.wait(60.0) == 0
    assert lines[:100_000] == [str(number) for number in range(1, 100_001)]
    assert "".join(lines[100_000:]) == 5_000_000 * "x"
    assert 1 < len(lines[100_000:]) <= 6
    assert process.log_path.stat().st_size == 588_895 + 5_000_000


def test_a_listener_that_fails_takes_nothing_from_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []

    def listen(line: str) -> None:
        lines.append(line)
        raise SystemExit(1)

    process = start(tmp_path, "sh", "-c", "echo one; sleep 0.1; seq 100000", on_output=listen)
    assert process.wait(20.0) == 0
    assert process.log_path.stat().st_size == 4 + 588_895
    assert lines == ["one"]
    assert "output of p: whoever listens has failed" in caplog.text


def test_a_listener_that_is_stuck_takes_nothing_from_the_log(tmp_path: Path) -> None:
    """A terminal that is stopped (Ctrl-S): what an ended process wrote is in its log all the same."""
    lines: list[str] = []
    heard, resume = threading.Event(), threading.Event()

    def listen(line: str) -> None:
        heard.set()
        resume.wait(20)
        lines.append(line)

    process = start(tmp_path, "sh", "-c", "echo one; read a; echo two", on_output=listen, listens=True)
    assert heard.wait(10)
    process.tell("")
    assert process.wait(10.0) == 0
    assert process.log_path.read_text() == "one\ntwo\n"
    resume.set()
    deadline_s = time.monotonic() + 10
    while len(lines) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert lines == ["one", "two"]


def test_a_standard_input_that_is_given_is_read(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"given")
    os.close(write)
    output = Output(tmp_path / "p.log", None)
    process = spawn("p", ["cat"], output, environment=dict(os.environ), stdin=read)
    os.close(read)
    assert process.wait(10.0) == 0
    assert process.log_path.read_text() == "given"


def test_waiting_has_a_limit(tmp_path: Path) -> None:
    process = start(tmp_path, "sleep", "60")
    assert process.wait(0.05) is None
    assert process.poll() is None
    assert process.stop(5.0) == -signal.SIGTERM


def test_stopping_asks_first_and_then_insists(tmp_path: Path) -> None:
    process = start(tmp_path, "sh", "-c", STUBBORN)
    wait_for_line(process.log_path, "ready")
    assert process.stop(0.2) == -signal.SIGKILL
    assert process.stop(0.2) == -signal.SIGKILL


def test_a_signal_reaches_what_the_process_started(tmp_path: Path) -> None:
    process = start(tmp_path, "sh", "-c", "sleep 60 & echo $!; wait")
    wait_for_line(process.log_path, "\n")
    child = ProcessIdentity.of(int(process.log_path.read_text()))
    assert child is not None
    process.stop(5.0)
    end_processes([child], grace_s=5.0)
    assert not child.alive()


def test_a_process_that_listens_is_sent_lines_until_it_ends(tmp_path: Path) -> None:
    heard: list[str] = []
    output = Output(tmp_path / "p.log", heard.append)
    process = spawn("p", ["sh", "-c", "read a; read b; echo $b $a"], output, environment=dict(os.environ), listens=True)
    process.tell("one")
    process.tell("two")
    assert process.wait(10.0) == 0
    assert heard == ["two one"]
    with pytest.raises(RunFailedError, match="no longer listens"):
        process.tell("three")


def test_a_signal_to_an_ended_process_does_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, "true")
    assert process.wait(10.0) == 0
    process.send_signal(signal.SIGTERM)
    assert process.poll() == 0


def test_a_process_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    # PR_SET_PDEATHSIG follows the thread that forked: a process must not die with the thread that requested it.
    started: list[SpawnedProcess] = []
    thread = threading.Thread(target=lambda: started.append(start(tmp_path, "sleep", "60")))
    thread.start()
    thread.join()
    assert started[0].wait(0.3) is None
    started[0].stop(5.0)


COORDINATOR = """
import os, sys
from pathlib import Path
from testbed.hosts.spawn import Output, spawn
process = spawn("p", ["sleep", "60"], Output(Path(sys.argv[1]) / "p.log", None), environment=dict(os.environ))
print(process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_ends_with_its_coordinator(tmp_path: Path, end: signal.Signals) -> None:
    argv = [sys.executable, "-c", COORDINATOR, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as coordinator:
        assert coordinator.stdout is not None
        identity = ProcessIdentity.of(int(coordinator.stdout.readline()))
        assert identity is not None
        # Until setpriv has made its system call and become the command, the death of the parent means nothing.
        deadline_s = time.monotonic() + 10.0
        while "(sleep" not in identity.describe() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        coordinator.send_signal(end)
        coordinator.wait()
        while identity.alive() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert not identity.alive()


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_text("\n".join(str(number) for number in range(10_000)))
    assert log_tail(path, num_lines=3) == "9997\n9998\n9999"
    assert log_tail(tmp_path / "none.log") == ""
