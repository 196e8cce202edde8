"""The fork server: a process that has imported torch and forks every worker into its host's namespaces.

Run as `python -m testbed.hosts.fork_server <socket> <parent pid> <module>...` by testbed.hosts.fork_client: the
socket is a descriptor that it inherits, or, for the first process of a container, a path that it connects to. It stays
single-threaded, since a fork copies only the calling thread but every lock; so it never computes with torch and never
touches gRPC. It ends with the thread that started it, or in a container (parent pid 0) with its connection, and its
children end with it.

On this machine there are two generations: the template, which imports for all runs of a process, and the fork server of
each run, a fork of it (:func:`serve_run`). A run's fork server has nothing of another run but imported modules.

The socket is SOCK_SEQPACKET and carries one JSON object per packet. In: a :class:`ForkRequest` with the descriptors of
its output, of its standard error and, if it listens, of its standard input; or `{"import": modules}`, of a template.
Out: `{"ready": seconds, "sources": digest}`, `{"imported": modules}`, `{"forked": name}` (by the child itself: the
kernel attaches its pid as the receiver knows it, unix(7), SCM_CREDENTIALS), `{"refused": name, "error": text}`,
`{"exited": name, "status": status}`.
"""

import contextlib
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NoReturn

from switch_agg.namespaces import join_namespace
from testbed.system.kernel import die_with_parent
from testbed.system.processes import RUN_ID_VARIABLE, carry_run_id
from testbed.system.programs import problem_of
from testbed.system.sources import code_digest

MAX_PACKET_BYTES: Final = 128 * 1024
_NOT_FOUND: Final = 127  # as a shell's statuses (POSIX, 2.8.2)
_NOT_EXECUTABLE: Final = 126


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkRequest:
    """What a child is to become."""

    name: str
    namespace_pid: int | None = None
    """The child enters the network, UTS and mount namespaces of this process; None: it stays in the server's."""
    entry: str | None = None
    """`module:function` to call with the arguments ..."""
    argv: list[str] = field(default_factory=list)
    """... or a program to become, with them."""
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    procs_files: list[str] = field(default_factory=list)
    """cgroup.procs files of the groups it joins."""
    directory: str = ""
    """Its working directory; the server's own where it is empty, or there is no such directory."""

    def encode(self) -> bytes:
        """The message as one packet."""
        packet = json.dumps(asdict(self)).encode()
        assert len(packet) <= MAX_PACKET_BYTES, f"{self.name}: arguments and environment take {len(packet)} bytes"
        return packet


class _Server:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._children: dict[int, str] = {}
        # SIGCHLD only has to wake poll(); the byte in the pipe does, the handler does nothing.
        self._wakeup_read, self._wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Serve requests until the coordinator closes its end."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(self._wakeup_read, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._wakeup_read:
                    os.read(self._wakeup_read, 4096)
                    self._reap()
                elif not self._answer():
                    return

    def tell(self, **message: object) -> None:
        # A coordinator that is gone is noticed where requests are read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(json.dumps(message).encode())

    def kill_children(self) -> None:
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            # The first process of a container is given every orphan in it, too.
            if (name := self._children.pop(pid, None)) is not None:
                self.tell(exited=name, status=os.waitstatus_to_exitcode(status))

    def _answer(self) -> bool:
        """Handle one request; False when the coordinator is gone."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._connection, MAX_PACKET_BYTES, 3)
        except ConnectionResetError:
            return False
        if not packet:
            return False
        message = json.loads(packet)
        if "import" in message:
            self._import(message["import"])
            return True
        request = ForkRequest(**message)
        threads = os.listdir("/proc/self/task")  # noqa: PTH208
        if len(threads) != 1:
            self.tell(refused=request.name, error=f"an import started {len(threads) - 1} threads; forking is unsafe")
        else:
            parent_pid = os.getpid()
            pid = os.fork()
            if pid == 0:
                self._become(request, descriptors, parent_pid)
            # A process group of its own, for signals to reach whatever it starts. Set on both sides of the fork, so
            # that it is there for whoever comes first.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.setpgid(pid, pid)
            self._children[pid] = request.name
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _import(self, modules: Sequence[str]) -> None:
        """Import what forks to come will import. What fails does so again in the fork, into the log of its run."""
        for module in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
        code_digest()  # forks inherit it
        _settle_memory()
        self.tell(imported=modules)

    def _become(self, request: ForkRequest, descriptors: Sequence[int], parent_pid: int) -> NoReturn:
        """The child's whole life."""
        status = 1
        try:
            for descriptor, standard in zip(descriptors, (1, 2, 0), strict=False):
                os.dup2(descriptor, standard)
            for descriptor in descriptors:
                os.close(descriptor)
            _reset_signals()
            os.setpgid(0, 0)
            self.tell(forked=request.name)
            for descriptor in (self._connection.detach(), self._wakeup_read, self._wakeup_write):
                os.close(descriptor)
            die_with_parent(parent_pid)
            _enter(request)
            if request.entry is None:
                _execute([*request.argv, *request.arguments])
            # Lines reach the log when they are written, not when a buffer is full: the process may be killed.
            _buffer_lines()
            module, _, function = request.entry.partition(":")
            getattr(importlib.import_module(module), function)(*request.arguments)
            status = 0
        except SystemExit as exit_:
            status = _exit_status(exit_.code)
        except BaseException:  # noqa: BLE001 - the process boundary: whatever it is, it goes to the log
            traceback.print_exc()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        # Not sys.exit(): the parent's atexit handlers and open files are not this process' to finish.
        os._exit(status)


