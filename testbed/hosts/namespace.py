"""The default runtime: a host is a network, mount and UTS namespace, held by a process."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from switch_agg.namespaces import in_network_of
from testbed.errors import MissingRequirementError
from testbed.experiment.runtimes.namespace import Namespace
from testbed.hosts.base import ProcessSpec, RuntimeDriver, Throttling
from testbed.hosts.cgroups import ProcessCgroup
from testbed.hosts.fork_client import ForkServer
from testbed.hosts.fork_server import ForkRequest
from testbed.hosts.naming import name_differences
from testbed.hosts.spawn import Output, StartedProcess, spawn
from testbed.system.kernel import network_namespace
from testbed.system.native.libraries import require_libraries
from testbed.system.processes import (
    RUN_ID_VARIABLE,
    ProcessIdentity,
    end_processes,
    processes_in_network,
    processes_of_run,
)
from testbed.system.programs import problem_of
from testbed.system.run_state import RunState

_STOP_TIMEOUT_S: Final = 2.0

# "$@" is: cgroup.procs files, --, the command. The process joins its control groups before it becomes the
# command, so that nothing it starts can escape them.
_JOIN_AND_EXECUTE: Final = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 125; shift; done; shift; exec "$@"'


class NamespaceHost:
    """Implements testbed.hosts.base.Host over the namespaces of a process."""

    def __init__(
        self,
        name: str,
        pid: int,
        *,
        state: RunState,
        log_directory: Path,
        fork_server: ForkServer | None = None,
    ) -> None:
        self.name = name
        self.pid = pid
        self._state = state
        self._log_directory = log_directory
        self._fork_server = fork_server
        self._cgroups: dict[str, ProcessCgroup] = {}
        self._processes: list[StartedProcess] = []

    def entered(self) -> AbstractContextManager[None]:
        """Within it, the calling thread's new sockets belong to the host's network namespace."""
        return in_network_of(self.pid)

    def execute(self, argv: Sequence[str], *, stdin: str = "", timeout_s: float = 30.0) -> str:
        """Run a short command in the host's network namespace and return its output."""
        self._check_held()
        command = f"{' '.join(argv)} (in {self.name})"
        try:
            with self.entered():  # a child is born into the namespace of the thread that makes it
                done = subprocess.run(
                    argv,
                    input=stdin,
                    capture_output=True,
                    text=True,
                    timeout=timeout_s,
                    check=False,
                    env=self._environment(),
                )
        except FileNotFoundError as error:
            raise MissingRequirementError(f"{command}: {error}; install it") from error
        except subprocess.TimeoutExpired as error:
            raise MissingRequirementError(f"{command}: has not ended within {timeout_s:g} s") from error
        if done.returncode != 0:
            raise MissingRequirementError(f"{command}: status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def start(
        self,
        process: ProcessSpec,
        *,
        on_output: Callable[[str], None] | None = None,
        on_error: Callable[[str], None] | None = None,
    ) -> StartedProcess:
        """Start a process in the host; each stream's lines are passed on by a thread of its own."""
        assert on_error is None or process.argv, f"{process.name}: a fork has one stream for both"
        self._check_held()
        if process.argv and (problem := problem_of(process.argv[0], {**os.environ, **process.environment})):
            raise MissingRequirementError(f"cannot start {process.name}: {problem}")
        cgroup = self._cgroups[process.name] = ProcessCgroup(process.name, self._state)
        cgroup.limit(process.limits)
        output = Output(self._log_directory / f"{process.name}.log", on_output, on_error)
        started = self._fork(process, output) if process.entry else self._spawn(process, output)
        self._processes.append(started)
        return started

    def _fork(self, process: ProcessSpec, output: Output) -> StartedProcess:
        assert process.entry is not None
        assert self._fork_server is not None, f"{process.name}: an entry needs the fork server"
        request = ForkRequest(
            name=process.name,
            namespace_pid=self.pid,
            entry=process.entry,
            arguments=list(process.arguments),
            environment=dict(process.environment),
            procs_files=[str(path) for path in self._cgroups[process.name].procs_files],
            directory=str(Path.cwd()),
        )
        return self._fork_server.fork(request, output, listens=process.listens)

    def _spawn(self, process: ProcessSpec, output: Output) -> StartedProcess:
        groups = [str(path) for path in self._cgroups[process.name].procs_files]
        enter = ["nsenter", f"--target={self.pid}", *self._namespaces(), "--"]
        started = spawn(
            process.name,
            ["sh", "-c", _JOIN_AND_EXECUTE, "sh", *groups, "--", *enter, *process.argv, *process.arguments],
            output,
            environment={**self._environment(), **process.environment},
            listens=process.listens,
            stdin=process.stdin,
        )
        self._state.add_process(process.name, started.pid)
        return started

    def _namespaces(self) -> list[str]:
        """Which of the host's namespaces a program enters, as arguments of nsenter."""
        return ["--net", "--mount", "--uts", f"--wdns={Path.cwd()}"]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, RUN_ID_VARIABLE: self._state.run_id}

    def _check_held(self) -> None:
        if network_namespace(self.pid) is None:
            raise MissingRequirementError(f"the process {self.pid} that held the namespaces of {self.name} has ended")

    def name_differences(self, names: Mapping[str, str]) -> list[str]:
        """Where the host is not called by its name, or does not know the others by theirs."""
        return name_differences(self.pid, self.name, names, contained=False)

    def limit_differences(self) -> list[str]:
        """Every limit of the host's processes that no longer reads as it was set."""
        return [line for cgroup in self._cgroups.values() for line in cgroup.differences()]

    def out_of_memory(self) -> list[str]:
        """The names of processes from which the kernel took one away because of their memory limit."""
        return [name for name, cgroup in self._cgroups.items() if cgroup.num_out_of_memory() > 0]

    def throttling(self) -> Mapping[str, Throttling]:
        """What the CPU quota did, by the name of each process that has one."""
        found = {name: cgroup.throttling() for name, cgroup in self._cgroups.items()}
        return {name: throttling for name, throttling in found.items() if throttling is not None}

    def tell_to_end(self) -> None:
        """SIGTERM to every process of the host, without waiting: several hosts stop at once that way."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Stop every process of the host and remove the control groups of their limits. The namespaces stay.
        Idempotent."""
        self.tell_to_end()
        for process in self._processes:
            process.stop(_STOP_TIMEOUT_S)
        self._processes.clear()
        self._end_strays()
        for cgroup in self._cgroups.values():
            cgroup.remove()
        self._cgroups.clear()

    def _end_strays(self) -> None:
        """End what the stopped processes had started in sessions of their own."""
        namespace = network_namespace(self.pid)
        if namespace is None or namespace == network_namespace(os.getpid()):
            return
        inside = set(processes_in_network([namespace])) - {ProcessIdentity.of(self.pid)}
        if inside:
            end_processes(inside & set(processes_of_run(self._state.run_id)), grace_s=_STOP_TIMEOUT_S)


