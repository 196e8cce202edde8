import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.axes import ROOT
from tests.both_halves import GROUPS, INTERRUPTED, idle_group
from tests.bystanders import wait_until

WITHOUT_A_GROUP: Final = "import sys; from tests.both_halves import run; sys.exit(run(*sys.argv[1:], group=None))"
WAITS: Final = """
import pathlib, sys, time
def until(path):
    deadline_s = time.monotonic() + 60
    while not pathlib.Path(path).exists():
        assert time.monotonic() < deadline_s, path
        time.sleep(0.01)
"""
ENDS_BY_A_SIGNAL: Final = """
import os, pathlib, sys, time
number, path = 0, pathlib.Path(sys.argv[1])
while number == 0 or time.monotonic() < number:
    try:
        path.with_suffix(".begun").touch()
        time.sleep(0.05)
    except KeyboardInterrupt:
        os.write(1, f"{path.stem} heard of it\\n".encode())
        number = time.monotonic() + 0.5
"""
"""It goes on for half a second, so that a second signal would be seen."""

HEARS: Final = f"""{WAITS}
path = pathlib.Path(sys.argv[1])
try:
    path.with_suffix(".begun").touch()
    until(path.with_suffix(".never"))
except KeyboardInterrupt:
    time.sleep(0.2)
    path.with_suffix(".heard").touch()
"""
"""A second signal, in the time that it takes to put things away, would keep it from saying so."""


def started(*commands: str, without_a_group: bool = False) -> "subprocess.Popen[str]":
    """Those beside, one by one, alone."""
    program = ["-c", WITHOUT_A_GROUP] if without_a_group else ["-m", "tests.both_halves"]
    *beside, one_by_one, alone = commands
    words = [sys.executable, *program, alone, one_by_one, *beside]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def line(program: Path, text: str, *arguments: Path) -> str:
    """A command line that runs that program."""
    program.write_text(text)
    return f"{sys.executable} -S {program} {' '.join(map(str, arguments))}"


@pytest.mark.parametrize("failing", [None, 0, 1, 2, 3])
def test_all_run_the_last_one_at_last_and_one_that_fails_is_the_failure(failing: int | None) -> None:
    commands = [f"sh -c 'echo it is {number}; exit {4 * (number == failing)}'" for number in range(4)]
    process = started(*commands)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == int(failing is not None)
    assert ("failed: " in said) == (failing is not None)
    assert failing is None or f"failed: {commands[failing]}: status 4\n" in said
    spoken = [text for text in said.splitlines() if text.startswith("it is")]
    assert sorted(spoken) == [f"it is {number}" for number in range(4)]
    assert spoken.index("it is 0") < spoken.index("it is 1"), "as they are named, whichever ended first"
    assert spoken[-1] == "it is 3"


def test_what_the_environment_is_to_be_stands_before_a_command() -> None:
    process = started("GREETING='good morning' sh -c 'echo $GREETING'", "true", "true")
    assert "\ngood morning\n" in "\n" + process.communicate(timeout=60)[0]
    assert process.returncode == 0


@pytest.mark.privileged
def test_the_first_two_run_at_once_and_the_first_one_when_no_other_wants_the_core(tmp_path: Path) -> None:
    behind, one = (tmp_path / name for name in ("behind", "one"))
    here = "print(pathlib.Path('/proc/self/cgroup').read_text(), flush=True)"
    waiting = f"{WAITS}\n{here}\npathlib.Path(sys.argv[1]).touch(); until(sys.argv[2])"
    process = started(
        line(tmp_path / "behind.py", waiting, behind, one),
        line(tmp_path / "one.py", waiting, one, behind),
        line(tmp_path / "alone.py", f"{WAITS}\nassert pathlib.Path(sys.argv[1]).exists()", behind),
    )
    said, _ = process.communicate(timeout=90)
    assert process.returncode == 0, said
    first, second = said.split("what touches no namespace")
    name = f"{GROUPS}{process.pid}"
    assert name not in first, "the tests one by one compete with nobody"
    assert name in second
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{name}"))


@pytest.mark.privileged
def test_a_group_is_idle_and_what_a_killed_process_left_goes_with_the_next() -> None:
    with idle_group() as group:
        assert group is not None
        assert (group / "cpu.idle").read_text().strip() == "1"
        gone = subprocess.Popen(["true"])
        gone.wait()
        left = group.with_name(f"{GROUPS}{gone.pid}")
        left.mkdir()
        alive = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # not the parent: that has such a group in `make test`
        kept = group.with_name(f"{GROUPS}{alive.pid}")
        kept.mkdir()
    try:
        with idle_group():
            assert not left.exists()
            assert kept.exists(), "its process lives"
    finally:
        kept.rmdir()
        alive.communicate()
    assert not group.exists()


@pytest.mark.privileged
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_both_once_and_begins_no_other(tmp_path: Path, number: signal.Signals) -> None:
    marks = [tmp_path / name for name in ("behind", "one", "alone")]
    process = started(*(line(tmp_path / f"{path.name}.py", ENDS_BY_A_SIGNAL, path) for path in marks))
    wait_until(lambda: all(path.with_suffix(".begun").exists() for path in marks[:2]), "both have begun")
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert said.count("behind heard of it") == said.count("one heard of it") == 1
    assert not marks[2].with_suffix(".begun").exists()


@pytest.mark.privileged
def test_if_it_is_killed_both_hear_of_it_once(tmp_path: Path) -> None:
    marks = [tmp_path / name for name in ("behind", "one")]
    process = started(*(line(tmp_path / f"{path.name}.py", HEARS, path) for path in marks), "true")
    wait_until(lambda: all(path.with_suffix(".begun").exists() for path in marks), "both have begun")
    process.kill()
    process.communicate(timeout=60)
    wait_until(
        lambda: all(path.with_suffix(".heard").exists() for path in marks), "both have heard of it, and not twice"
    )
    with idle_group():
        assert not list(Path("/sys/fs/cgroup").glob(f"**/{GROUPS}{process.pid}")), "the next one removes its group"


def test_without_a_group_each_begins_when_the_one_before_has_ended() -> None:
    process = started(
        *(f"sh -c 'echo begins {number}; echo ends {number}'" for number in range(3)), without_a_group=True
    )
    said, _ = process.communicate(timeout=60)
    assert said.split("\n")[1:-1] == [f"{word} {number}" for number in range(3) for word in ("begins", "ends")]
    assert process.returncode == 0
