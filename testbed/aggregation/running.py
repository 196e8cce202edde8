"""An aggregator while a run goes on: started, watched, read at the end."""

import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from switch_agg.status import Status, from_json
from testbed.aggregation.plan import AggregatorPlan
from testbed.aggregation.process import AggregatorConfiguration
from testbed.errors import RunFailedError
from testbed.hosts.base import Host
from testbed.hosts.daemon import Daemon


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregatorReport:
    """What it counted, or how it ended before."""

    plan: AggregatorPlan
    counters: Mapping[str, int] = field(default_factory=dict)
    """By the names of switch_agg.aggregator.Counters."""
    violations: tuple[str, ...] = ()
    """Identities between counters that do not hold."""
    failure: str | None = None


class RunningAggregator:
    """Its process ends with its host's."""

    def __init__(self, plan: AggregatorPlan, hosts: Mapping[str, Host], *, directory: Path) -> None:
        """Returns when it serves; the directory takes its counters. Raises EnvironmentLacksError with what it said."""
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
            job=plan.job,
            switch_pid=hosts[plan.switch_port.node].pid,
            switch_interface=plan.switch_port.interface,
            counters_path=self._path,
            status_path=self._status_path,
        )
        self._daemon = Daemon(
            hosts[plan.name],
            f"aggregator-{plan.name}",
            Path(sys.executable),
            ("-m", "testbed.aggregation.process", configuration.model_dump_json()),
            title=plan.title,
            consequence="nobody answers for the switch any more",
            listens=True,
            of_laboratory=plan.collective.dataplane == "ebpf",  # it loads programs into the kernel
        )

    def status(self) -> Status | None:
        """Now; None once it has ended. Any thread may ask."""
        try:
            with self._asking:
                self._daemon.change("status")
                return from_json(self._status_path.read_text())
        except RunFailedError:
            return None

    def report(self) -> AggregatorReport:
        """At the end of a run."""
        try:
            self._daemon.check()
            self._daemon.change("counters")
        except RunFailedError as error:
            return AggregatorReport(plan=self.plan, failure=str(error))
        found = json.loads(self._path.read_text())
        return AggregatorReport(plan=self.plan, counters=found["counters"], violations=tuple(found["violations"]))
