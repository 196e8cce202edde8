"""The coordinator's side of testbed.hosts.fork_server: start it early, fork workers later.

:class:`ForkClient` is the conversation; :class:`ForkServer` is one with a run's fork server on this machine, and
testbed.hosts.container has one with the first process of a container. :class:`_Template` is one with the process that
imports for all runs of this process, and forks their fork servers: the second run of a sweep waits for no import.
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
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, Final

from testbed.errors import MissingRequirementError, RunFailedError
from testbed.hosts.fork_server import MAX_PACKET_BYTES, ForkRequest
from testbed.hosts.spawn import Output, StartedProcess, log_tail, spawn
from testbed.system.processes import RUN_ID_VARIABLE, UNCLAIMED
from testbed.system.run_state import RunState

FORKING_ENVIRONMENT: Final[Mapping[str, str]] = {
    # Threads that exist at the fork do not exist in the child; OpenMP and BLAS would wait for them for ever.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # gRPC must not hook into fork(): nothing forks once it is imported.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
OF_EVERY_WORKER: Final = ("testbed.worker.agent", "testbed.worker.registries")
"""Every worker's entry, and what its configuration is parsed with; imported before the fork they are shared."""
_IMPORT_TIMEOUT_S: Final = 120.0
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

    def __init__(self, note: Callable[[str, int], None]) -> None:
        """`note` hears the name and the pid of each child as soon as it is forked."""
        self._note = note
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
        self._note(name, process.pid)
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
            except (ValueError, TypeError, LookupError, RecursionError):  # a container may send anything
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


class _Template(ForkClient):
    """The process that imports for all runs of this one, and ends with it. Started in the background."""

    def __init__(self, environment: Mapping[str, str], path: Sequence[str]) -> None:
        super().__init__(lambda _name, _pid: None)
        self._imports: deque[Future[None]] = deque()
        """Requested, in order, and not done yet."""
        self._over = False
        self._log = os.fdopen(os.memfd_create("template.log"), "rb", buffering=0)  # it is no run's
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with theirs:
            self._process = spawn(
                "template",
                # -P and PYTHONPATH: it imports from where this process does, not from the working directory.
                [
                    *(sys.executable, "-P", "-m", "testbed.hosts.fork_server"),
                    *(str(theirs.fileno()), str(os.getpid())),
                ],
                Output(Path(f"/proc/{os.getpid()}/fd/{self._log.fileno()}"), None),
                environment={
                    **environment,
                    **FORKING_ENVIRONMENT,
                    "PYTHONPATH": os.pathsep.join(each for each in path if each),
                    RUN_ID_VARIABLE: UNCLAIMED,
                },
                pass_fds=[theirs.fileno()],
            )
        self._reader.start()

    @property
    def title(self) -> str:
        """What errors call it."""
        return "the process that imports for all runs"

    @property
    def idle(self) -> bool:
        """Whether nothing of it runs."""
        return not (self._running or self._pending)

    def preload(self, modules: Sequence[str]) -> Future[None]:
        """Have modules imported, so that what is forked later finds them; done when they are, or cannot be."""
        imported: Future[None] = Future()
        with self._lock:
            if self._over:  # whoever forks hears why
                imported.set_result(None)
                return imported
            self._imports.append(imported)
            with contextlib.suppress(OSError):  # it is ending
                self._ours.send(json.dumps({"import": list(modules)}).encode())
        return imported

    def leave(self) -> None:
        """In a forked child, which closes its descriptors: the template stays the parent's, who reads what it says."""
        self._ours.close()
        self._log.close()

    def close(self) -> None:
        """End it and with it all its children. Idempotent."""
        super().close()
        self._log.close()

    def _handle(self, message: Mapping[str, Any], sender_pid: int) -> None:
        if "imported" in message:
            with self._lock:
                imported = self._imports.popleft()
            imported.set_result(None)
        else:
            super()._handle(message, sender_pid)

    def _end(self) -> None:
        super()._end()
        with self._lock:
            self._over = True
            imports, self._imports = self._imports, deque()
        for imported in imports:
            imported.set_result(None)

    def _connect(self) -> socket.socket:
        return self._ours

    def _wait_ended(self, timeout_s: float) -> int | None:
        return self._process.wait(timeout_s)

    def _kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    def _explain(self, status: int | None) -> str:
        tail = log_tail(self._process.log_path)
        return f"{self.title} (pid {self._process.pid}) ended with status {status}\n{tail}".rstrip()


