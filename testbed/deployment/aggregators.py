"""An aggregator while a run goes on: started, watched, read at the end."""

import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from switch_agg.aggregator import Stragglers
from switch_agg.status import Status, from_json
from testbed.errors import RunFailedError
from testbed.hosts.base import Host
from testbed.hosts.daemon import Daemon
from testbed.plan.aggregators import AggregatorPlan, TenantPlan
from testbed.worker.aggregator import AggregatorConfiguration
from testbed.worker.tenant import TenantConfiguration, TenantReport


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregatorReport:
    """What an aggregator counted, or how it ended before it could say so."""

    plan: AggregatorPlan
    counters: Mapping[str, int] = field(default_factory=dict)
    """By the names of switch_agg.aggregator.Counters."""
    violations: tuple[str, ...] = ()
    """Identities between counters that do not hold."""
    stragglers: Stragglers | None = None
    """For whom the experiment's chunks waited."""
    failure: str | None = None
    tenants: tuple[tuple[TenantReport, ...], ...] = ()
    """Of each worker of each job beside the experiment's."""


class RunningAggregator:
    """An aggregator that serves a run; its process ends with its host's."""

    def __init__(
        self, plan: AggregatorPlan, hosts: Mapping[str, Host], *, directory: Path, dilation: float = 1.0
    ) -> None:
        """Returns when it serves; the directory takes its counters; timers are so many times slower, and so are those
        of the other jobs' workers. Raises MissingRequirementError with what it said."""
        self.plan = plan
        self._path = directory / f"aggregator-{plan.name}"
        self._status_path = directory / f"aggregator-{plan.name}-status"
        self._asking = threading.Lock()
        for path in (self._path, self._status_path):  # made here, so that its process cannot put others in their place
            path.touch()
            path.chmod(0o660)  # whatever the umask is
        configuration = AggregatorConfiguration(
            dataplane=plan.collective.dataplane,
            address=plan.port.address,
            jobs=(plan.job, *(tenant.job for tenant in plan.tenants)),
            switch_pid=hosts[plan.switch_port.node].pid,
            switch_interface=plan.switch_port.interface,
            counters_path=self._path,
            status_path=self._status_path,
            dilation=dilation,
        )
        self._daemon = Daemon(
            hosts[plan.name],
            f"aggregator-{plan.name}",
            Path(sys.executable),
            ("-m", "testbed.worker.aggregator", configuration.model_dump_json()),
            title=plan.title,
            consequence="nobody answers for the switch any more",
            listens=True,
            privileged=plan.collective.plane.in_kernel,  # it loads programs into the kernel
        )
        self._tenants = [
            [
                RunningTenant(plan, tenant, index, hosts[host], directory=directory, dilation=dilation)
                for index, host in enumerate(tenant.hosts)
            ]
            for tenant in plan.tenants
        ]

    @property
    def pid(self) -> int:
        """Of its process, in the root pid namespace."""
        return self._daemon.pid

    def processes(self) -> dict[str, int]:
        """Pids of it and of the other jobs' workers, by name."""
        tenants = {worker.name: worker.pid for members in self._tenants for worker in members}
        return {self._daemon.name: self._daemon.pid, **tenants}

    def status(self) -> Status | None:
        """Now; None once it has ended. Any thread may ask."""
        try:
            with self._asking:
                self._daemon.change("status")
                return from_json(self._status_path.read_text())
        except RunFailedError:
            return None

    def reset(self, number: int) -> None:
        """Begin another epoch of a job. Any thread may ask. Raises RunFailedError with what it said."""
        self._daemon.change(f"reset:{number}")

    def report(self) -> AggregatorReport:
        """At the end of a run; other jobs end here, so that the counters come to stand still."""
        tenants = tuple(tuple(each.report() for each in members) for members in self._tenants)
        try:
            self._daemon.check()
            self._daemon.change("counters")
        except RunFailedError as error:
            return AggregatorReport(plan=self.plan, failure=str(error), tenants=tenants)
        found = json.loads(self._path.read_text())
        return AggregatorReport(
            plan=self.plan,
            counters=found["counters"],
            violations=tuple(found["violations"]),
            stragglers=Stragglers(**found["stragglers"]),
            tenants=tenants,
        )


class RunningTenant:
    """A worker of another job; its process ends with its host's."""

    def __init__(
        self, plan: AggregatorPlan, tenant: TenantPlan, index: int, host: Host, *, directory: Path, dilation: float
    ) -> None:
        """Returns when it has begun. Raises MissingRequirementError with what it said."""
        name = f"tenant-{plan.name}-{tenant.job.number}-{index}"
        self._path = directory / name
        configuration = TenantConfiguration(
            job=tenant.job,
            index=index,
            aggregator=plan.port.address,
            size_bytes=tenant.size_bytes,
            report_path=self._path,
            dilation=dilation,
        )
        self._daemon = Daemon(
            host,
            name,
            Path(sys.executable),
            ("-m", "testbed.worker.tenant", configuration.model_dump_json()),
            title=f"worker {tenant.hosts[index]} of job {tenant.job.number} at {plan.name}",
            consequence="the switch no longer has the load that was requested",
            listens=True,
        )

    @property
    def name(self) -> str:
        """Of its process."""
        return self._daemon.name

    @property
    def pid(self) -> int:
        """Of its process, in the root pid namespace."""
        return self._daemon.pid

    def report(self) -> TenantReport:
        """Stop it, and read what it did."""
        try:
            self._daemon.change("stop")
        except RunFailedError as error:
            return TenantReport(failure=str(error))
        return TenantReport(**json.loads(self._path.read_text()))
