"""The coordinator's side of testbed.hosts.fork_server: start it early, fork workers later.

:class:`ForkClient` is the conversation; :class:`ForkServer` is one with a process of this machine, and
testbed.hosts.container has one with the first process of a container.
"""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, Final

from testbed.errors import RunFailedError
from testbed.hosts.fork_server import MAX_PACKET_BYTES, ForkRequest
from testbed.hosts.spawn import Output, StartedProcess, log_tail, spawn
from testbed.system.processes import RUN_ID_VARIABLE
from testbed.system.run_state import RunState

FORKING_ENVIRONMENT: Final[Mapping[str, str]] = {
    # Threads that exist at the fork do not exist in the child; OpenMP and BLAS would wait for them for ever.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # gRPC must not hook into fork(): nothing forks once it is imported.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
AGENT: Final = "testbed.worker.agent"
"""Every worker's entry; with what it imports (pydantic, protobuf) it is shared when imported before the fork."""
CLOSE_TIMEOUT_S: Final = 10.0
_FORK_TIMEOUT_S: Final = 30.0
_CREDENTIALS: Final = struct.Struct("3i")
"""pid, uid and gid: struct ucred in unix(7)."""


class ForkedProcess(StartedProcess):
    """A child of the fork server."""

    def __init__(self, name: str, pid: int, output: Output, stdin: IO[bytes] | None = None) -> None:
        super().__init__(name, pid, output, stdin)
        self._exit: Future[int] = Future()

    def _status(self, timeout_s: float) -> int | None:
        try:
            return self._exit.result(timeout_s)
        except TimeoutError:
            return None

    def ended(self, status: int) -> None:
        """Called with the status that the fork server reports."""
        self._exit.set_result(status)


class ForkClient:
    """Talks to one fork server, which it trusts to harm none but its own children."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._ready: Future[float] = Future()
        self._lock = threading.Lock()
        self._pending: dict[str, tuple[Future[ForkedProcess], Output, IO[bytes] | None]] = {}
        self._running: dict[str, ForkedProcess] = {}
        self._closing = False
        self._failure: str | None = None
        self._connection: socket.socket | None = None
        self._reader = threading.Thread(target=self._read, name="fork server replies", daemon=True)

    @property
    @abstractmethod
    def title(self) -> str:
        """What errors call it."""

    @abstractmethod
    def _connect(self) -> socket.socket | None:
        """Called once: the connection, with SO_PASSCRED set; None if the server has ended before there was one."""

    @abstractmethod
    def _wait_ended(self, timeout_s: float) -> int | None:
        """Its exit status, waiting at most so long for it; None while it runs."""

    @abstractmethod
    def _kill(self) -> None:
        """It has not ended when it should."""

    @abstractmethod
    def _explain(self, status: int | None) -> str:
        """Why it has ended, and the end of what it printed."""

    def _why_unsupported(self, ready: Mapping[str, Any]) -> str | None:  # noqa: ARG002 (a container may be refused)
        """Why a server that says this of itself cannot be used; None: it can."""
        return None

    @property
    def failure(self) -> str | None:
        """Why it has ended unexpectedly, and its processes with it; None while all is well."""
        with self._lock:
            return self._failure

    def wait_ready(self, timeout_s: float) -> float:
        """Wait until everything is imported; returns the seconds that took. Raises RunFailedError."""
        try:
            return self._ready.result(timeout_s)
        except TimeoutError:
            raise RunFailedError(f"{self.title} has not imported its modules within {timeout_s:g} s") from None

    def fork(
        self, request: ForkRequest, output: Output, *, listens: bool = False, stdin: int | None = None
    ) -> ForkedProcess:
        """Fork a child that becomes what the request says; one that `listens` has a pipe as its standard input, another
        the descriptor `stdin`.

        `output` is closed here. Raises RunFailedError if the fork server has ended or refuses.
        """
        name, written = request.name, None
        forked: Future[ForkedProcess] = Future()
        descriptors = [output.descriptor, output.error_descriptor]
        with contextlib.ExitStack() as unless_forked:
            try:
                self.wait_ready(_FORK_TIMEOUT_S)
                if listens:
                    read, write = os.pipe2(os.O_CLOEXEC)
                    descriptors.append(read)
                    written = unless_forked.enter_context(os.fdopen(write, "wb", buffering=0))
                elif stdin is not None:
                    descriptors.append(os.dup(stdin))
                with self._lock:
                    if self._failure is not None or self._connection is None:
                        raise RunFailedError(self._failure or f"{self.title} is closed")
                    assert name not in self._pending, f"{name} is being forked already"
                    self._pending[name] = (forked, output, written)
                    socket.send_fds(self._connection, [request.encode()], descriptors)
            except OSError as error:
                raise RunFailedError(f"cannot fork {name}: {self.title} is gone: {error}") from error
            finally:
                output.close()
                for descriptor in descriptors[2:]:
                    os.close(descriptor)
            try:
                process = forked.result(_FORK_TIMEOUT_S)
            except TimeoutError:
                raise RunFailedError(f"{self.title} has not forked {name} within {_FORK_TIMEOUT_S:g} s") from None
            unless_forked.pop_all()
        self._state.add_process(name, process.pid)
        return process

    def close(self) -> None:
        """End the fork server and with it all its children. Idempotent."""
        self._closing = True
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(OSError):  # it has ended already
                    self._connection.shutdown(socket.SHUT_RDWR)
        if self._wait_ended(CLOSE_TIMEOUT_S) is None:
            self._kill()
            self._wait_ended(CLOSE_TIMEOUT_S)
        if self._reader.is_alive():  # or it was never started
            self._reader.join(CLOSE_TIMEOUT_S)
        if self._connection is not None:
            self._connection.close()

    def _read(self) -> None:
        connection = self._connect()
        with self._lock:
            self._connection = connection
        while connection is not None:
            try:
                packet, ancillary, _, _ = connection.recvmsg(MAX_PACKET_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
            except ConnectionResetError:
                break
            if not packet:
                break
            try:
                self._handle(json.loads(packet), _sender_pid(ancillary))
            except (ValueError, TypeError, KeyError, RecursionError):  # a container may send anything
                connection.shutdown(socket.SHUT_RDWR)  # it ends then
                break
        self._end()

    def _handle(self, message: Mapping[str, Any], sender_pid: int) -> None:
        if "ready" in message:
            if (failure := self._why_unsupported(message)) is not None:
                self._ready.set_exception(RunFailedError(failure))
            else:
                self._ready.set_result(float(message["ready"]))
        elif "exited" in message:
            status = int(message["status"])
            self._running.pop(message["exited"]).ended(status)
        else:
            with self._lock:
                forked, output, stdin = self._pending.pop(message.get("forked") or message["refused"])
            if "refused" in message:
                forked.set_exception(RunFailedError(f"cannot fork {message['refused']}: {message['error']}"))
            else:
                process = ForkedProcess(message["forked"], sender_pid, output, stdin)
                self._running[process.name] = process
                forked.set_result(process)

    def _end(self) -> None:
        """The fork server has closed its end: it is ending or dead, and its children with it."""
        status = self._wait_ended(CLOSE_TIMEOUT_S)
        failure = self._explain(status)
        for process in self._running.values():
            _wait_gone(process.pid)
        with self._lock:
            if not self._closing:
                self._failure = failure
            pending, self._pending = self._pending, {}
            # Together with the reason: whoever sees one of them finds the other.
            while self._running:
                self._running.popitem()[1].ended(-signal.SIGKILL)
        error = RunFailedError(failure)
        if not self._ready.done():
            self._ready.set_exception(error)
        for forked, _, _ in pending.values():
            forked.set_exception(error)


class ForkServer(ForkClient):
    """Starts a fork server in the background, beside this process; :meth:`wait_ready` before the first fork."""

    def __init__(self, state: RunState, modules: Sequence[str], *, log_directory: Path) -> None:
        super().__init__(state)
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with theirs:
            self._process = spawn(
                "fork-server",
                # -P and PYTHONPATH: it imports from where this process does, not from the working directory.
                [
                    *(sys.executable, "-P", "-m", "testbed.hosts.fork_server"),
                    *(str(theirs.fileno()), str(os.getpid()), AGENT, *modules),
                ],
                Output(log_directory / "fork-server.log", None),
                environment={
                    **os.environ,
                    **FORKING_ENVIRONMENT,
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                    RUN_ID_VARIABLE: state.run_id,
                },
                pass_fds=[theirs.fileno()],
            )
        state.add_process("fork-server", self._process.pid)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The fork server's own process."""
        return self._process.pid

    @property
    def title(self) -> str:
        """What errors call it."""
        return "the fork server"

    def _connect(self) -> socket.socket:
        return self._ours

    def _wait_ended(self, timeout_s: float) -> int | None:
        return self._process.wait(timeout_s)

    def _kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    def _explain(self, status: int | None) -> str:
        tail = log_tail(self._process.log_path)
        return f"the fork server (pid {self.pid}) ended with status {status}\n{tail}".rstrip()


def _sender_pid(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    """As the kernel attached it. Raises ValueError where there is none that this process could see."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, _, _ = _CREDENTIALS.unpack(data)
            if pid > 0:
                return int(pid)
    raise ValueError("a packet without its sender's pid")


def _wait_gone(pid: int) -> None:
    """Wait for the end of a process that is no child of this one; the kernel has sent it SIGKILL already."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(CLOSE_TIMEOUT_S * 1000)
    finally:
        os.close(descriptor)
