"""The machines of an emulation over several, as the run sees them: an agent in each, what it makes, what is between.

The agents are processes of this kernel (their sockets are paths, their namespaces are known by pids), so the machines
are network namespaces of it: a prototype, whose limits docs/several_machines.md states.
"""

import json
import os
import select
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from testbed.errors import MissingRequirementError, RunFailedError
from testbed.hosts.machine_agent import MAX_PACKET_BYTES, PROBE_TIMEOUT_S, remove_links
from testbed.hosts.spawn import log_tail
from testbed.links.veth import End, pair_command
from testbed.plan.addressing import Port
from testbed.plan.machines import ETHERNET_HEADER_BYTES, Machine, Need
from testbed.plan.plan import Plan
from testbed.system.kernel import network_namespace
from testbed.system.processes import RUN_ID_VARIABLE
from testbed.system.run_state import RunState

_START_TIMEOUT_S: Final = 30.0
_ANSWER_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 10.0
_LINES_AT_ONCE: Final = 200
_POLL_S: Final = 0.1
_STREAM_S: Final = 1.2
_WARM_UP_S: Final = 0.3
_NUM_ROUND_TRIPS: Final = 100
_NUM_TIMES: Final = 3
"""That round trips are measured, of which the one in the middle counts."""
_NUM_RATES: Final = 5
"""That a rate is measured which was too low the first time, of which the one in the middle counts, never the highest: a
moment in which this machine was busy is not the network's, nor is what had waited meanwhile and then came at once."""
_PAUSE_S: Final = 1e-3
_JITTER_QUANTILE: Final = 0.99
_UDP_HEADER_BYTES: Final = 28
"""With IPv4."""
_OFFERED: Final = 1.1
"""Of what is needed: enough to see that it gets there, not more load than that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnderlayMeasurement:
    """What the network between two machines does from one to the other."""

    source: str
    target: str
    path_mtu: int
    """The longest IP packet that arrives uncut."""
    carried_bps: float
    """Of datagrams as long as the links' packets, of which a tenth more was sent than is needed, in both directions at
    once; with headers, as a shaper would count it. 0 where these do not fit."""
    round_trip_s: float
    """Median, with nothing else under way."""
    jitter_s: float
    """What the slowest of a hundred round trips takes longer than the fastest; a lost one has taken as long as it was
    waited for."""


class Started(Protocol):
    """An agent that was started, somehow."""

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""

    def stop(self) -> None:
        """End it if it has not ended. Idempotent."""

    def said(self) -> str:
        """The end of what it printed."""


Launch = Callable[[Machine, Path], Started]
"""Starts the agent of a machine, which is to connect to that path."""


class _Spawned:
    """A process that ends with its conversation, so that it has a moment to remove what it made when this process is
    killed."""

    def __init__(self, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        return log_tail(self._log)


def spawned_in_namespaces(state: RunState, log_directory: Path) -> Launch:
    """Start agents here, in the namespaces that the machines are."""

    def launch(machine: Machine, path: Path) -> Started:
        if machine.namespace is None:
            raise MissingRequirementError(
                f"machines.{machine.name}.namespace: without it only Ray knows where the machine is: add --engine ray, "
                "or the path of its network namespace, such as /run/netns/m1"
            )
        if not Path(machine.namespace).exists():
            raise MissingRequirementError(
                f"machines.{machine.name}.namespace: there is no {machine.namespace}: ip netns add NAME makes "
                "/run/netns/NAME"
            )
        name = f"machine {machine.name}"
        state.add_entered_network(Path(machine.namespace).stat().st_ino)
        spawned = _Spawned(
            [
                *("nsenter", f"--net={machine.namespace}", "--"),
                *(sys.executable, "-P", "-m", "testbed.hosts.machine_agent", str(path)),
            ],
            log_directory / f"machine-{machine.name}.log",
            {**os.environ, RUN_ID_VARIABLE: state.run_id},
        )
        state.add_process(name, spawned.pid)
        return spawned

    return launch


class _Agent:
    """One agent and the conversation with it. Callable from any thread."""

    def __init__(self, machine: Machine, started: Started, connection: socket.socket, pid: int) -> None:
        self.machine = machine
        self.pid = pid
        self._started = started
        self._connection = connection
        self._lock = threading.Lock()
        self.ports: tuple[int, int] = (0, 0)

    def ask(self, do: str, **request: Any) -> Any:
        """Raises MissingRequirementError with what it could not do, RunFailedError where it has ended."""
        with self._lock:
            try:
                self._connection.send(json.dumps({"do": do, **request}).encode())
                packet = self._connection.recv(MAX_PACKET_BYTES)
            except TimeoutError:
                raise RunFailedError(f"{self.title} has not answered within {_ANSWER_TIMEOUT_S:g} s") from None
            except OSError:
                packet = b""
        if not packet:
            raise RunFailedError(self._ended())
        answer = json.loads(packet)
        if "error" in answer:
            raise MissingRequirementError(f"machine {self.machine.name}: {answer['error']}")
        return answer["answer"]

    @property
    def title(self) -> str:
        return f"the agent of machine {self.machine.name} (pid {self.pid})"

    def check(self) -> None:
        """Raise RunFailedError if it has ended: then its end of the conversation is closed."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        with self._lock:  # it says nothing of itself but that
            gone = poll.poll(0)
        if gone:
            raise RunFailedError(self._ended())

    def _ended(self) -> str:
        return (
            f"{self.title} has ended, and with it everything that it made there "
            f"({', '.join(self.machine.nodes)})\n{self._started.said()}"
        ).rstrip()

    def close(self) -> None:
        self._connection.close()
        self._started.stop()