def _buffer_lines() -> None:
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _enter(request: ForkRequest) -> None:
    # Control groups first: a host's mount namespace hides them.
    for path in request.procs_files:
        with open(path, "w") as file:  # noqa: PTH123
            file.write(str(os.getpid()))
    if request.namespace_pid is not None:
        join_namespace(request.namespace_pid, "net")
        join_namespace(request.namespace_pid, "uts")
        join_namespace(request.namespace_pid, "mnt")
    try:
        with contextlib.suppress(FileNotFoundError):
            os.chdir(request.directory)
    except PermissionError:
        raise SystemExit(f"user {os.getuid()} may not enter the working directory {request.directory}") from None
    os.environ.update(request.environment)
    if (run_id := request.environment.get(RUN_ID_VARIABLE)) is not None:
        carry_run_id(run_id)


def _execute(argv: list[str]) -> NoReturn:
    try:
        os.execvp(argv[0], argv)  # noqa: S606 (there is no shell)
    except OSError as error:
        sys.stderr.write(f"cannot start {argv[0]}: {problem_of(argv[0]) or error.strerror}\n")
        sys.exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)


def _exit_status(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    sys.stderr.write(f"{code}\n")
    return 1


def _connected(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    return connection


def _settle_memory() -> None:
    gc.collect()
    # A collection in a child leaves these alone from now on; it would write to all their pages.
    gc.freeze()


def _serve(connection: socket.socket, modules: Sequence[str]) -> None:
    """Import, say so, fork until the other side closes its end; leave no child."""
    server = _Server(connection)
    # Ctrl-C is the coordinator's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start_s = time.monotonic()
    # The collector stays on: with it off, the garbage of the imports left holes in all pages, and what
    # children put there unshared 8 MB more in each (measured with torch and torch._dynamo).
    for module in modules:
        importlib.import_module(module)
    _settle_memory()
    server.tell(ready=time.monotonic() - start_s, sources=code_digest())
    try:
        server.serve()
    finally:
        server.kill_children()


def serve_run(*modules: str) -> None:
    """The entry of a run's fork server, a fork of the template: its standard input is its socket."""
    connection = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)  # for its children
    _serve(connection, modules)


def main() -> None:
    """See the module's docstring."""
    where, parent_pid, *modules = sys.argv[1:]
    connection = socket.socket(fileno=int(where)) if where.isdigit() else _connected(where)
    if int(parent_pid):
        die_with_parent(int(parent_pid))
    _serve(connection, modules)


if __name__ == "__main__":
    main()
