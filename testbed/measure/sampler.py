"""Reads every link's counters at a fixed interval, and on demand at the borders of the measured window."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Final, Protocol, Self

from testbed.deployment.deployment import Deployment
from testbed.errors import MissingRequirementError
from testbed.experiment.delay_backends.base import DelayCounters
from testbed.experiment.topologies.base import END_HOSTS
from testbed.hosts.base import Throttling
from testbed.links.htb import CLASS_HANDLE, wire_bytes
from testbed.measure.backlog import BacklogProbe, BacklogProber, Reading, probing_limit_s
from testbed.measure.connections import Connection, ConnectionMonitor
from testbed.measure.settings import SettingChange, SettingsMonitor, read_sysctls
from testbed.plan.background import FlowCounters
from testbed.plan.direction import Direction
from testbed.system.netlink import HtbClass, LinkMonitor, NetlinkError, transmitted_bytes
from testbed.worker.run_queue import run_queue_delays_s

_NUM_SYSCTL_NODES: Final = 2
"""Whose sysctls are read beside each sample, which takes a quarter of a millisecond each."""


class LineCounters(Protocol):
    """What gives a direction its rate and queue has counted since it was made: an HTB class, or the relay."""

    @property
    def rate_bps(self) -> float:
        """The rate in force."""

    @property
    def num_bytes(self) -> int:
        """Frames as on a wire: the headers of every segment of a super-frame included."""

    @property
    def num_packets(self) -> int:
        """Segments, where the kernel sent super-frames."""

    @property
    def num_drops(self) -> int:
        """Packets dropped because the queue was full."""

    @property
    def num_overlimits(self) -> int:
        """How often a packet had to wait, where that is counted."""

    @property
    def backlog_bytes(self) -> int:
        """Waiting in the queue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkSample:
    """One direction of one link at one moment. Counters are cumulative since the link was made."""

    at_s: float
    """time.monotonic() when this direction had been read."""
    read_from_s: float
    """time.monotonic() before that: its counters are of a moment in between."""
    link: str
    node: str
    """The sending node."""
    port: str
    rate_bps: float
    class_bytes: int
    class_packets: int
    drops: int
    overlimits: int
    backlog_bytes: int
    interface_bytes: int