class RunningMachines:
    """The agents of a plan's machines. Use :func:`running_machines`."""

    def __init__(self, plan: Plan, run_id: str, agents: Mapping[str, _Agent]) -> None:
        assert plan.spread is not None
        self._plan = plan
        self._spread = plan.spread
        self._run_id = run_id
        self._agents = agents
        self.holders: Mapping[str, int] = {}
        """The processes that hold the nodes' namespaces, by node."""
        self._namespaces: dict[str, int] = {}
        """Descriptors of these, which are there when a killed agent has taken its holders along."""

    def check(self) -> None:
        """Raise RunFailedError if an agent has ended."""
        for agent in self._agents.values():
            agent.check()

    @property
    def processes(self) -> dict[str, int]:
        """Pids of the agents, by name."""
        return {f"machine {name}": agent.pid for name, agent in self._agents.items()}

    def require_mtu(self) -> None:
        """Raise MissingRequirementError where a link's packets do not fit the network between the machines."""
        for need in self._spread.needs:
            path_mtu = self._path_mtu(need)
            if path_mtu < need.packet_bytes:
                found = f"lets packets of {path_mtu} bytes through" if path_mtu else "lets nothing through"
                raise MissingRequirementError(
                    f"the network from machine {need.source} to {need.target} {found}, and links with mtu "
                    f"{self._plan.experiment.mtu} need {need.packet_bytes} with what VXLAN adds: raise the MTU of "
                    f"every interface on the way (ip link set dev ... mtu {need.packet_bytes})"
                    + ("" if path_mtu else ", and see that the machines reach each other's address")
                )

    def hold(self, directory: Path) -> None:
        """Make the namespaces of all nodes, each on its machine."""
        found: dict[str, int] = {}
        for name, agent in self._agents.items():
            own = directory / name
            own.mkdir()
            found |= agent.ask("hold", nodes=agent.machine.nodes, names=self._plan.host_names(), directory=str(own))
        self.holders = found
        for node, pid in found.items():
            self._namespaces[node] = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def make_links(self) -> None:
        """Make every link: pairs on a machine, VXLAN devices between two."""
        lines: dict[str, list[str]] = {name: [] for name in self._agents}
        between = {(tunnel.first, tunnel.second) for tunnel in self._spread.tunnels}
        for first, second in self._plan.links:
            if (first, second) not in between:
                machine = self._spread.machine_of(first.node).name
                lines[machine].append(pair_command(self._end(first), self._end(second)))
        for port, device in self._spread.devices(self._run_id):
            lines[self._spread.machine_of(port.node).name].append(device.command(self._end(port)))
        for name, agent in self._agents.items():
            between_machines = self._between(agent.machine.nodes)
            for begin in range(0, len(lines[name]), _LINES_AT_ONCE):  # a packet holds so many
                agent.ask("link", lines=lines[name][begin : begin + _LINES_AT_ONCE], between=between_machines)

    def _between(self, nodes: Iterable[str]) -> dict[str, list[str]]:
        """The interfaces of links between machines, by node."""
        found: dict[str, list[str]] = {}
        for port, _ in self._spread.devices(self._run_id):
            if port.node in nodes:
                found.setdefault(port.node, []).append(port.interface)
        return found

    def close(self) -> None:
        """Remove the links between machines, which agents that are alive would do, too."""
        for node, interfaces in self._between(self._namespaces).items():
            remove_links(f"/proc/{os.getpid()}/fd/{self._namespaces[node]}", interfaces)
        for descriptor in self._namespaces.values():
            os.close(descriptor)
        self._namespaces.clear()

    def differences(self, node: str, links: Sequence[Mapping[str, Any]]) -> list[str]:
        """What `ip -d -j address show` says in a node of its ends of links between machines that was not requested."""
        devices = self._spread.devices(self._run_id)
        return [line for port, device in devices if port.node == node for line in device.differences(links)]

    def _end(self, port: Port) -> End:
        return End(port.interface, port.mac, self.holders[port.node])

    def measure(self) -> list[UnderlayMeasurement]:
        """Both directions of the network between the machines; takes some seconds. A way that is gone carries 0."""
        needs = self._spread.needs
        mtus = [self._path_mtu(need) for need in needs]
        round_trips_s = [self._round_trips_s(need) if mtu else [[None]] for need, mtu in zip(needs, mtus, strict=True)]
        if any(mtu < need.packet_bytes for mtu, need in zip(mtus, needs, strict=True)):
            return [
                _measurement(need, mtu, of_need_s, 0.0)
                for need, mtu, of_need_s in zip(needs, mtus, round_trips_s, strict=True)
            ]
        carried_bps = standing_rates_bps(self._carried_bps, [need.wire_bps for need in needs])
        return [
            _measurement(need, mtu, of_need_s, each_bps)
            for need, mtu, of_need_s, each_bps in zip(needs, mtus, round_trips_s, carried_bps, strict=True)
        ]

    def _round_trips_s(self, need: Need) -> list[list[float | None]]:
        """None for what did not come back."""
        options = {**self._to(need, 0), "count": _NUM_ROUND_TRIPS, "pause_s": _PAUSE_S}
        return [self._agents[need.source].ask("round_trips", **options) for _ in range(_NUM_TIMES)]

    def _carried_bps(self) -> list[float]:
        """Of somewhat more than is needed, in both directions at once."""
        needs = self._spread.needs
        for agent in self._agents.values():
            agent.ask("count")
        with ThreadPoolExecutor(len(needs)) as pool:
            streams = [pool.submit(self._stream, need) for need in needs]
            for stream in streams:
                stream.result()
        return [
            self._agents[need.target].ask("received", warm_up_s=_WARM_UP_S) / _payload_share(need) for need in needs
        ]

    def _stream(self, need: Need) -> None:
        self._agents[need.source].ask(
            "send",
            **self._to(need, 1),
            payload_bytes=need.packet_bytes - _UDP_HEADER_BYTES,
            rate_bps=_OFFERED * need.wire_bps * _payload_share(need),
            duration_s=_STREAM_S,
        )

    def _path_mtu(self, need: Need) -> int:
        return int(self._agents[need.source].ask("path_mtu", **self._to(need, 0)))

    def _to(self, need: Need, which: int) -> dict[str, Any]:
        target = self._agents[need.target]
        return {"remote": target.machine.address, "port": target.ports[which]}


