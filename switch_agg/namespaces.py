"""Moving a thread between namespaces: setns(2), which Python 3.11 has no call for."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

Namespace = Literal["net", "mnt", "uts"]

_CLONE_FLAGS: Final[dict[Namespace, int]] = {"mnt": 0x00020000, "net": 0x40000000, "uts": 0x04000000}
_libc: Final = ctypes.CDLL(None, use_errno=True)


def join_namespace(pid: int, kind: Namespace) -> None:
    """Move the calling thread into a namespace of that process.

    Entering a mount namespace also changes the working directory to its root. Raises OSError.
    """
    descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _setns(descriptor, kind, f"the {kind} namespace of process {pid}")
    finally:
        os.close(descriptor)


def new_namespace(kind: Namespace) -> None:
    """Move the calling thread, and what it starts from now on, into a namespace of its own, a copy of its last one.

    With a mount namespace it no longer shares its working directory with the other threads. Raises OSError.
    """
    if _libc.unshare(_CLONE_FLAGS[kind]) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"unshare of the {kind} namespace: {os.strerror(error)}")


@contextmanager
def in_network_of(pid: int) -> Iterator[None]:
    """Within it, the calling thread's new sockets and processes belong to the network namespace of that process."""
    with _within(pid, "net"):
        yield


def hostname_of(pid: int) -> str:
    """What the host of that process is called (uname(2)). Raises OSError."""
    with _within(pid, "uts"):
        return os.uname().nodename


@contextmanager
def _within(pid: int, kind: Namespace) -> Iterator[None]:
    home = os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        join_namespace(pid, kind)
        try:
            yield
        finally:
            _setns(home, kind, f"the own {kind} namespace")
    finally:
        os.close(home)


def _setns(descriptor: int, kind: Namespace, what: str) -> None:
    if _libc.setns(descriptor, _CLONE_FLAGS[kind]) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"setns to {what}: {os.strerror(error)}")
