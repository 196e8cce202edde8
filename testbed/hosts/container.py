"""A host in a Docker container: the controller makes its network, the container has its processes.

The container is started with no network; its empty network namespace becomes the emulated host's. Its first process is
a fork server (testbed.hosts.fork_server) of the image's own Python, which connects to a socket that only this
container sees, imports what its workers need once, and forks or executes what the run asks for. Nothing else is needed
inside the image, and no daemon takes part once the container runs.
"""

import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from testbed.errors import MissingRequirementError, RunFailedError
from testbed.experiment.host import Limits
from testbed.experiment.runtimes.docker import DEFAULT_IMAGE, DockerContainers
from testbed.experiment.storage.base import STORAGE_NODE
from testbed.experiment.topologies.base import PARTICIPANTS
from testbed.hosts.base import ProcessSpec, RuntimeDriver, Throttling
from testbed.hosts.cgroups import (
    Controller,
    available_controllers,
    differences,
    group_of,
    needed_controllers,
    num_out_of_memory,
    parse_throttling,
    settings,
)
from testbed.hosts.docker_cli import RUN_LABEL, ContainerFacts, Docker, docker_here
from testbed.hosts.fork_client import FORKING_ENVIRONMENT, OF_EVERY_WORKER, ForkClient
from testbed.hosts.fork_server import ForkRequest
from testbed.hosts.namespace import NamespaceHost
from testbed.hosts.naming import name_differences
from testbed.hosts.spawn import Output, StartedProcess
from testbed.system.native.libraries import build_libraries
from testbed.system.processes import RUN_ID_VARIABLE
from testbed.system.run_state import RunState
from testbed.system.sources import code_digest

_log: Final = logging.getLogger(__name__)

FORK_SOCKET: Final = "fork.sock"
MOST_PROCESSES: Final = 4096
"""Threads count, too."""
_HOME: Final = "/tmp"  # noqa: S108 (a file system of the container's own)
_SHARED_MEMORY: Final = "1g"
_AT_ONCE: Final = 4
"""Containers being started; more make each other slower on two cores."""
_POLL_S: Final = 0.2
_BY_SIGNAL: Final = 128
"""Docker adds it to the signal that ended a container, as a shell does."""
_LAST_ANSWER_S: Final = 10.0
_SETTLE_S: Final = 2.0
"""So long the daemon may take to notice that a container has ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerSpec:
    """What every container of a run is made of."""

    image: str
    python: str = "python3"
    """The image's interpreter that has this package: a program on its PATH, or a path in it."""
    user: int = 10001
    """uid and gid of every process in it."""
    mounts: tuple[str, ...] = ()
    """Of the machine, at the same path in the container, read-only."""
    environment: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """The address of every host of the run, by its name."""

    def working_directory(self, here: Path) -> str:
        """Of a process that was started from there: the same where a mount shows it, else empty, the image's."""
        return str(here) if any(here.is_relative_to(mount) for mount in self.mounts) else ""


