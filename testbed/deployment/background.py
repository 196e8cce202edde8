"""The processes of the background flows, while a run goes on: started, watched, read."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.hosts.base import Host
from testbed.hosts.daemon import Daemon
from testbed.plan.background import Flow, FlowCounters, TrafficCounters
from testbed.system.native.build import program

_ORIGIN_BYTES = 8
"""`origin_ns` is the first field of struct counters."""


class BackgroundTraffic:
    """Every flow of a run; the processes end with the hosts'. Callable from any thread."""

    def __init__(self, flows: Sequence[Flow], hosts: Mapping[str, Host], *, directory: Path, seed: int) -> None:
        """Returns when all are ready; those that start with the run send from now on.

        The directory takes the counters. Raises MissingRequirementError with what a process said.
        """
        self._directory = directory
        self._flows = flows
        self._daemons: list[Daemon] = []
        for flow in flows:
            self._start(flow, hosts[flow.target.node], "sink", flow.sink_arguments())
            self._start(flow, hosts[flow.source.node], "source", flow.source_arguments(seed=seed))

    def _start(self, flow: Flow, host: Host, role: str, arguments: Sequence[str]) -> None:
        self._daemons.append(
            Daemon(
                host,
                f"background-{flow.index}-{role}",
                program("traffic"),
                (str(self._path(flow, role)), *arguments),
                title=f"the {role} of {flow.title}",
                consequence="the links no longer carry what was requested, so the run ends",
            )
        )

    def _path(self, flow: Flow, role: str) -> Path:
        return self._directory / f"background-{flow.index}-{role}"

    def begin(self) -> None:
        """The first iteration that communicates begins: moments in the spec count from now."""
        origin = time.monotonic_ns().to_bytes(_ORIGIN_BYTES, "little")
        for flow in self._flows:
            with self._path(flow, "source").open("r+b") as file:
                file.write(origin)

    def counters(self) -> list[FlowCounters]:
        """The counters of every flow, now."""
        return [FlowCounters(source=self._read(flow, "source"), sink=self._read(flow, "sink")) for flow in self._flows]

    def _read(self, flow: Flow, role: str) -> TrafficCounters:
        return TrafficCounters.parse(self._path(flow, role).read_bytes())

    def processes(self) -> dict[str, int]:
        """Pids of both ends of every flow, by name."""
        return {daemon.name: daemon.pid for daemon in self._daemons}

    def check(self) -> None:
        """Raise RunFailedError if one of the processes has ended."""
        for daemon in self._daemons:
            daemon.check()