class NamespaceRuntime:
    """Implements testbed.hosts.base.RunningRuntime: the deployment makes namespaces, one fork server all workers."""

    def __init__(self, state: RunState, modules: Sequence[str], *, log_directory: Path) -> None:
        """Returns at once; the modules are imported meanwhile."""
        self._state = state
        self._log_directory = log_directory
        self._fork_server = ForkServer(state, modules, log_directory=log_directory)
        self.holders: Mapping[str, int] = {}

    @property
    def failure(self) -> str | None:
        """Why the fork server has ended; None while it runs."""
        return self._fork_server.failure

    def host(self, node: str, holder_pid: int) -> NamespaceHost:
        """A host in the holder's namespaces."""
        return NamespaceHost(
            node,
            holder_pid,
            state=self._state,
            log_directory=self._log_directory,
            fork_server=self._fork_server,
        )

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until everything is imported. Raises RunFailedError."""
        self._fork_server.wait_ready(timeout_s)

    def describe(self) -> Mapping[str, Any]:
        """The runtime as the record has it; everything else about it is this machine's."""
        return {"kind": "namespace"}

    def close(self) -> None:
        """End the fork server and with it all its children. Idempotent."""
        self._fork_server.close()


class NamespaceDriver(RuntimeDriver[Namespace]):
    """Starts the runtime `namespace`: one fork server for all namespaces."""

    def missing(self) -> list[str]:
        """The program of a command, and what this machine's workers load."""
        experiment = self.plan.experiment
        command = experiment.workload.command
        missing = []
        if command is not None and (problem := problem_of(command.argv[0], {**os.environ, **command.environment})):
            missing.append(f"workload.argv: {problem}")
        try:
            require_libraries(experiment.workload.transports(experiment))
        except MissingRequirementError as error:
            missing.append(f"channel, compression: {error}")
        return missing

    def start(self, state: RunState, *, log_directory: Path) -> NamespaceRuntime:
        """Start importing what the workload needs."""
        return NamespaceRuntime(state, self.plan.experiment.workload.preload, log_directory=log_directory)
