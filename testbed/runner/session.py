"""A deployed, calibrated network with workers on it: what a run and the benchmarks share.

The runtime starts first, so that importing torch overlaps the deployment; links are measured when it is done,
because a measurement beside an import on two cores measures the import.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from testbed.calibration.cache import CalibrationCache, Mode
from testbed.calibration.calibrate import calibrate
from testbed.calibration.tolerances import Calibration
from testbed.control.worker import (
    AsynchronousServer,
    ServerConfiguration,
    StorageConfiguration,
    WorkerConfiguration,
    WorkerStorage,
)
from testbed.deployment.deployment import Deployment, deploy
from testbed.deployment.link_service import LinkService
from testbed.deployment.live_links import LiveLinks
from testbed.errors import CalibrationError, RunFailedError
from testbed.experiment.slowdowns.base import SLOWDOWNS
from testbed.experiment.storage.base import STORAGE_ENTRY, STORAGE_NODE, STORAGE_PORT
from testbed.hosts.base import Process, ProcessSpec, RunningRuntime, runtime_driver
from testbed.hosts.clean import owned_run
from testbed.hosts.machines import RunningMachines, UnderlayMeasurement, running_machines
from testbed.hosts.spawn import log_tail
from testbed.plan.aggregators import assignments_of
from testbed.plan.plan import Plan
from testbed.plan.storage import StoragePlan
from testbed.runner.coordinator import Coordinator, Listener
from testbed.runner.engines.base import Engine
from testbed.runner.engines.local import Local
from testbed.runner.link_client import SOCKET_NAME
from testbed.runner.process_watch import RunWatch
from testbed.runner.user_command import Launch
from testbed.system.environment import num_usable_cores
from testbed.system.run_state import RunState
from testbed.verdict.underlay import underlay_facts, underlay_shortcomings
from transports.collectives.base import COLLECTIVES
from transports.native import REQUIRED_VARIABLE

_log: Final = logging.getLogger(__name__)

IMPORT_TIMEOUT_S: Final = 120.0
REGISTER_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """Everything that stands before the first worker starts."""

    plan: Plan
    state: RunState
    deployment: Deployment
    links: LiveLinks
    """As they are; they may be changed once someone accepts it."""
    runtime: RunningRuntime
    calibration: Calibration
    machines: RunningMachines | None = None
    """Those that the nodes are on; None: all are on this one."""
    underlay: Sequence[UnderlayMeasurement] = ()
    """What the network between them did before the run."""
    overhead_s: dict[str, float] = field(default_factory=dict)
    """Wall seconds of `deploy` and `calibrate`, and `tear_down` once the session is over."""

    def work(self, listener: Listener, *, timeout_s: float, stdin: int | None = None) -> None:
        """Start the workers, watch them to their end. Raises RunFailedError with the traceback of what failed.

        Rank 0 of a command reads from the descriptor `stdin`, if there is one.
        """
        if self.plan.experiment.workload.command is not None:
            self._launch(listener, stdin)
            return
        plan = self.plan
        launched_s = time.monotonic()
        configurations = [self._configuration(rank, launched_s) for rank in range(plan.experiment.workers)]
        socket_path = self.state.workers_directory / "control.sock"
        timeout_real_s = plan.clock.real_s(plan.experiment.timeout_s)
        servers: list[tuple[str, Process]] = []  # what each is, and its process
        processes: list[RunWatch] = []  # once all of them have been started

        def watch() -> None:
            self.deployment.check()
            for text in (text for each in processes for text in each.look(time.monotonic())):
                listener.on_interference(text)
            for title, server in servers:
                # One that has lost a worker is the consequence: whoever lost it too will say why.
                if server.poll() and "PeerLostError" not in (tail := log_tail(server.log_path)):
                    raise RunFailedError(f"{title} has failed:\n{tail}")

        with self.links.own_changes():  # a data plane in the kernel is attached to its port
            self.deployment.start_aggregators()
        self.deployment.start_background()
        with (
            ExitStack() as stack,
            Coordinator(
                socket_path,
                configurations,
                timeout_s=timeout_real_s,
                listener=listener,
                runtime=self.runtime,
                watch=watch,
            ) as coordinator,
        ):
            stack.enter_context(self.deployment.controlled_aggregators(self.state.directory))
            listener.on_launch(launched_s)
            for name in plan.participants[plan.experiment.workers :]:
                servers.append((f"parameter server {name}", server := self._start_server(name)))
                stack.callback(server.stop, STOP_TIMEOUT_S)
            if plan.storage is not None:
                servers.append((f"storage node {STORAGE_NODE}", server := self._start_storage(plan.storage)))
                stack.callback(server.stop, STOP_TIMEOUT_S)
            for configuration in configurations:
                rank = configuration.rank
                process = self.deployment.hosts[configuration.host].start(
                    ProcessSpec(
                        name=configuration.host,
                        entry="testbed.worker.agent:main",
                        arguments=(str(socket_path), str(rank)),
                        environment=self._environment(configuration),
                        limits=plan.limits(rank),
                    )
                )
                self.deployment.working[configuration.host] = process.pid
                coordinator.attach(rank, process, requested_cores=plan.limits(rank).cpu_cores)
            processes.append(RunWatch(self.deployment.processes(), time.monotonic()))
            coordinator.wait_registered(REGISTER_TIMEOUT_S)
            coordinator.wait_finished(timeout_s)
            self.deployment.read_aggregators()
            for title, server in servers:  # they end when all workers have left them
                if server.wait(timeout_real_s) != 0:
                    raise RunFailedError(f"{title} did not end:\n{log_tail(server.log_path)}")

    def _launch(self, listener: Listener, stdin: int | None) -> None:
        """A command of the user's in each worker, instead of an agent of ours."""
        with self.links.own_changes():  # a data plane in the kernel is attached to its port
            self.deployment.start_aggregators()
        self.deployment.start_background()
        for path in (self.redirected, self.aggregation_lost):
            path.touch()
            path.chmod(0o660)  # whatever the umask is
        processes = RunWatch(self.deployment.processes(), time.monotonic())
        launch = Launch(
            self.plan,
            self.deployment.hosts,
            run_id=self.state.run_id,
            redirected=self.redirected,
            aggregation_lost=self.aggregation_lost,
            directory=self.state.directory,
            listener=listener,
            watch=self._check,
            beside=processes,
            stdin=stdin,
        )
        with self.deployment.controlled_aggregators(self.state.directory):
            launch.run()
        self.deployment.read_aggregators()

    def _check(self) -> None:
        self.deployment.check()
        if (failure := self.runtime.failure) is not None:
            raise RunFailedError(failure)

    @property
    def redirected(self) -> Path:
        """Where a command's workers say which process groups ours took the place of."""
        return self.state.scratch_directory / "redirected"

    @property
    def aggregation_lost(self) -> Path:
        """Where a command's workers say why the aggregating switch was lost to them."""
        return self.state.scratch_directory / "aggregation_lost"

    def _environment(self, configuration: WorkerConfiguration) -> dict[str, str]:
        return {
            "GLOO_SOCKET_IFNAME": configuration.interface,
            "TMPDIR": str(self.state.scratch_directory),  # what a worker leaves goes with the run
            REQUIRED_VARIABLE: "1",
        }

    def _start_server(self, name: str) -> Process:
        experiment = self.plan.experiment
        configuration = ServerConfiguration(
            number=int(name.removeprefix("ps")),
            num_workers=experiment.workers,
            address=self.plan.port_of(name).address,
            groups=tuple(experiment.workload.served_groups(experiment.collective, experiment.channel)),
            dilation=self.plan.clock.dilation,
            timeout_s=experiment.timeout_s,
            store_path=str(self.state.scratch_directory / "store"),
            asynchronous=self._asynchronous_server(),
        )
        server = self.deployment.hosts[name].start(
            ProcessSpec(
                name=name,
                entry="testbed.worker.parameter_server:main",
                arguments=(configuration.model_dump_json(),),
                environment={REQUIRED_VARIABLE: "1"},
            )
        )
        self.deployment.serving[name] = server.pid
        return server

    def _start_storage(self, storage: StoragePlan) -> Process:
        configuration = StorageConfiguration(
            address=storage.port.address,
            port=STORAGE_PORT,
            num_workers=self.plan.experiment.workers,
            disk_bps=storage.requested.disk_bps,
            dilation=self.plan.clock.dilation,
        )
        server = self.deployment.hosts[STORAGE_NODE].start(
            ProcessSpec(name=STORAGE_NODE, entry=STORAGE_ENTRY, arguments=(configuration.model_dump_json(),))
        )
        self.deployment.serving[STORAGE_NODE] = server.pid
        return server

    def _worker_storage(self, rank: int) -> WorkerStorage | None:
        storage = self.plan.storage
        if storage is None:
            return None
        return WorkerStorage(
            address=storage.port.address,
            port=STORAGE_PORT,
            start_bytes=storage.start.payload_bytes[rank],
            reads_at_start=storage.reads_at_start,
            batch_bytes=storage.batch.payload_bytes[rank],
            prefetch=storage.requested.prefetches,
        )

    def _asynchronous_server(self) -> AsynchronousServer | None:
        experiment = self.plan.experiment
        steps = experiment.workload.steps()
        if experiment.synchronisation.in_step:
            return None
        assert steps is not None, "the plan refuses others"
        return AsynchronousServer(
            learning_rate=steps.learning_rate, momentum=steps.momentum, num_pushes=steps.num_steps
        )

    def _configuration(self, rank: int, launched_s: float) -> WorkerConfiguration:
        experiment, port = self.plan.experiment, self.plan.port_of(f"w{rank}")
        spec, host = experiment.dump(), self.plan.host(rank)
        num_threads = max(1, num_usable_cores() // experiment.workers)
        return WorkerConfiguration(
            run_id=self.state.run_id,
            rank=rank,
            num_workers=experiment.workers,
            host=port.node,
            interface=port.interface,
            address=port.address,
            seed=experiment.seed,
            workload=spec["workload"],
            racks=self.plan.world.racks,
            collective=COLLECTIVES.dump(self.plan.collective_of(rank)),
            aggregators=assignments_of(self.plan.aggregators, rank),
            network_info=self.plan.network_info,
            channel=spec["channel"],
            compression=spec["compression"],
            stack=spec["stack"],
            fusion=experiment.fusion,
            synchronisation=experiment.synchronisation,
            buckets=self.plan.buckets,
            dilation=self.plan.clock.dilation,
            timeout_s=experiment.timeout_s,
            store_path=str(self.state.scratch_directory / "store"),
            num_threads=min(num_threads, len(host.pinned_cores) or num_threads),
            slowdown=SLOWDOWNS.dump(host.slowdown) if host.slowdown else None,
            storage=self._worker_storage(rank),
            launched_s=launched_s,
        )


def _ignore(_: Any) -> None:
    """No progress wanted."""


@contextmanager
def session(
    plan: Plan,
    *,
    run_id: str,
    log_directory: Path,
    on_phase: Callable[[str], None] = _ignore,
    calibration_mode: Mode = Mode.CLASS,
    engine: Engine | None = None,
) -> Iterator[Session]:
    """Deploy and calibrate the plan; undo everything at the end, whatever happens. The engine places the agents of
    machines that the plan is spread over; None: on this machine.

    Raises MissingRequirementError when the kernel does not do what is requested, and CalibrationError when a link
    does not do what it says.
    """
    overhead_s: dict[str, float] = {}
    with owned_run(run_id) as state, ExitStack() as stack:
        on_phase("deploy")
        begun_s = time.monotonic()
        runtime = runtime_driver(plan).start(state, log_directory=log_directory)
        stack.callback(runtime.close)
        machines = None
        if plan.spread is not None:
            launch = stack.enter_context((engine or Local()).placing(state, log_directory))
            machines = stack.enter_context(running_machines(plan, state, launch))
        deployment = stack.enter_context(
            deploy(plan, state, log_directory=log_directory, runtime=runtime, machines=machines)
        )
        links = LiveLinks(deployment)
        stack.callback(links.close)
        service = LinkService(state.directory / SOCKET_NAME, links, name=plan.experiment.name)
        stack.callback(service.close)
        runtime.wait_ready(IMPORT_TIMEOUT_S)
        deployment.check_names()
        deployed_s = time.monotonic()
        overhead_s["deploy"] = deployed_s - begun_s
        on_phase("calibrate")
        underlay = [] if machines is None else machines.measure()
        if plan.spread is not None and (unfit := underlay_shortcomings(underlay_facts(plan.spread, [underlay]))):
            raise CalibrationError("\n".join(unfit))
        calibration = calibrate(deployment, mode=calibration_mode, cache=CalibrationCache.of_user())
        overhead_s["calibrate"] = time.monotonic() - deployed_s
        yield Session(
            plan=plan,
            state=state,
            deployment=deployment,
            links=links,
            runtime=runtime,
            calibration=calibration,
            machines=machines,
            underlay=underlay,
            overhead_s=overhead_s,
        )
        over_s = time.monotonic()
    overhead_s["tear_down"] = time.monotonic() - over_s