def standing_rates_bps(measure: Callable[[], list[float]], needed_bps: Sequence[float]) -> list[float]:
    """The rates that are measured first where all are as high as is needed, else of five measurements the medians."""
    first_bps = measure()
    if all(each_bps >= need_bps for each_bps, need_bps in zip(first_bps, needed_bps, strict=True)):
        return first_bps
    measured_bps = [first_bps, *(measure() for _ in range(_NUM_RATES - 1))]
    return list(map(statistics.median, zip(*measured_bps, strict=True)))


def _payload_share(need: Need) -> float:
    """Payload of a datagram over what a shaper counts of it."""
    return (need.packet_bytes - _UDP_HEADER_BYTES) / (need.packet_bytes + ETHERNET_HEADER_BYTES)


def _measurement(
    need: Need, mtu: int, round_trips_s: Sequence[Sequence[float | None]], carried_bps: float
) -> UnderlayMeasurement:
    in_order_s = [sorted(each_s or PROBE_TIMEOUT_S for each_s in times_s) for times_s in round_trips_s]
    jitters_s = [times_s[int(_JITTER_QUANTILE * len(times_s))] - times_s[0] for times_s in in_order_s]
    return UnderlayMeasurement(
        source=need.source,
        target=need.target,
        path_mtu=mtu,
        carried_bps=carried_bps,
        round_trip_s=statistics.median(each_s for times_s in in_order_s for each_s in times_s),
        jitter_s=statistics.median(jitters_s),
    )


