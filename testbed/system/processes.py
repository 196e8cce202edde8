"""Processes by identity: a pid alone may have been reused, a pid with its start time has not.

Every process of a run carries `TESTBED_RUN_ID=<run id>` in the environment it was executed with (forks
inherit it), so it can be found even if whoever started it died before writing anything down.
"""

import ctypes
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from testbed.system.kernel import network_namespace

RUN_ID_VARIABLE: Final = "TESTBED_RUN_ID"
UNCLAIMED: Final = "-" * 64
"""Instead of a run's id, of a process whose forks belong to runs (:func:`carry_run_id`); no id is longer."""

_FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC
"""PROC_PID_INIT_INO of linux/proc_ns.h."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, never another one that got its pid later (until the next boot)."""

    pid: int
    start_time: int
    """Clock ticks from boot to its start: field 22 of /proc/<pid>/stat, see proc_pid_stat(5)."""

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The identity of a living process; None if there is none, or only a zombie."""
        fields = stat_fields(pid)
        return None if fields is None or fields[0] in "ZX" else cls(pid, int(fields[19]))

    @classmethod
    def own(cls) -> Self:
        """The identity of this process."""
        identity = cls.of(os.getpid())
        assert identity is not None
        return identity

    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return ProcessIdentity.of(self.pid) == self

    def describe(self) -> str:
        """`12345 (bash -is mininet:w0)`."""
        try:
            command = Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            command = "gone"
        return f"{self.pid} ({command.strip()[:80]})"


def is_sleeping(pid: int) -> bool:
    """Whether it waits for something to happen (state S of proc_pid_stat(5)) or is no more; not while it waits for a
    core or a disk."""
    fields = stat_fields(pid)
    return fields is None or fields[0] in "SZX"


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the state on; None if there is no such process."""
    stat = read_stat(pid)
    return None if stat is None else split_stat(stat)[1]


def read_stat(pid: int) -> str | None:
    """The text of /proc/<pid>/stat; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None


def split_stat(text: str) -> tuple[str, list[str]]:
    """The command's name, which may contain spaces and parentheses, and the fields after it, which may not."""
    name, _, rest = text.partition("(")[2].rpartition(")")
    return name, rest.split()


def thread_name(thread: int) -> str:
    """What a thread is called, by its id here (proc_pid_comm(5)); empty when it has ended."""
    try:
        return Path(f"/proc/{thread}/comm").read_text(errors="replace").removesuffix("\n")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def sees_all_processes() -> bool:
    """Whether the processes of the whole machine are seen from here, by the pids that the kernel has for them; not from
    a container with pids of its own."""
    return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE


def carry_run_id(run_id: str) -> None:
    """Let the environment that the kernel shows of this process, and of its forks, name the run.

    The process, or the one that it is a fork of, was executed with `UNCLAIMED` in the id's place: the string is
    overwritten where the kernel put it (env_start and env_end in proc_pid_stat(5)). Raises RuntimeError if it was not.
    """
    fields = stat_fields(os.getpid())
    assert fields is not None
    start, end = int(fields[47]), int(fields[48])
    mark = f"{RUN_ID_VARIABLE}=".encode()
    offset = ctypes.string_at(start, end - start).find(b"\0" + mark + UNCLAIMED.encode() + b"\0")
    if offset < 0 or len(run_id) > len(UNCLAIMED):
        raise RuntimeError(f"this process cannot carry the run id {run_id}")
    ctypes.memmove(start + offset + 1 + len(mark), run_id.encode().ljust(len(UNCLAIMED), b"\0"), len(UNCLAIMED))


def pids() -> list[int]:
    """Of every process that is seen from here."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def processes_of_run(run_id: str) -> list[ProcessIdentity]:
    """Every living process whose environment names the run, except the calling one."""
    mark = f"{RUN_ID_VARIABLE}={run_id}".encode()
    found = []
    for pid in pids():
        if pid == os.getpid() or not _carries(pid, mark):
            continue
        # Read again: the pid may have changed hands before its identity was taken.
        identity = ProcessIdentity.of(pid)
        if identity is not None and _carries(pid, mark):
            found.append(identity)
    return found


def _carries(pid: int, mark: bytes) -> bool:
    """Whether the environment that the process was executed with contains the entry."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return mark in environment.split(b"\0")


def processes_in_network(namespaces: Iterable[int]) -> list[ProcessIdentity]:
    """Every living process whose network namespace is one of these (inodes)."""
    wanted = set(namespaces)
    found = []
    for pid in pids() if wanted else ():
        if network_namespace(pid) in wanted:
            # Read again: the pid may have changed hands before its identity was taken.
            identity = ProcessIdentity.of(pid)
            if identity is not None and network_namespace(pid) in wanted:
                found.append(identity)
    return found


def _open(identity: ProcessIdentity) -> int | None:
    """A pidfd of exactly that process; None if it is gone."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    if identity.alive():
        return descriptor
    os.close(descriptor)
    return None


def end_processes(identities: Iterable[ProcessIdentity], *, grace_s: float, timeout_s: float = 10.0) -> None:
    """SIGTERM, after the grace SIGKILL; waits until all have ended, at most the timeout after SIGKILL."""
    poll = select.poll()
    descriptors = set()
    try:
        for identity in identities:
            descriptor = _open(identity)
            if descriptor is not None:
                descriptors.add(descriptor)
                poll.register(descriptor, select.POLLIN)
        left = set(descriptors)
        for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, timeout_s)):
            for descriptor in left:
                try:
                    signal.pidfd_send_signal(descriptor, number)
                except ProcessLookupError:
                    continue
            deadline_s = time.monotonic() + patience_s
            while left and (remaining_s := deadline_s - time.monotonic()) > 0:
                for descriptor, _ in poll.poll(remaining_s * 1000):
                    poll.unregister(descriptor)
                    left.discard(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
