"""Moving a thread between namespaces: setns(2), which Python 3.11 has no call for."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

Namespace = Literal["net", "mnt"]

_CLONE_FLAGS: Final[dict[Namespace, int]] = {"mnt": 0x00020000, "net": 0x40000000}
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


@contextmanager
def in_network_of(pid: int) -> Iterator[None]:
    """Within it, the calling thread's new sockets and processes belong to the network namespace of that process."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        join_namespace(pid, "net")
        try:
            yield
        finally:
            _setns(home, "net", "the own network namespace")
    finally:
        os.close(home)


def _setns(descriptor: int, kind: Namespace, what: str) -> None:
    if _libc.setns(descriptor, _CLONE_FLAGS[kind]) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"setns to {what}: {os.strerror(error)}")
