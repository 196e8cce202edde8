"""`make test`: the tests on real namespaces, one by one, and beside them those that touch none.

    python -m tests.both_halves ALONE ONE_BY_ONE BESIDE...      command lines of the shell's

Tests on namespaces wait most of the time: for links that are slow on purpose, for timeouts. Those that touch none
compute, in a control group that is idle for the scheduler (cpu.idle): whoever is not in it has a core at once. A run's
verdict counts what the cores did all the same, so tests whose facts need a quiet machine are a command that begins when
all others have ended. Where no such group can be made, each begins when the one before it has ended.

What is said beside is shown when the tests one by one have ended. SIGINT, SIGTERM and SIGHUP reach all as one SIGINT
each time; if this process is killed, the kernel sends it.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Final

from testbed.hosts.cgroups import find_controller, own_mountinfo, remove_cgroup
from testbed.system.interruptions import SIGNALS
from testbed.system.processes import ProcessIdentity

GROUPS: Final = "beside-tests-"
"""Control groups of this program; the pid of the process that owns it follows."""
INTERRUPTED: Final = 130


class Commands:
    """What was started, and whether somebody wants an end of it."""

    def __init__(self) -> None:
        self._commands: list[str] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self._interrupted = False

    @property
    def status(self) -> int:
        """Of all that have ended."""
        return INTERRUPTED if self._interrupted else int(bool(self.failures))

    @property
    def failures(self) -> list[str]:
        """Commands that have failed, with their exit statuses."""
        return [
            f"{command}: status {process.returncode}"
            for command, process in zip(self._commands, self._started, strict=True)
            if process.returncode
        ]

    def run(self, command: str) -> None:
        """To its end; nothing after a signal."""
        if process := self.start(command):
            process.wait()

    def start(
        self, command: str, *, output: IO[bytes] | None = None, group: Path | None = None
    ) -> subprocess.Popen[bytes] | None:
        """In a process group of its own, to which the terminal sends no signals: it would hear of one twice.

        The kernel speaks of a parent's death for each of its threads that had taken over the child, and numpy has one:
        so that it is said once, the parent is a shell, whose own death may well be said twice."""
        if self._interrupted:
            return None
        join = f"echo $$ > {shlex.quote(str(group / 'cgroup.procs'))} && " if group else ""
        said_once = "setpriv --pdeathsig INT"
        process = subprocess.Popen(
            [*("setpriv", "--pdeathsig", "KILL", "sh", "-c"), f"{join}trap : INT; {said_once} env {command}; exit $?"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output and subprocess.STDOUT,
            process_group=0,
        )
        self._commands.append(command)
        self._started.append(process)
        if self._interrupted:  # while it was being started
            _interrupt(process)
        return process

    def interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """A handler of signals."""
        self._interrupted = True
        for process in self._started:
            _interrupt(process)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """As the terminal does it: every process of its group, which is there until it has been waited for."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)


@contextmanager
def idle_group() -> Iterator[Path | None]:
    """A control group whose processes run when no other wants the core; None where the kernel or our rights lack it.

    What an earlier process of this program left, because it was killed, goes first."""
    controller = find_controller("cpu", own_mountinfo())
    if controller is None:
        yield None
        return
    for left in controller.mount_point.glob(f"{GROUPS}*"):
        if not Path(f"/proc/{left.name.removeprefix(GROUPS)}").exists():
            remove_cgroup(left)
    group = controller.mount_point / f"{GROUPS}{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        yield group if _is_idle(group) else None
    finally:
        _end(group)
        remove_cgroup(group)


def _end(group: Path) -> None:
    """Kill what is still in it some seconds after all that was waited for has ended, and say so."""
    deadline_s = time.monotonic() + 5
    while pids := (group / "cgroup.procs").read_text().split():
        if time.monotonic() < deadline_s:
            time.sleep(0.05)
            continue
        for pid in map(int, pids):
            identity = ProcessIdentity.of(pid)
            _say(f"left behind and killed: {identity.describe() if identity else pid}\n")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return


def _is_idle(group: Path) -> bool:
    """Whether it can be made so: Linux 5.15 or later, and on version 2 a controller that is switched on."""
    setting = group / "cpu.idle"
    try:
        setting.write_text("1")
    except OSError:
        return False
    return setting.read_text().strip() == "1"


def run(alone: str, one_by_one: str, *beside: str, group: Path | None) -> int:
    """The exit status: 0 if all ended so; what did not is said. A signal ends those that run, and begins no other."""
    commands = Commands()
    for number in SIGNALS:
        signal.signal(number, commands.interrupt)
    if group is None:
        _say("one after another: no control group can be made whose processes take none of the others' time\n")
        for command in (*beside, one_by_one, alone):
            commands.run(command)
    else:
        _at_once(commands, one_by_one, beside, group)
        _say("tests that need a quiet machine, one by one:\n")
        commands.run(alone)
    _say("".join(f"failed: {failure}\n" for failure in commands.failures))
    return commands.status


def _at_once(commands: Commands, one_by_one: str, beside: Sequence[str], group: Path) -> None:
    with ExitStack() as stack:
        behind = []
        for command in beside:
            output = stack.enter_context(tempfile.NamedTemporaryFile())
            behind.append((Path(output.name), commands.start(command, output=output, group=group)))
        _say("tests on real namespaces, one by one:\n")
        commands.run(one_by_one)
        _say("what touches no namespace, meanwhile:\n")
        for path, process in behind:
            _show(path, process)


def _say(text: str) -> None:
    """Before others, who write to the same place, say more."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _show(path: Path, process: subprocess.Popen[bytes] | None) -> None:
    """What it has said and goes on to say, until it has ended."""
    if process is None:
        return
    with path.open(errors="replace") as said:
        ended = False
        while not ended:
            ended = process.poll() is not None
            _say(said.read())
            if not ended:
                time.sleep(0.1)


if __name__ == "__main__":
    with idle_group() as idle:
        status = run(*sys.argv[1:], group=idle)
    sys.exit(status)