class _Templates:
    """The template of this process, made when it is first needed."""

    def __init__(self) -> None:
        self._template: _Template | None = None
        self.renew()

    def renew(self) -> None:
        """In a forked child, where neither whoever holds the lock is nor the thread that reads a template's replies."""
        if self._template is not None:
            self._template.leave()
        self._lock = threading.Lock()
        self._template = None
        self._made_with: tuple[dict[str, str], list[str]] | None = None

    def current(self) -> _Template:
        """The one there is, unless it has ended, or this process's environment or `sys.path` are others now: libraries
        look at variables when they are imported."""
        environment = {name: value for name, value in os.environ.items() if name not in _NOBODYS_SETTING}
        with self._lock:
            template = self._template
            if template is None or template.failure is not None or not self._fits(environment, sys.path):
                if template is not None and template.idle:
                    template.close()
                template = self._template = _Template(environment, sys.path)
                self._made_with = environment, list(sys.path)
            return template

    def _fits(self, environment: Mapping[str, str], path: Sequence[str]) -> bool:
        """A path that has only grown at its end finds everything where it was: setuptools, which Mininet imports,
        appends a folder of its own."""
        if self._made_with is None:
            return False
        known_environment, known_path = self._made_with
        return environment == known_environment and list(path[: len(known_path)]) == known_path

    def discard(self, template: _Template) -> None:
        """It cannot fork any more: the next run gets another one."""
        with self._lock:
            if self._template is template:
                self._template = None
        if template.idle:
            template.close()


_TEMPLATES: Final = _Templates()
os.register_at_fork(after_in_child=_TEMPLATES.renew)
_NOBODYS_SETTING: Final = frozenset({"PYTEST_CURRENT_TEST", "_RJEM_MALLOC_CONF"})
"""Variables that change while a process runs: what pytest is at, and what polars gives its own allocator when it is
imported."""


def preload(modules: Sequence[str]) -> None:
    """Start importing what the first run's workers will need; returns at once. What is missing for it is said by who
    looks for what a run needs, or by who forks."""
    with contextlib.suppress(MissingRequirementError):
        _TEMPLATES.current().preload([*OF_EVERY_WORKER, *modules])


class ForkServer(ForkClient):
    """A run's fork server, forked in the background from the template; :meth:`wait_ready` before the first fork."""

    def __init__(self, state: RunState, modules: Sequence[str], *, log_directory: Path) -> None:
        super().__init__(state.add_process)
        self._run_id = state.run_id
        self._modules = [*OF_EVERY_WORKER, *modules]
        self._log_path = log_directory / "fork-server.log"
        self._starting = threading.Lock()
        """Held where it is forked, and where it is decided that it shall not be."""
        self._process: ForkedProcess | None = None
        self._unforked = "the fork server is closed"
        """Why there is no process."""
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._template = _TEMPLATES.current()
        self._imported = self._template.preload(self._modules)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The fork server's own process, once it is ready."""
        assert self._process is not None, "wait_ready first"
        return self._process.pid

    @property
    def title(self) -> str:
        """What errors call it."""
        return "the fork server"

    def close(self) -> None:
        """End the fork server and with it all its children; one that is not forked yet never will be. Idempotent."""
        with self._starting:
            self._closing = True
        if self._process is not None:  # else imports may go on for seconds, for the next run
            with contextlib.suppress(OSError):  # it has ended already
                self._ours.shutdown(socket.SHUT_RDWR)
            super().close()

    def _connect(self) -> socket.socket | None:
        try:
            self._imported.result(_IMPORT_TIMEOUT_S)
        except TimeoutError:
            self._unforked = f"modules were not imported within {_IMPORT_TIMEOUT_S:g} s: {', '.join(self._modules)}"
        else:
            with self._starting:
                if not self._closing:
                    self._fork()
        self._theirs.close()
        if self._process is None:
            self._ours.close()
            return None
        return self._ours

    def _fork(self) -> None:
        request = ForkRequest(
            name=f"fork-server of {self._run_id}",
            entry="testbed.hosts.fork_server:serve_run",
            arguments=self._modules,
            environment={RUN_ID_VARIABLE: self._run_id},
            directory=str(Path.cwd()),
        )
        try:
            output = Output(self._log_path, None)
            self._process = self._template.fork(request, output, stdin=self._theirs.fileno())
        except OSError as error:
            self._unforked = f"cannot write {self._log_path}: {error.strerror or error}"
        except RunFailedError as error:
            self._unforked = str(error)
            _TEMPLATES.discard(self._template)
        else:
            self._note("fork-server", self._process.pid)

    def _wait_ended(self, timeout_s: float) -> int | None:
        return 0 if self._process is None else self._process.wait(timeout_s)

    def _kill(self) -> None:
        assert self._process is not None, "there is nothing to kill"
        self._process.send_signal(signal.SIGKILL)

    def _explain(self, status: int | None) -> str:
        if self._process is None:
            return self._unforked
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
