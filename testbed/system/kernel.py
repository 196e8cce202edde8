"""What Python 3.11 has no call for: prctl(2)'s parent-death signal, mount(2), malloc_trim(3), sysctls."""

import ctypes
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from testbed.errors import MissingRequirementError

MEASURING_PRIORITY: Final = 5
"""Of SCHED_FIFO; below the 10 of the programs that delay packets."""
_PR_SET_PDEATHSIG: Final = 1
_MS_RDONLY: Final = 0x1  # mount(2)
_MS_REMOUNT: Final = 0x20
_MS_BIND: Final = 0x1000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 0x40000

_libc: Final = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def network_namespace(pid: int) -> int | None:
    """The inode of a process' network namespace; None if it is gone, or may not be looked at."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino  # noqa: PTH116 - done for every process of the machine
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


@contextmanager
def realtime() -> Iterator[None]:
    """Within it the calling thread runs before every ordinary one (SCHED_FIFO), where it may.

    For threads that measure: what else runs would otherwise be measured with the link.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(MEASURING_PRIORITY))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def keep_mounts_private() -> None:
    """What is mounted in the calling thread's mount namespace from now on is seen in no other. Raises OSError."""
    _mount(None, Path("/"), _MS_REC | _MS_PRIVATE, "mount --make-rprivate /")


def mount_read_only(source: Path, target: Path) -> None:
    """Put a file, or a device, in the place of another in the calling thread's mount namespace; what is there stays as
    it is, covered, and nobody writes to what covers it. Raises OSError."""
    _mount(source, target, _MS_BIND, f"mount --bind {source} {target}")
    _mount(None, target, _MS_BIND | _MS_REMOUNT | _MS_RDONLY, f"mount -o remount,bind,ro {target}")


def _mount(source: Path | None, target: Path, flags: int, what: str) -> None:
    _check(_libc.mount(os.fsencode(source) if source else None, os.fsencode(target), None, flags, None), what)


def has_sysctl(key: str) -> bool:
    """Whether this kernel has the setting: `net.ipv4.ip_forward`."""
    return _sysctl_path(key).exists()


def read_sysctl(key: str) -> str:
    """Its value for the calling thread's network namespace, with single spaces. Raises OSError."""
    return " ".join(_sysctl_path(key).read_text().split())


def write_sysctl(key: str, value: str) -> None:
    """Set it for the calling thread's network namespace. Raises OSError."""
    _sysctl_path(key).write_text(value)


def _sysctl_path(key: str) -> Path:
    return Path("/proc/sys", *key.split("."))


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the *thread* that forked it ends (prctl(2), PR_SET_PDEATHSIG).

    Raises ProcessLookupError if the parent ended before the kernel knew.
    """
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        raise ProcessLookupError(f"the parent process {parent_pid} is gone")


def return_free_memory() -> None:
    """Give back what malloc keeps in reserve (malloc_trim(3); glibc only): 30 MB after a model is dropped."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(0)


def require_descriptors(count: int) -> None:
    """Let this process and what it starts open so many files at once, as far as it may. Raises MissingRequirementError
    where its hard limit is lower and only root could raise it; a limit that is high enough stays as it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    try:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (count, hard if hard == resource.RLIM_INFINITY else max(hard, count))
        )
    except (ValueError, OSError) as error:
        raise MissingRequirementError(
            f"this process may open {soft} files at once, and {count} are needed: ulimit -n {count} (as root), or "
            "raise the limit in /etc/security/limits.conf or the container's --ulimit nofile"
        ) from error
