"""Processes that hold namespaces with a name of their own, in which every host of the run is known by its name.

A child has the namespaces of the thread that makes it. So one thread of this process moves into a mount namespace where
the run's `/etc/hosts` covers the machine's, once, and into a new UTS namespace, with its host's name, before each child
that it starts. The machine's own name and files are never written; no further process is needed, and a host costs
about 40 us.
"""

import os
import socket
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from switch_agg.namespaces import hostname_of, new_namespace
from testbed.errors import MissingRequirementError
from testbed.plan.names import RESOLVER, files_first, hosts_differences, hosts_text
from testbed.system.kernel import keep_mounts_private, mount_read_only

HOSTS: Final = Path("/etc/hosts")
SERVICES: Final = Path("/etc/nsswitch.conf")
RESOLVER_FILE: Final = Path("/etc/resolv.conf")
CACHE_SOCKET: Final = Path("/var/run/nscd/socket")
"""By which glibc asks the machine's name service cache daemon before it looks anywhere itself (nscd(8))."""

Result = TypeVar("Result")


class NamingThread:
    """Starts the processes that hold the namespaces of one run's nodes."""

    def __init__(self, names: Mapping[str, str], directory: Path) -> None:
        """`names` are the addresses of all hosts by their names; files that it makes are in the run's directory.

        Raises MissingRequirementError when a file cannot be covered.
        """
        self._names = names
        self._directory = directory
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="naming")
        try:
            self._do(self._cover)
        except BaseException:
            self.close()
            raise

    def start(self, name: str, do: Callable[[], "subprocess.Popen[bytes]"]) -> "subprocess.Popen[bytes]":
        """What `do` starts is in a host of that name. Raises MissingRequirementError where the kernel has none to give,
        and whatever `do` raises."""

        def named() -> "subprocess.Popen[bytes]":
            try:
                new_namespace("uts")
                socket.sethostname(name)
            except OSError as error:
                raise MissingRequirementError(f"no host name for {name}: {error}") from error
            return do()

        return self._do(named)

    def close(self) -> None:
        """End the thread, and with it the mounts that no child has. Idempotent."""
        self._thread.shutdown()

    def _do(self, what: Callable[[], Result]) -> Result:
        return self._thread.submit(what).result()

    def _cover(self) -> None:
        try:
            new_namespace("mnt")
            keep_mounts_private()
            self._cover_by(HOSTS, hosts_text(self._names, HOSTS.read_text(errors="surrogateescape")))
            if SERVICES.exists() and (text := files_first(SERVICES.read_text(errors="surrogateescape"))) is not None:
                self._cover_by(SERVICES, text)
            if RESOLVER_FILE.exists():
                self._cover_by(RESOLVER_FILE, RESOLVER)
            if CACHE_SOCKET.exists():
                mount_read_only(
                    Path(os.devnull), CACHE_SOCKET.resolve()
                )  # nobody answers; then libraries look themselves
        except OSError as error:
            raise MissingRequirementError(f"hosts cannot be given names: {error}") from error

    def _cover_by(self, path: Path, text: str) -> None:
        source = self._directory / path.name
        source.write_text(text, errors="surrogateescape")
        source.chmod(0o644)  # whatever the umask is: workers need not be root
        mount_read_only(source, path.resolve())


def name_differences(pid: int, name: str, names: Mapping[str, str], *, contained: bool) -> list[str]:
    """Where the host of that process is not called so, or does not know the others by their names, as its kernel and
    its files say; in a container these are the image's and Docker's."""
    called = hostname_of(pid)
    found = [] if called == name else [f"is called {called}, requested {name}"]
    hosts, services = (_seen(pid, path, contained=contained) for path in (HOSTS, SERVICES))
    found += hosts_differences(hosts, names)
    if files_first(services) is not None:
        found.append(
            f"{SERVICES} has host names looked up elsewhere before {HOSTS}; put `files` first in its line `hosts`"
        )
    return [f"{name}: {each}" for each in found]


def _seen(pid: int, path: Path, *, contained: bool) -> str:
    # A link in it would be followed from here; namespaces have this machine's files, so theirs is followed beforehand.
    inside = path if contained else path.resolve()
    try:
        return Path(f"/proc/{pid}/root{inside}").read_text(errors="surrogateescape")
    except FileNotFoundError:
        return ""
