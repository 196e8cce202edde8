"""A user's command in every worker, as torchrun would start it on hosts of a cluster, and what becomes of it.

The variables are those of torchrun (torch/distributed/elastic/agent/server/local_elastic_agent.py), with a host of the
spec for a node, and the interface variables that gloo, TensorPipe and NCCL read.
"""

import json
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from testbed.errors import Interrupted, RunFailedError
from testbed.hosts.base import Host, Process, ProcessSpec
from testbed.hosts.spawn import log_tail
from testbed.plan.plan import Plan
from testbed.runner.coordinator import Listener
from testbed.runner.launcher import Reachable, launcher_variables, write_launcher
from testbed.runner.mpi_singletons import HINT, SingletonWatch
from testbed.runner.process_watch import ProcessWatch, RunWatch
from testbed.system.environment import num_usable_cores
from testbed.system.interruptions import held_back
from transports.collectives.base import COLLECTIVES
from transports.collectives.in_network import LOST_VARIABLE
from transports.native import REQUIRED_VARIABLE
from transports.torch_backend.autoload import BACKEND

_TICK_S: Final = 0.05
_TICK_SHARE: Final = 0.01
"""Of what a command has taken so far may pass before it is noticed that it has ended, a tick at most."""
_SHORTEST_TICK_S: Final = 1e-3
_AFTERMATH_S: Final = 2.0
_KILL_TIMEOUT_S: Final = 10.0
_NUM_LINES: Final = 20
"""Of a failed worker's output, in the error's text."""
INTERFACE_VARIABLES: Final = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TESTBED_INTERFACE")


class CommandFailedError(RunFailedError):
    """A worker's command has failed; its exit status becomes ours, 128 + n where signal n ended it."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """How one worker's command ended."""

    rank: int
    status: int
    """Negative: the signal that ended it."""
    at_s: float
    """CLOCK_MONOTONIC when it was noticed."""

    @property
    def exit_code(self) -> int:
        """The command's exit code as a shell counts: 128 + n for signal n."""
        return self.status if self.status >= 0 else 128 - self.status

    @property
    def text(self) -> str:
        """`ended with status 3`, `was killed by signal 9, Killed`."""
        if self.status >= 0:
            return f"ended with status {self.status}"
        return f"was killed by signal {-self.status}, {signal.strsignal(-self.status)}"


