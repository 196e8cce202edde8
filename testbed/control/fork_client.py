"""The coordinator's side of testbed.control.fork_server: start it early, fork workers later."""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from testbed.control.fork_server import MAX_PACKET_BYTES, ForkRequest
from testbed.errors import RunFailedError
from testbed.hosts.spawn import Output, StartedProcess, log_tail, spawn
from testbed.processes import RUN_ID_VARIABLE
from testbed.state import RunState

_ENVIRONMENT: Final[Mapping[str, str]] = {
    # Threads that exist at the fork do not exist in the child; OpenMP and BLAS would wait for them for ever.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # gRPC must not hook into fork(): nothing forks once it is imported.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
_AGENT: Final = "testbed.control.agent"
"""Every worker's entry; with what it imports (pydantic, protobuf) it is shared when imported before the fork."""
_FORK_TIMEOUT_S: Final = 30.0
_CLOSE_TIMEOUT_S: Final = 10.0


class ForkedProcess(StartedProcess):
    """A child of the fork server."""

    def __init__(self, name: str, pid: int, output: Output) -> None:
        super().__init__(name, pid, output)
        self._exit: Future[int] = Future()

    def _status(self, timeout_s: float) -> int | None:
        try:
            return self._exit.result(timeout_s)
        except TimeoutError:
            return None

    def ended(self, status: int) -> None:
        """Told by the fork server."""
        self._exit.set_result(status)


class ForkServer:
    """Starts the fork server at once and in the background; :meth:`wait_ready` before the first fork."""

    def __init__(self, state: RunState, modules: Sequence[str], *, log_directory: Path) -> None:
        self._state = state
        self._ready: Future[float] = Future()
        self._lock = threading.Lock()
        self._pending: dict[str, tuple[Future[ForkedProcess], Output]] = {}
        self._running: dict[int, ForkedProcess] = {}
        self._closing = False
        self._failure: str | None = None
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = spawn(
                "fork-server",
                # -P and PYTHONPATH: it imports from where this process does, not from the working directory.
                [
                    *(sys.executable, "-P", "-m", "testbed.control.fork_server"),
                    *(str(theirs.fileno()), str(os.getpid()), _AGENT, *modules),
                ],
                Output(log_directory / "fork-server.log", None),
                environment={
                    **os.environ,
                    **_ENVIRONMENT,
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                    RUN_ID_VARIABLE: state.run_id,
                },
                pass_fds=[theirs.fileno()],
            )
        state.add_process("fork-server", self._process.pid)
        self._reader = threading.Thread(target=self._read, name="fork-server replies", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The fork server's own process."""
        return self._process.pid

    @property
    def failure(self) -> str | None:
        """Why it has ended without being asked to; None while all is well."""
        return self._failure

    def wait_ready(self, timeout_s: float) -> float:
        """Wait until everything is imported; returns the seconds that took. Raises RunFailedError."""
        try:
            return self._ready.result(timeout_s)
        except TimeoutError:
            raise RunFailedError(
                f"the fork server has not imported its modules within {timeout_s:g} s\n{self._log_tail()}"
            ) from None

    def fork(
        self,
        name: str,
        entry: str,
        arguments: Sequence[str],
        *,
        namespace_pid: int,
        output: Output,
        environment: Mapping[str, str],
        procs_files: Sequence[Path] = (),
    ) -> ForkedProcess:
        """Fork a child that enters the namespaces of `namespace_pid` and calls `entry` (`module:function`).

        `output` is closed here. Raises RunFailedError if the fork server has ended or refuses.
        """
        request = ForkRequest(
            name=name,
            namespace_pid=namespace_pid,
            entry=entry,
            arguments=list(arguments),
            environment=dict(environment),
            procs_files=[str(path) for path in procs_files],
            directory=str(Path.cwd()),
        )
        forked: Future[ForkedProcess] = Future()
        try:
            with self._lock:
                if self._failure is not None:
                    raise RunFailedError(self._failure)
                assert name not in self._pending, f"{name} is being forked already"
                self._pending[name] = (forked, output)
                socket.send_fds(self._connection, [request.encode()], [output.descriptor])
        except OSError as error:
            raise RunFailedError(f"cannot fork {name}: the fork server is gone: {error}") from error
        finally:
            output.close()
        try:
            process = forked.result(_FORK_TIMEOUT_S)
        except TimeoutError:
            raise RunFailedError(f"the fork server has not forked {name} within {_FORK_TIMEOUT_S:g} s") from None
        self._state.add_process(name, process.pid)
        return process

    def close(self) -> None:
        """End the fork server and with it all its children. Idempotent."""
        self._closing = True
        with contextlib.suppress(OSError):  # it has ended already
            self._connection.shutdown(socket.SHUT_RDWR)
        if self._process.wait(_CLOSE_TIMEOUT_S) is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(_CLOSE_TIMEOUT_S)
        self._reader.join(_CLOSE_TIMEOUT_S)
        self._connection.close()

    def _log_tail(self) -> str:
        return log_tail(self._process.log_path)

    def _read(self) -> None:
        while True:
            try:
                packet = self._connection.recv(MAX_PACKET_BYTES)
            except ConnectionResetError:
                break
            if not packet:
                break
            self._handle(json.loads(packet))
        self._end()

    def _handle(self, message: Mapping[str, Any]) -> None:
        if "ready" in message:
            self._ready.set_result(message["ready"])
        elif "exited" in message:
            self._running.pop(message["pid"]).ended(message["status"])
        else:
            with self._lock:
                forked, output = self._pending.pop(message.get("forked") or message["refused"])
            if "refused" in message:
                forked.set_exception(RunFailedError(f"cannot fork {message['refused']}: {message['error']}"))
            else:
                process = ForkedProcess(message["forked"], message["pid"], output)
                self._running[process.pid] = process
                forked.set_result(process)

    def _end(self) -> None:
        """The fork server has closed its end: it is ending or dead, and its children with it."""
        status = self._process.wait(_CLOSE_TIMEOUT_S)
        failure = f"the fork server (pid {self.pid}) ended with status {status}\n{self._log_tail()}".rstrip()
        with self._lock:
            if not self._closing:
                self._failure = failure
            pending, self._pending = self._pending, {}
        error = RunFailedError(failure)
        if not self._ready.done():
            self._ready.set_exception(error)
        for forked, _ in pending.values():
            forked.set_exception(error)
        while self._running:
            pid, process = self._running.popitem()
            _wait_gone(pid)
            process.ended(-signal.SIGKILL)


def _wait_gone(pid: int) -> None:
    """Wait for the end of a process that is no child of this one; the kernel has sent it SIGKILL already."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(_CLOSE_TIMEOUT_S * 1000)
    finally:
        os.close(descriptor)
