"""A process that holds the namespaces of one node."""

import os
import subprocess
from contextlib import suppress
from typing import Final

from testbed.errors import MissingRequirementError
from testbed.hosts.naming import NamingThread
from testbed.system.processes import RUN_ID_VARIABLE

_END_TIMEOUT_S: Final = 10.0
_READY: Final = b"\n"


class Holder:
    """A `cat` behind a pipe, in a network, mount and UTS namespace of its own, with the run's id in its environment: it
    says that it stands by echoing a line, and ends when this process does."""

    def __init__(self, name: str, *, naming: NamingThread, run_id: str) -> None:
        """Returns at once; :meth:`wait_ready` waits for it. Raises MissingRequirementError without mnexec."""
        self.name = name
        self._process = start_named(
            naming,
            name,
            ["mnexec", "-dn", "cat"],
            run_id=run_id,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.pid = self._process.pid
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then what it said is read by wait_ready()
            self._process.stdin.write(_READY)

    def wait_ready(self) -> None:
        """Until the namespaces exist. Raises MissingRequirementError with what mnexec said."""
        assert self._process.stdout is not None
        said = self._process.stdout.read(1)
        if said != _READY:
            said += self._process.stdout.read()
            raise MissingRequirementError(f"no namespaces for {self.name}: {said.decode(errors='replace').strip()}")

    def release(self) -> None:
        """Let it end, without waiting."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def end(self) -> None:
        """Let it end, and wait."""
        self.release()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def start_named(
    naming: NamingThread, name: str, argv: list[str], *, run_id: str, **options: object
) -> "subprocess.Popen[bytes]":
    """Start a program of the run in namespaces of a host of that name; options are those of `subprocess.Popen`. Raises
    MissingRequirementError."""
    environment = {**os.environ, RUN_ID_VARIABLE: run_id}
    popen: type[subprocess.Popen[bytes]] = subprocess.Popen
    try:
        return naming.start(name, lambda: popen(argv, env=environment, **options))  # type: ignore[call-overload]
    except FileNotFoundError as error:
        raise MissingRequirementError(f"{error.filename} is missing: apt-get install mininet") from error