def run_arguments(
    spec: ContainerSpec,
    *,
    node: str,
    run_id: str,
    directories: Sequence[Path],
    socket_path: Path,
    modules: Sequence[str],
) -> list[str]:
    """What follows `docker run`. Pure. `directories` are the run's that it sees, at the same paths."""
    environment = {
        **FORKING_ENVIRONMENT,
        # Where nobody has a home or a name, getpwuid() and what asks it fail.
        "HOME": _HOME,
        "USER": "worker",
        "PYTHONDONTWRITEBYTECODE": "1",
        **spec.environment,
        RUN_ID_VARIABLE: run_id,
    }
    return [
        *("--detach", "--name", container_name(run_id, node), "--hostname", node),
        *("--label", f"{RUN_LABEL}={run_id}", "--label", f"{RUN_LABEL}.node={node}"),
        # The first process of a container ignores SIGTERM: a daemon that ends needs not wait for it.
        *(argument for name, address in spec.names.items() for argument in ("--add-host", f"{name}:{address}")),
        # No name server can be reached: 127.0.0.1 refuses at once.
        *("--dns", "127.0.0.1", "--dns-option", "timeout:1", "--dns-option", "attempts:1"),
        *("--network", "none", "--pull", "never", "--stop-timeout", "1"),
        # No rights beyond an ordinary user's: its network is made from outside.
        *("--user", f"{spec.user}:{spec.user}", "--userns", "host", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--pids-limit", str(MOST_PROCESSES)),
        # runc gives it the mode of the directory in the image, if there is one: so the user owns it.
        *("--read-only", "--tmpfs", f"{_HOME}:rw,nosuid,nodev,exec,mode=1777,uid={spec.user},gid={spec.user}"),
        *("--shm-size", _SHARED_MEMORY),
        *("--log-driver", "json-file", "--log-opt", "max-size=1m", "--log-opt", "max-file=1"),
        *(argument for path in directories for argument in ("--volume", f"{path}:{path}")),
        *(argument for path in spec.mounts for argument in ("--volume", f"{path}:{path}:ro")),
        *(argument for name, value in environment.items() for argument in ("--env", f"{name}={value}")),
        *("--workdir", _HOME, "--entrypoint", spec.python, spec.image),
        *("-P", "-m", "testbed.hosts.fork_server", str(socket_path), "0", *modules),
    ]


def container_name(run_id: str, node: str) -> str:
    """`testbed-261121t032612-e6a570-w0`."""
    return f"testbed-{run_id}-{node}"


def update_arguments(limits: Limits) -> list[str]:
    """What follows `docker update` for the limits to be set; none when there are none. Pure."""
    arguments = []
    if limits.cpu_cores is not None:
        quota_us, period_us = settings(Controller(name="cpu", mount_point=Path(), version=2), limits)["cpu.max"].split()
        arguments += ["--cpu-period", period_us, "--cpu-quota", quota_us]
    if limits.pinned_cores:
        arguments += ["--cpuset-cpus", ",".join(map(str, limits.pinned_cores))]
    if limits.memory_bytes is not None:
        arguments += ["--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes)]
    return arguments


class Container(ForkClient):
    """One container of a run, and the conversation with its first process."""

    def __init__(self, docker: Docker, spec: ContainerSpec, node: str, modules: Sequence[str], state: RunState) -> None:
        super().__init__(state.add_process)
        self._state = state
        self.name = container_name(state.run_id, node)
        self.node = node
        self.spec = spec
        self.pid = 0
        """Of its first process, once it is started."""
        self._docker = docker
        self._pidfd: int | None = None
        directory = state.container_directory(node, spec.user)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(directory / FORK_SOCKET))
        (directory / FORK_SOCKET).chmod(0o660)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._listener.listen(1)
        self._listener.settimeout(_POLL_S)
        self._arguments = run_arguments(
            spec,
            node=node,
            run_id=state.run_id,
            directories=[state.workers_directory, directory],
            socket_path=directory / FORK_SOCKET,
            modules=[*OF_EVERY_WORKER, *modules],
        )

    @property
    def title(self) -> str:
        """What errors call it."""
        return f"the container of {self.node} ({self.name})"

    def start(self) -> None:
        """Returns when it runs. Raises MissingRequirementError with what Docker or its first process said."""
        try:
            self._docker.call("run", *self._arguments)
        except MissingRequirementError as error:
            raise MissingRequirementError(f"runtime: {self.title} does not start: {error}") from error
        facts = self._docker.inspect(self.name)
        with suppress(ProcessLookupError):  # it has ended already: then there is no pidfd
            if facts is not None and facts.pid:
                self.pid, self._pidfd = facts.pid, os.pidfd_open(facts.pid)
        if self._pidfd is None:
            raise MissingRequirementError(f"runtime: {self._explain(None)}")
        self._state.add_process(f"container of {self.node}", self.pid)
        self._reader.start()

    def _connect(self) -> socket.socket | None:
        with self._listener:
            while not self._closing and self._wait_ended(0.0) is None:
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    continue
                connection.setblocking(True)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                return connection
        return None

    def _why_unsupported(self, ready: Mapping[str, Any]) -> str | None:
        if ready.get("sources") == code_digest():
            return None
        return (
            f"runtime.image: {self.spec.image} has other sources of this package than the controller that it is to "
            "talk to: build it anew (make image), or mount these (runtime.mounts)"
        )

    def _wait_ended(self, timeout_s: float) -> int | None:
        """0 once it has ended; what the daemon knows of its end is queried only where that is needed."""
        if self._pidfd is None:
            return 0
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return 0 if poll.poll(timeout_s * 1000) else None

    def _kill(self) -> None:
        assert self._pidfd is not None
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _explain(self, _status: int | None) -> str:
        if self._closing:
            return f"{self.title} is closed"
        deadline_s = time.monotonic() + _SETTLE_S
        try:
            while (facts := self._ask()) and facts.running and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
        except MissingRequirementError as error:
            return f"{self.title} has ended, and the Docker daemon with it or before: {error}"
        if facts is None:
            return f"{self.title} was removed while the run went on"
        if facts.out_of_memory:
            return (
                f"hosts.{self.node}.memory: the kernel ended {self.title}, which needed more than it was given: give "
                "it more, or leave the limit out"
            )
        if facts.running:
            return f"{self.title} has ended, and the Docker daemon, which has not noticed, cannot say why"
        if _BY_SIGNAL < facts.status < _BY_SIGNAL + signal.NSIG:
            name = signal.strsignal(facts.status - _BY_SIGNAL)
            return f"{self.title} was killed by signal {facts.status - _BY_SIGNAL}, {name}"
        return f"{self.title} ended with status {facts.status}\n{self._docker.log_tail(self.name)}".rstrip()

    def _ask(self) -> ContainerFacts | None:
        """Of a daemon that may be ending itself, and then takes questions without answering them."""
        return self._docker.inspect(self.name, timeout_s=_LAST_ANSWER_S)

    def limit(self, limits: Limits) -> None:
        """Set what its processes may use together. Raises MissingRequirementError."""
        if arguments := update_arguments(limits):
            try:
                self._docker.call("update", *arguments, self.name)
            except MissingRequirementError as error:
                raise MissingRequirementError(f"hosts.{self.node}: cannot limit {self.title}: {error}") from error

    def hang_up(self) -> None:
        """Let its first process end, without waiting."""
        self._closing = True
        with self._lock:
            if self._connection is not None:
                with suppress(OSError):  # it has ended already
                    self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Wait until its first process has ended, and make it end. Idempotent."""
        super().close()
        self._listener.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


class ContainerHost(NamespaceHost):
    """Implements testbed.hosts.base.Host: privileged programs run beside the container, all others in it."""

    def __init__(self, container: Container, *, state: RunState, log_directory: Path) -> None:
        super().__init__(container.node, container.pid, state=state, log_directory=log_directory)
        self._container = container
        self._limits: dict[str, Limits] = {}

    def start(
        self,
        process: ProcessSpec,
        *,
        on_output: Callable[[str], None] | None = None,
        on_error: Callable[[str], None] | None = None,
    ) -> StartedProcess:
        """Start a process; one that is not privileged is limited together with all others in the container."""
        if process.privileged:
            return super().start(process, on_output=on_output, on_error=on_error)
        self._check_held()
        self._container.limit(process.limits)
        self._limits[process.name] = process.limits
        if found := self.limit_differences():
            raise MissingRequirementError("; ".join(found))
        argv = [self._container.spec.python if word == sys.executable else word for word in process.argv]
        request = ForkRequest(
            name=process.name,
            entry=process.entry,
            argv=argv,
            arguments=list(process.arguments),
            environment=dict(process.environment),
            directory=self._container.spec.working_directory(Path.cwd()),
        )
        output = Output(self._log_directory / f"{process.name}.log", on_output, on_error)
        started = self._container.fork(request, output, listens=process.listens, stdin=process.stdin)
        self._processes.append(started)
        return started

    def _namespaces(self) -> list[str]:
        return ["--net"]

    def name_differences(self, names: Mapping[str, str]) -> list[str]:
        """Where the container's host name, or its files, are not as requested."""
        return name_differences(self.pid, self.name, names, contained=True)

    def _requested(self) -> dict[Path, str]:
        """Every file of the container's control groups that says what was requested, and what it must read."""
        requested: dict[Path, str] = {}
        controllers = available_controllers()
        for limits in self._limits.values():
            for name in needed_controllers(limits):
                controller = controllers[name]
                group = group_of(controller, self.pid) if controller else None
                if controller is None or group is None:
                    raise MissingRequirementError(
                        f"hosts.{self.name}: the {name} control group of {self._container.title} cannot be found"
                    )
                requested |= {group / file: value for file, value in settings(controller, limits).items()}
        return requested

    def limit_differences(self) -> list[str]:
        """Every limit of the container that does not read as it was requested."""
        return super().limit_differences() + differences(self._requested())

    def out_of_memory(self) -> list[str]:
        """The host's name, if the kernel has taken a process away because of the container's memory limit."""
        controller = available_controllers()["memory"]
        group = group_of(controller, self.pid) if controller else None
        if controller is None or group is None:
            return []
        with suppress(FileNotFoundError):  # the container has just ended; its failure says why
            return [self.name] if num_out_of_memory(controller, group) else []
        return []

    def throttling(self) -> Mapping[str, Throttling]:
        """What the container's CPU quota did, by the name of each process that it was set for."""
        controller = available_controllers()["cpu"]
        group = group_of(controller, self.pid) if controller else None
        found = parse_throttling((group / "cpu.stat").read_text()) if group else None
        return {name: found for name, limits in self._limits.items() if found and limits.cpu_cores is not None}


class ContainerRuntime:
    """Implements testbed.hosts.base.RunningRuntime with one container per node that is named; the other nodes are
    plain namespaces without a fork server: they run programs, no entries."""

    def __init__(
        self,
        docker: Docker,
        spec: ContainerSpec,
        modules: Mapping[str, Sequence[str]],
        state: RunState,
        *,
        log_directory: Path,
    ) -> None:
        """Returns when every container runs; `modules` are what each imports, by node.

        Raises MissingRequirementError when one does not start, and leaves none then.
        """
        self._state = state
        self._log_directory = log_directory
        self._docker = docker
        self._spec = spec
        state.open_to(spec.user)
        state.add_containers(docker.endpoint, [container_name(state.run_id, node) for node in modules])
        self._containers = {node: Container(docker, spec, node, wanted, state) for node, wanted in modules.items()}
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(Container.start, self._containers.values()))
        except BaseException:
            self.close()
            raise

    @property
    def holders(self) -> Mapping[str, int]:
        """The first process of each container."""
        return {node: container.pid for node, container in self._containers.items()}

    @property
    def failure(self) -> str | None:
        """Why the first container that has ended did; None while all run."""
        return next((each.failure for each in self._containers.values() if each.failure), None)

    def host(self, node: str, holder_pid: int) -> NamespaceHost:
        """A container's, or one of namespaces."""
        if container := self._containers.get(node):
            return ContainerHost(container, state=self._state, log_directory=self._log_directory)
        return NamespaceHost(node, holder_pid, state=self._state, log_directory=self._log_directory)

    def wait_ready(self, timeout_s: float) -> None:
        """Until every container has imported its modules. Raises RunFailedError."""
        deadline_s = time.monotonic() + timeout_s
        for container in self._containers.values():
            try:
                container.wait_ready(max(0.0, deadline_s - time.monotonic()))
            except RunFailedError as error:
                words = self._docker.log_tail(container.name)
                raise RunFailedError(f"{error}\n{words}" if words not in str(error) else str(error)) from error

    def describe(self) -> Mapping[str, Any]:
        """The daemon, and what the image's name meant."""
        facts = self._docker.facts()
        return {
            "kind": "docker",
            "daemon": facts.text,
            "image": self._spec.image,
            "image_id": self._docker.image_id(self._spec.image),
        }

    def close(self) -> None:
        """End every container, with or without the daemon; remove them if it answers. Idempotent."""
        for container in self._containers.values():
            container.hang_up()
        with suppress(MissingRequirementError):  # cleaning by id follows, and says what withstands
            self._docker.remove([container.name for container in self._containers.values()])
        with ThreadPoolExecutor(len(self._containers) or 1) as pool:
            list(pool.map(Container.close, self._containers.values()))