class LinkSampler:
    """A thread that samples all links; use as a context manager."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        interval_s: float,
        on_sample: Callable[[Sequence[LinkSample]], None],
        on_probe: Callable[[BacklogProbe], None] = lambda _: None,
    ) -> None:
        """Between two samples at most one backlogged direction is probed (testbed.measure.backlog)."""
        self._deployment = deployment
        self._interval_s = interval_s
        self._on_sample = on_sample
        self._on_probe = on_probe
        self._directions = {(each.link, each.sender.node): each for each in deployment.plan.directions}
        self._prober = BacklogProber(
            granule_bytes=wire_bytes(deployment.plan.experiment.packet_bytes, deployment.plan.experiment.mtu),
            limit_s=probing_limit_s(interval_s),
        )
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._monitors: dict[str, LinkMonitor] = {}
        self._connections: dict[str, ConnectionMonitor] = {}
        self._settings: dict[str, SettingsMonitor] = {}
        self._settings_lock = threading.Lock()
        self._watching = False
        self._foreign: list[SettingChange] = []
        self._replies: dict[tuple[str, int], bytes] = {}
        """What the kernel said last of each interface, by node and index."""
        for node in deployment.plan.nodes:
            with deployment.hosts[node.name].entered():
                self._monitors[node.name] = LinkMonitor()
                self._settings[node.name] = SettingsMonitor(node.name)
                if node.role in END_HOSTS:
                    self._connections[node.name] = ConnectionMonitor()
        self._in_turn = cycle(self._settings)
        self._indices = {name: monitor.interfaces() for name, monitor in self._monitors.items()}
        self._relayed_ports = {
            (direction.link, direction.sender.node): direction.sender
            for direction in deployment.plan.directions
            if direction.shaper is None
        }
        self._thread = threading.Thread(target=self._run, name="link-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for monitor in self._monitors.values():
            monitor.close()
        for connections in self._connections.values():
            connections.close()
        for settings in self._settings.values():
            settings.close()

    def sample(self) -> list[LinkSample]:
        """Read every link now. Raises MissingRequirementError if a link or its shaper has gone."""
        samples: list[LinkSample] = []
        with self._lock:
            relayed_from_s, relayed = time.monotonic(), self._deployment.relay_counters()
            relayed_at_s = time.monotonic()
            for direction in list(self._deployment.directions.values()):
                port = direction.sender
                read_from_s = time.monotonic()
                line = self._line(direction, relayed)
                own = isinstance(line, HtbClass)
                at_s = time.monotonic() if own else relayed_at_s
                try:
                    index = self._indices[port.node].get(port.interface, 0)
                    reply = self._replies[port.node, index] = self._monitors[port.node].link_message(index)
                    interface_bytes = transmitted_bytes(reply)
                except NetlinkError as error:
                    self._deployment.check()  # without its relay a link has no ports
                    raise MissingRequirementError(f"{port.interface}: its counters cannot be read: {error}") from error
                samples.append(
                    LinkSample(
                        at_s=at_s,
                        read_from_s=read_from_s if own else relayed_from_s,
                        link=direction.link,
                        node=port.node,
                        port=port.interface,
                        rate_bps=direction.rate_bps,
                        class_bytes=line.num_bytes,
                        class_packets=line.num_packets,
                        drops=line.num_drops,
                        overlimits=line.num_overlimits,
                        backlog_bytes=line.backlog_bytes,
                        interface_bytes=interface_bytes,
                    )
                )
        return samples

    def _line(self, direction: Direction, relayed: Mapping[tuple[str, str], LineCounters]) -> LineCounters:
        port = direction.sender
        line = relayed.get((direction.link, port.node))
        if line is not None:
            return line
        monitor, index = self._monitors[port.node], self._indices[port.node].get(port.interface, 0)
        try:
            return next(item for item in monitor.htb_classes(index) if item.handle == CLASS_HANDLE)
        except (NetlinkError, StopIteration) as error:
            self._deployment.check()
            raise MissingRequirementError(f"{port.interface}: its shaper cannot be read: {error}") from error

    def _reading(self, key: tuple[str, str]) -> Reading:
        with self._lock:
            begun_s = time.monotonic()
            line = self._line(self._directions[key], self._deployment.relay_counters())
            ended_s = time.monotonic()
        return Reading(
            at_s=(begun_s + ended_s) / 2,
            rate_bps=self._deployment.directions[self._directions[key].hop].rate_bps,
            class_bytes=line.num_bytes,
            backlog_bytes=line.backlog_bytes,
        )

    def connections(self) -> dict[str, list[Connection]]:
        """Every TCP connection of every worker's node now."""
        with self._lock:
            return {node: monitor.connections() for node, monitor in self._connections.items()}

    def delay_counters(self) -> dict[tuple[str, str], DelayCounters]:
        """What each delay line that a program serves has done until now; by link and sending node.

        What a port dropped before the relay could take it counts as dropped by the relay.
        """
        with self._lock:
            counters = self._deployment.delay_counters()
            for key, port in self._relayed_ports.items():
                drops = self._monitors[port.node].transmission_drops(self._indices[port.node][port.interface])
                counters[key] = replace(counters[key], num_dropped=counters[key].num_dropped + drops)
            return counters

    def begin_watching(self) -> None:
        """From now until :meth:`end_watching` every setting must stay as it is, but for :meth:`own_changes`."""
        with self._settings_lock, self._lock:
            for node, settings in self._settings.items():
                settings.begin(self._monitors[node].link_messages(), self._sysctls(node))
            self._watching = True

    def end_watching(self) -> list[SettingChange]:
        """What somebody else has changed since, in the order in which it was noticed."""
        with self._settings_lock:
            self._collect(all_sysctls=True)
            self._watching = False
            return self._foreign

    @contextmanager
    def own_changes(self) -> Iterator[None]:
        """Within it the run itself changes settings, and nobody else is expected to."""
        with self._settings_lock:
            self._collect()
            try:
                yield
            finally:
                for settings in self._settings.values():
                    settings.forget()

    def _sysctls(self, node: str) -> dict[str, str]:
        with self._deployment.hosts[node].entered():
            return read_sysctls()

    def _collect(self, *, all_sysctls: bool = False) -> None:
        if self._watching:
            for settings in self._settings.values():
                self._foreign += settings.changes()
            with self._lock:
                reply = list(self._replies.items())
            for (node, _), message in reply:
                self._foreign += self._settings[node].compared(message)
            for node in self._settings if all_sysctls else islice(self._in_turn, _NUM_SYSCTL_NODES):
                # A node that is gone has none; whoever watches its processes ends the run and says why.
                with suppress(FileNotFoundError, ProcessLookupError):
                    self._foreign += self._settings[node].compared_sysctls(self._sysctls(node))

    def begin_background(self) -> None:
        """The first iteration that communicates begins: moments of background flows count from now."""
        self._deployment.begin_background()

    def background_counters(self) -> list[FlowCounters]:
        """What each background flow of the plan has done until now."""
        return self._deployment.background_counters()

    def throttling(self) -> dict[str, Throttling]:
        """What CPU quotas have done until now, by the name of each process that has one."""
        return self._deployment.throttling()

    def serving_delays_s(self) -> dict[str, dict[int, float]]:
        """How long each thread of each parameter server and aggregator in user space has waited for a core; by the
        process' name and the thread's id."""
        return {name: run_queue_delays_s(pid) for name, pid in self._deployment.serving.items()}

    def check(self) -> None:
        """Raise what stopped the sampling thread, if anything did."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        next_s = time.monotonic()
        while not self._stop.wait(max(0.0, next_s - time.monotonic())):
            try:
                samples = self.sample()
                self._on_sample(samples)
                if self._settings_lock.acquire(blocking=False):  # else the run is changing some: the next time will do
                    try:
                        self._collect()
                    finally:
                        self._settings_lock.release()
                waiting = [(sample.link, sample.node) for sample in samples if sample.backlog_bytes]
                probe = self._prober.probe(waiting, self._reading, self._stop.wait)
                if probe is not None:
                    self._on_probe(probe)
            except Exception as error:  # noqa: BLE001 - handed to check(), which the run calls
                self._error = error
                return
            # A late tick is not made up for: two samples at once say no more than one.
            next_s = max(next_s + self._interval_s, time.monotonic())
