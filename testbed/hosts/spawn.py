"""Start processes that end with the coordinator, and keep what they print."""

import codecs
import contextlib
import io
import os
import signal
import subprocess
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

from testbed.errors import EnvironmentLacksError, RunFailedError

_KILL_TIMEOUT_S: Final = 10.0
_DRAIN_TIMEOUT_S: Final = 1.0
_CHUNK_BYTES: Final = 65536  # what a pipe holds
_LONGEST_LINE: Final = 2**20
"""In characters: what has no end by then is told in pieces."""

# The kernel's parent-death signal comes when the *thread* that forked ends, so one thread that lives as long
# as this process forks them all.
_SPAWNER: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")


def log_tail(path: Path, *, num_lines: int = 40) -> str:
    """The last lines of a log, for an error message."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 200 * num_lines))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-num_lines:])
    except FileNotFoundError:
        return ""


class Output:
    """Where a process writes: straight to its log or, if someone listens, through a pipe read by line."""

    def __init__(
        self,
        log_path: Path,
        on_output: Callable[[str], None] | None,
        on_error: Callable[[str], None] | None = None,
    ) -> None:
        """With `on_error`, standard error goes there and to `<name>.stderr.log`, else where the output goes."""
        self.log_path = log_path
        self._errors = None if on_error is None else Output(log_path.with_suffix(".stderr.log"), on_error)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._thread: threading.Thread | None = None
        self.descriptor = log
        """For the process; to be closed here (:meth:`close`) once the process has it."""
        if on_output is not None:
            read, self.descriptor = os.pipe2(os.O_CLOEXEC)
            name = f"output of {log_path.stem}"
            self._thread = threading.Thread(target=_copy, args=(read, log, on_output), name=name, daemon=True)
            self._thread.start()

    @property
    def error_descriptor(self) -> int:
        """The same for its standard error."""
        return self.descriptor if self._errors is None else self._errors.descriptor

    def close(self) -> None:
        """The process has its own copies of the descriptors now."""
        os.close(self.descriptor)
        if self._errors is not None:
            self._errors.close()

    def drain(self) -> None:
        """Wait until all that an ended process wrote is in the log (briefly: others may hold the pipe)."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_DRAIN_TIMEOUT_S)
        if self._errors is not None:
            self._errors.drain()


def _copy(read: int, log: int, on_output: Callable[[str], None]) -> None:
    """The log gets the bytes as they are; who listens gets text by line, and a carriage return ends one, too: programs
    that show how far they are end theirs so."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    rest = ""
    with os.fdopen(read, "rb", buffering=0) as source, os.fdopen(log, "wb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            file.write(chunk)
            file.flush()
            *lines, rest = (rest + decoder.decode(chunk)).split("\n")
            for line in lines:
                on_output(line)
            if len(rest) > _LONGEST_LINE:
                on_output(rest)
                rest = ""
        if rest := rest + decoder.decode(b"", final=True).rstrip("\n"):
            on_output(rest)


class StartedProcess:
    """What all started processes have in common; implements testbed.hosts.base.Process."""

    def __init__(self, name: str, pid: int, output: Output, stdin: IO[bytes] | None = None) -> None:
        self.name = name
        self.pid = pid
        self._output = output
        self._stdin = stdin

    @property
    def log_path(self) -> Path:
        """Where its standard output and error go."""
        return self._output.log_path

    @abstractmethod
    def _status(self, timeout_s: float) -> int | None:
        """The exit status, waiting at most so long for it."""

    def poll(self) -> int | None:
        """The exit status (negative: the signal that ended it), or None while it runs."""
        return self._status(0.0)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end; None if it still runs after the timeout. Its log is then complete."""
        status = self._status(timeout_s)
        if status is not None:
            self._output.drain()
            if self._stdin is not None:
                self._stdin.close()
        return status

    def tell(self, line: str) -> None:
        """Write a line to its standard input. Raises RunFailedError when it has ended."""
        assert self._stdin is not None, f"process {self.name} was not started to listen"
        try:
            self._stdin.write(line.encode() + b"\n")
        except (OSError, ValueError) as error:  # ValueError: it is known to have ended
            raise RunFailedError(f"process {self.name} (pid {self.pid}) no longer listens: {error}") from error

    def send_signal(self, number: int, /) -> None:
        """Send a signal to it and what it started (its process group); does nothing if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def stop(self, timeout_s: float) -> int:
        """SIGTERM, then SIGKILL after the timeout; returns the exit status."""
        self.send_signal(signal.SIGTERM)
        status = self.wait(timeout_s)
        if status is None:
            self.send_signal(signal.SIGKILL)
            status = self.wait(_KILL_TIMEOUT_S)
        if status is None:
            raise RunFailedError(f"process {self.name} (pid {self.pid}) does not end, not even by SIGKILL")
        return status


class SpawnedProcess(StartedProcess):
    """A child of this process."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes], output: Output) -> None:
        super().__init__(name, popen.pid, output, popen.stdin)
        self._popen = popen

    def _status(self, timeout_s: float) -> int | None:
        if timeout_s <= 0:
            return self._popen.poll()
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None


def spawn(
    name: str,
    argv: Sequence[str],
    output: Output,
    *,
    environment: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    listens: bool = False,
    stdin: int | None = None,
) -> SpawnedProcess:
    """Start a process in a session of its own that ends (SIGKILL) with this process.

    `output` is closed here. One that `listens` has a pipe as its standard input, else it is the descriptor `stdin`, or
    there is nothing to read. Raises EnvironmentLacksError if the program cannot be executed.
    """
    given = subprocess.DEVNULL if stdin is None else stdin

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *argv],
            stdin=subprocess.PIPE if listens else given,
            bufsize=0,
            stdout=output.descriptor,
            stderr=output.error_descriptor,
            env=environment,
            pass_fds=pass_fds,
            start_new_session=True,
        )

    try:
        popen = _SPAWNER.submit(start).result()
    except FileNotFoundError as error:
        raise EnvironmentLacksError(f"cannot start {name}: {error}; install util-linux") from error
    finally:
        output.close()
    return SpawnedProcess(name, popen, output)