class ContainerDriver(RuntimeDriver[DockerContainers]):
    """A container for each node that takes part; the others are namespaces."""

    @classmethod
    def image_id(cls, options: DockerContainers) -> str | None:
        """None where there is no such image, or no daemon that answers: a run says so."""
        with suppress(MissingRequirementError):
            return docker_here().image_id(options.image)
        return None

    def contained(self) -> Mapping[str, Sequence[str]]:
        """Participants, the storage node, and aggregators whose data plane is a process."""
        preload = self.plan.experiment.workload.preload
        nodes: dict[str, Sequence[str]] = {node.name: preload for node in self.plan.nodes if node.role in PARTICIPANTS}
        if self.plan.storage is not None:
            nodes[STORAGE_NODE] = ()
        # The kernel's data plane is loaded by root, beside the containers.
        return nodes | {each.name: () for each in self.plan.aggregators if not each.collective.plane.in_kernel}

    def missing(self) -> list[str]:
        """The daemon, rootful, every mount, and the image where it is not to be fetched."""
        options = self.options
        missing = [
            f"runtime.mounts: there is no {path} on this machine" for path in options.mounts if not Path(path).exists()
        ]
        try:
            docker = docker_here()
            facts = docker.facts()
            if facts.has("rootless"):
                missing.append(
                    f"runtime: the Docker daemon at {docker.endpoint} is rootless: its containers live in a user "
                    "namespace that the emulated links cannot be moved into; run with a rootful daemon "
                    "(DOCKER_HOST=unix:///var/run/docker.sock), or runtime: namespace"
                )
            if options.pull == "never" and docker.image_id(options.image) is None:
                missing.append(
                    f"runtime.image: there is no image {options.image} here: "
                    f"{'make image' if options.image == DEFAULT_IMAGE else 'build it, or runtime.pull: missing'}"
                )
        except MissingRequirementError as error:
            missing.append(f"runtime: {error}; or runtime: namespace")
        return missing

    def _mounts(self) -> tuple[str, ...]:
        """A command of the user's finds its files where it was typed."""
        options = self.options
        here = str(Path.cwd())
        wanted = self.plan.experiment.workload.command is not None and here != "/"
        return tuple(dict.fromkeys((*options.mounts, *([here] if wanted else []))))

    def start(self, state: RunState, *, log_directory: Path) -> ContainerRuntime:
        """Fetch the image where that is requested, and start every container; each imports what the workload needs."""
        options = self.options
        if options.mounts:  # sources of this package among them are read-only there
            build_libraries()
        spec = ContainerSpec(
            image=options.image,
            python=options.python,
            user=options.user,
            mounts=self._mounts(),
            environment=options.environment,
            names=self.plan.host_names(),
        )
        docker = docker_here()
        if options.pull == "always" or (options.pull == "missing" and docker.image_id(options.image) is None):
            _log.info("fetching the image %s", options.image)
            docker.pull(options.image)
        return ContainerRuntime(docker, spec, self.contained(), state, log_directory=log_directory)