def worker_environment(
    plan: Plan,
    rank: int,
    *,
    run_id: str,
    inherited: Mapping[str, str],
    num_cores: int,
    redirected: Path,
    aggregation_lost: Path,
) -> dict[str, str]:
    """The variables that a worker's command has beside those it inherits; a launcher has none that say who it is among
    the workers. Pure."""
    command, experiment = plan.experiment.workload.command, plan.experiment
    assert command is not None
    world = experiment.workers
    cores = plan.host(rank).pinned_cores
    threads = max(1, min(num_cores // world, len(cores) or num_cores))
    variables: dict[str, Any] = {
        **({} if command.launcher else _torchrun_variables(plan, rank, run_id=run_id)),
        "MASTER_ADDR": plan.worker_port(0).address,
        "MASTER_PORT": command.master_port,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
        "TESTBED_ADDRESSES": ",".join(plan.worker_port(each).address for each in range(world)),
        "TESTBED_CHANNEL": json.dumps(experiment.dump()["channel"]),
        "TESTBED_COMPRESSION": json.dumps(experiment.dump()["compression"]),
        "TESTBED_RACKS": ",".join(map(str, plan.world.racks)),
        REQUIRED_VARIABLE: 1,
        **host_variables(plan, rank),
    }
    if command.backend is not None:
        variables |= {"TESTBED_REDIRECT": str(redirected), "TORCH_DEVICE_BACKEND_AUTOLOAD": 1}
    if plan.aggregators:
        variables[LOST_VARIABLE] = aggregation_lost
    # What a user has set already is meant; torchrun leaves it alone, too.
    defaults = {"OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": 1}
    variables |= {name: value for name, value in defaults.items() if name not in inherited}
    return {name: str(value) for name, value in variables.items()} | command.environment


def host_variables(plan: Plan, rank: int) -> dict[str, str]:
    """Those that are different on each host, whatever runs there. Pure."""
    port = plan.worker_port(rank)
    return {
        **dict.fromkeys(INTERFACE_VARIABLES, port.interface),
        "TESTBED_ADDRESS": port.address,
        "TESTBED_COLLECTIVE": json.dumps(COLLECTIVES.dump(plan.collective_of(rank))),
    }


def _torchrun_variables(plan: Plan, rank: int, *, run_id: str) -> dict[str, object]:
    """Who a worker is."""
    world, per_host = plan.experiment.workers, plan.experiment.workers_per_host.count
    node = rank // per_host
    return {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": rank % per_host,
        "LOCAL_WORLD_SIZE": min(per_host, world - node * per_host),
        "GROUP_RANK": node,
        "NODE_RANK": node,
        "GROUP_WORLD_SIZE": plan.experiment.workers_per_host.num_hosts(world),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_USE_AGENT_STORE": False,  # rank 0 makes the store itself, as nobody else is there to
    }


class Launch:
    """The commands of one run."""

    def __init__(
        self,
        plan: Plan,
        hosts: Mapping[str, Host],
        *,
        run_id: str,
        redirected: Path,
        aggregation_lost: Path,
        directory: Path,
        listener: Listener,
        watch: Callable[[], None] = lambda: None,
        beside: RunWatch | None = None,
        stdin: int | None = None,
    ) -> None:
        """`watch` is called about twenty times a second and raises what has ended the run; as often processes that are
        no workers are looked at. Process groups that were redirected are written to `redirected`, why an aggregating
        switch was lost to `aggregation_lost`, what a launcher is to find to `directory`; `stdin` is a descriptor for
        rank 0 to read from."""
        command = plan.experiment.workload.command
        assert command is not None
        self._command = command
        self._directory = directory
        self._stdin = stdin
        self._hint: str | None = None
        self._plan = plan
        self._hosts = hosts
        self._run_id = run_id
        self._redirected = redirected
        self._aggregation_lost = aggregation_lost
        self._listener = listener
        self._watch = watch
        self._grace_s = command.grace_s
        self._processes: list[Process] = []
        self._watches: list[ProcessWatch] = []
        self._beside = beside
        self._exits: dict[int, Exit] = {}

    def run(self) -> None:
        """Start the command in every worker and wait for all to end; none is left alive.

        Raises CommandFailedError for the first that failed, having ended the others, and passes an interrupt on to the
        workers before it unwinds.
        """
        self._listener.on_barrier("measure")
        begun_s = time.monotonic()
        try:
            failed, stopped = self._work()
        finally:
            self._complete_logs()
        if failed:
            raise CommandFailedError(self._explain(failed, stopped, begun_s=begun_s), exit_code=failed[0].exit_code)

    def _work(self) -> tuple[list[Exit], list[str]]:
        """From the first start to the last end: which failed by themselves, and what was done to the others."""
        ending: int = signal.SIGTERM
        try:
            if self._command.launcher:
                write_launcher(self._directory, self._reachable())
            for rank in range(1 if self._command.launcher else self._plan.experiment.workers):
                with held_back():  # a worker that nobody knows of yet would miss the signal
                    self._processes.append(process := self._start(rank))
                self._watches.append(
                    ProcessWatch(
                        process.name, process.pid, time.monotonic(), requested_cores=self._plan.limits(rank).cpu_cores
                    )
                )
            self._wait()
        except Interrupted as interrupted:
            ending = signal.Signals[str(interrupted)]
            raise
        finally:
            failed = [each for each in self._ordered() if each.status]
            stopped = self._end(ending)
        self._listener.on_barrier("done")
        return failed, stopped

    def _start(self, rank: int) -> Process:
        name = self._plan.worker_port(rank).node
        environment = worker_environment(
            self._plan,
            rank,
            run_id=self._run_id,
            inherited=self._plan.experiment.runtime.inherited(),
            num_cores=num_usable_cores(),
            redirected=self._redirected,
            aggregation_lost=self._aggregation_lost,
        )
        if self._command.launcher:
            environment = {**launcher_variables(self._directory), **environment}
        return self._hosts[name].start(
            ProcessSpec(
                name=name,
                argv=self._command.argv,
                environment=environment,
                limits=self._plan.limits(rank),
                stdin=self._stdin if rank == 0 else None,
            ),
            on_output=partial(self._listener.on_line, rank, error=False),
            on_error=partial(self._listener.on_line, rank, error=True),
        )

    def _reachable(self) -> dict[str, Reachable]:
        ports = [self._plan.worker_port(rank) for rank in range(self._plan.experiment.workers)]
        return {
            port.node: Reachable(
                address=port.address, pid=self._hosts[port.node].pid, variables=host_variables(self._plan, rank)
            )
            for rank, port in enumerate(ports)
        }

    def _wait(self) -> None:
        """Until all have ended, or one has failed."""
        singletons = SingletonWatch(self._processes)
        begun_s = time.monotonic()
        looked_s = -math.inf
        while len(self._exits) < len(self._processes) and not any(each.status for each in self._exits.values()):
            if self._note_exits():
                continue
            if (now_s := time.monotonic()) - looked_s >= _TICK_S:
                looked_s = now_s
                self._look(singletons)
            time.sleep(min(_TICK_S, max(_SHORTEST_TICK_S, _TICK_SHARE * (now_s - begun_s))))

    def _look(self, singletons: SingletonWatch) -> None:
        """At everything but whether they have ended."""
        try:
            self._watch()
        except RunFailedError:
            if not self._has_ended_a_worker():
                raise
        self._look_at_processes()
        self._listener.on_tick()
        if singletons.found():
            self._hint = HINT
            self._listener.on_hint(HINT)

    def _look_at_processes(self) -> None:
        now_s = time.monotonic()
        found = [] if self._beside is None else self._beside.look(now_s)
        for rank, watch in enumerate(self._watches):
            found += watch.look(now_s) if rank not in self._exits else []
        for text in found:
            self._listener.on_interference(text)

    def _has_ended_a_worker(self) -> bool:
        """Whether what ended the run did it by ending workers: their status comes after, and is the run's."""
        deadline_s = time.monotonic() + _AFTERMATH_S
        while not self._note_exits() and time.monotonic() < deadline_s:
            time.sleep(_TICK_S)
        return any(each.status for each in self._exits.values())

    def _note_exits(self) -> bool:
        """Whether any has ended since it was called last."""
        now_s, before = time.monotonic(), len(self._exits)
        for rank, process in enumerate(self._processes):
            if rank not in self._exits and (status := process.poll()) is not None:
                self._exits[rank] = Exit(rank=rank, status=status, at_s=now_s)
                self._listener.on_exit(rank, status)
        return len(self._exits) > before

    def _ordered(self) -> list[Exit]:
        """In the order in which they ended; of those noticed together, the ones that a signal ended first, because
        their peers' complaints are the consequence."""
        return sorted(self._exits.values(), key=lambda each: (each.at_s, each.status >= 0, each.rank))

    def _end(self, number: int) -> list[str]:
        """End those that still run: the signal, and after the grace SIGKILL. Returns what was done to whom."""
        self._note_exits()
        running = [process for rank, process in enumerate(self._processes) if rank not in self._exits]
        for process in running:
            process.send_signal(number)
        deadline_s = time.monotonic() + self._grace_s
        for process in running:
            process.wait(max(0.0, deadline_s - time.monotonic()))
        stubborn = [process for process in running if process.poll() is None]
        for process in stubborn:
            process.send_signal(signal.SIGKILL)
        for process in stubborn:
            process.wait(_KILL_TIMEOUT_S)
        self._note_exits()
        reported = [f"{process.name} was stopped" for process in running if process not in stubborn]
        return reported + [
            f"{process.name} did not stop within {self._grace_s:g} s and was killed" for process in stubborn
        ]

    def _complete_logs(self) -> None:
        """Of workers that have ended. What one has left in the background may hold its output, which is waited for a
        while: of all at once, and when the command's time has been taken."""
        with ThreadPoolExecutor(max(1, len(self._processes))) as pool:
            list(pool.map(lambda process: process.wait(0.0), self._processes))

    def _explain(self, failed: Sequence[Exit], stopped: Sequence[str], *, begun_s: float) -> str:
        """Who failed first, its last lines, what became of the others."""
        first = failed[0]
        process = self._processes[first.rank]
        others = [f"also: {self._processes[each.rank].name} {each.text}" for each in failed[1:]]
        lines = [f"{process.name} (rank {first.rank}) {first.text} after {first.at_s - begun_s:.1f} s"]
        for path in (process.log_path.with_suffix(".stderr.log"), process.log_path):
            if tail := log_tail(path, num_lines=_NUM_LINES):
                lines += [f"the end of {path.name}:", tail]
                break
        lines.append(f"all that it printed: {process.log_path.with_suffix('')}*.log")
        try:
            self._watch()
        except RunFailedError as error:  # why, where someone else knows it: a limit, a container
            lines.append(str(error))
        hints = [f"hint: {self._hint}"] if self._hint else []
        return "\n".join([*lines, *others, *stopped, *hints])


def redirections(path: Path) -> list[str]:
    """The backends that workers requested for their process groups when ours took the place: `gloo`, `nccl`, or
    `default`, sorted, each once. Ours where they requested it themselves, as a group does that is made from a
    redirected one."""
    requested = {line.partition(" ")[2] for line in _lines(path)}
    return sorted(requested - {BACKEND} or requested)


def aggregation_losses(path: Path) -> list[str]:
    """Why the aggregating switch was lost to workers, in their words, each reason once."""
    return list(dict.fromkeys(_lines(path)))


def _lines(path: Path) -> list[str]:
    """Of what workers have written; none where there is no such file."""
    try:
        return path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