@contextmanager
def running_machines(plan: Plan, state: RunState, launch: Launch) -> Iterator[RunningMachines]:
    """An agent on every machine of the plan, each with its end of the network between them; all ended at the end.

    Raises MissingRequirementError for a machine that cannot be had, or whose packets are too short for the links.
    """
    assert plan.spread is not None
    directory = state.directory / "machines"
    directory.mkdir()
    with ExitStack() as stack:
        agents: dict[str, _Agent] = {}
        for machine in plan.spread.machines:
            agents[machine.name] = agent = _started(machine, directory / f"{machine.name}.sock", launch)
            stack.callback(agent.close)
        namespaces = {network_namespace(agent.pid) for agent in agents.values()}
        for namespace in namespaces:  # of whoever started the agents, with other processes in them: Ray's, for one
            if namespace is not None:
                state.add_entered_network(namespace)
        if len(namespaces) < len(agents):
            raise MissingRequirementError(
                "the machines are one network namespace: links between them would lead back to where they come from; "
                "give each its own (machines.*.namespace)"
            )
        for name, agent in agents.items():
            try:
                agent.ports = agent.ask("open", address=agent.machine.address)
            except MissingRequirementError as error:
                raise MissingRequirementError(f"machines.{name}.address: {error}") from None
        machines = RunningMachines(plan, state.run_id, agents)
        stack.callback(machines.close)
        machines.require_mtu()
        machines.hold(directory)
        state.add_processes({f"holder of {node}": pid for node, pid in machines.holders.items()})
        yield machines


def _started(machine: Machine, path: Path, launch: Launch) -> _Agent:
    """Raises MissingRequirementError with what it said, where it does not come."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as waiting:
        waiting.bind(str(path))
        waiting.listen(1)
        waiting.settimeout(_POLL_S)
        started = launch(machine, path)
        connection = None
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        try:
            while connection is None and started.poll() is None and time.monotonic() < deadline_s:
                with suppress(TimeoutError):
                    connection, _ = waiting.accept()
        finally:
            if connection is None:
                started.stop()
    if connection is None:
        raise MissingRequirementError(f"the agent of machine {machine.name} did not start: {started.said()}")
    connection.settimeout(_ANSWER_TIMEOUT_S)
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return _Agent(machine, started, connection, int.from_bytes(credentials[:4], sys.byteorder))
