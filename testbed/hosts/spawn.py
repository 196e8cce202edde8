"""Start processes that end with the coordinator, and keep what they print."""

import codecs
import contextlib
import io
import logging
import os
import select
import signal
import subprocess
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

from testbed.errors import MissingRequirementError, RunFailedError

_log: Final = logging.getLogger(__name__)

_KILL_TIMEOUT_S: Final = 10.0
_DRAIN_TIMEOUT_S: Final = 1.0
_CHUNK_BYTES: Final = 65536  # what a pipe holds
_MOST_BYTES: Final = 2**20  # and what it can be made to hold (fs.pipe-max-size in proc(5))
_LONGEST_LINE: Final = 2**20
"""In characters: what has no end by then is passed on in pieces."""


class _Spawner:
    """One thread that lives as long as this process and forks all that it starts: the kernel's parent-death signal
    comes when the *thread* that forked ends."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """In a forked child, where the thread is not."""
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")


_spawner: Final = _Spawner()
os.register_at_fork(after_in_child=_spawner.renew)


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
        self._copier: _Copier | None = None
        self.descriptor = log
        """For the process; to be closed here (:meth:`close`) once the process has it."""
        if on_output is not None:
            read, self.descriptor = os.pipe2(os.O_CLOEXEC)
            self._copier = _Copier(f"output of {log_path.stem}", read, log, on_output)

    @property
    def error_descriptor(self) -> int:
        """The descriptor that the process' standard error goes to."""
        return self.descriptor if self._errors is None else self._errors.descriptor

    def close(self) -> None:
        """The process has its own copies of the descriptors now."""
        os.close(self.descriptor)
        if self._errors is not None:
            self._errors.close()

    def drain(self) -> None:
        """All that an ended process wrote is in the log when this returns, and whoever listens has it if that
        is quick (others may hold the pipe, and a listener may be stuck)."""
        if self._copier is not None:
            self._copier.drain()
        if self._errors is not None:
            self._errors.drain()


class _Copier:
    """Copies a pipe to a log, and tells a listener each line, on a thread of its own.

    The log gets the bytes as they are, whatever becomes of the listener, which gets text by line. A carriage return
    ends a line, too: programs that show how far they are end theirs so.
    """

    def __init__(self, name: str, read: int, log: int, on_output: Callable[[str], None]) -> None:
        os.set_blocking(read, False)  # our end alone: the process's blocks as ever
        self._read = read
        self._log = log
        self._on_output: Callable[[str], None] | None = on_output
        self._taking = threading.Lock()
        self._taken: deque[bytes] = deque()
        """In the log, and not passed on yet."""
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """See :meth:`Output.drain`."""
        if self._thread is not threading.current_thread():
            self._thread.join(_DRAIN_TIMEOUT_S)
        for _ in range(_MOST_BYTES // _CHUNK_BYTES):
            if not self._take():
                break

    def _run(self) -> None:
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        rest = ""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        while not self._ended or self._taken:
            if not self._take() and not self._ended:
                poll.poll()
            while self._taken:
                *lines, rest = (rest + decoder.decode(self._taken.popleft())).split("\n")
                for line in lines:
                    self._tell(line)
                if len(rest) > _LONGEST_LINE:
                    self._tell(rest)
                    rest = ""
        if rest := rest + decoder.decode(b"", final=True).rstrip("\n"):
            self._tell(rest)
        os.close(self._read)
        os.close(self._log)

    def _take(self) -> bool:
        """Move what the pipe has to the log; False when it has nothing, for now or for ever."""
        with self._taking:
            if self._ended:
                return False
            try:
                chunk = os.read(self._read, _CHUNK_BYTES)
            except BlockingIOError:
                return False
            if not chunk:
                self._ended = True
                return False
            self._taken.append(chunk)
            while chunk:
                chunk = chunk[os.write(self._log, chunk) :]
            return True

    def _tell(self, line: str) -> None:
        """A listener that fails hears no more."""
        if self._on_output is None:
            return
        try:
            self._on_output(line)
        except BaseException:  # noqa: BLE001 - SystemExit, too, which rich raises where a pipe is broken
            self._on_output = None
            _log.exception("%s: whoever listens has failed and hears no more; the log goes on", self._thread.name)


class StartedProcess:
    """What all started processes have in common; implements testbed.hosts.base.Process."""

    def __init__(self, name: str, pid: int, output: Output, stdin: IO[bytes] | None = None) -> None:
        self.name = name
        self.pid = pid
        self._output = output
        self._stdin = stdin

    @property
    def log_path(self) -> Path:
        """The file that its standard output and error go to."""
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
    there is nothing to read. Raises MissingRequirementError if the program cannot be executed.
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
        popen = _spawner.thread.submit(start).result()
    except FileNotFoundError as error:
        raise MissingRequirementError(f"cannot start {name}: {error}; install util-linux") from error
    finally:
        output.close()
    return SpawnedProcess(name, popen, output)
