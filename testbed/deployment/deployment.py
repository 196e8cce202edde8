"""Plan -> a running network. Owns only what it makes, removes exactly that.

Every setting is read back from the kernel after it is made, and again after the run: `tc -j`, `ip -j` and netlink must
say what the plan said, or the run ends (exit 3).
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

from switch_agg.status import Status
from testbed.deployment.aggregator_control import controlled
from testbed.deployment.aggregators import AggregatorReport, RunningAggregator
from testbed.deployment.background import BackgroundTraffic
from testbed.deployment.delay_daemon import DelayDaemon
from testbed.deployment.link_control import LinkController
from testbed.deployment.read_back import (
    answers,
    node_differences,
    read_delay_line,
    read_node,
    sysctls_on_this_kernel,
)
from testbed.errors import MissingRequirementError, RunFailedError
from testbed.experiment.delay_backends.base import (
    DelayCounters,
    DelayProgram,
    DelayStage,
    ProgramReport,
    RelayCounters,
    delay_backends,
    port_argument,
)
from testbed.experiment.topologies.base import END_HOSTS
from testbed.hosts.base import Host, ProcessSpec, RunningRuntime, Throttling
from testbed.hosts.machines import RunningMachines
from testbed.hosts.namespace import NamespaceHost
from testbed.hosts.spawn import log_tail
from testbed.links.bridge import Bridge
from testbed.links.htb import CLASS_HANDLE, Shaper
from testbed.plan.addressing import Port
from testbed.plan.background import FlowCounters
from testbed.plan.direction import Direction
from testbed.plan.nodes import NodePlan
from testbed.plan.paths import Hop
from testbed.plan.plan import Plan
from testbed.system.idle import shallow_sleep
from testbed.system.kernel import network_namespace, write_sysctl
from testbed.system.netlink import HtbClass, LinkMonitor, NetlinkError
from testbed.system.run_state import RunState

Result = TypeVar("Result")
_FORWARDING_TIMEOUT_S: Final = 5.0
_LOOK_UP_TIMEOUT_S: Final = 30.0
"""Of all hosts; whoever asks a name server that cannot be reached waits for 10 s (resolv.conf(5))."""


class Deployment:
    """The nodes and links of a plan, made and read back."""

    def __init__(
        self,
        planned: Plan,
        hosts: Mapping[str, Host],
        *,
        counters_directory: Path,
        scratch_directory: Path,
        machines: RunningMachines | None = None,
    ) -> None:
        """Privileged programs keep their counters in the first directory, aggregators in the second; `machines` are
        those that the nodes are on, if they are not all on this one."""
        self.planned = planned
        """In virtual time."""
        self.plan = plan = planned.real()
        """In real time, as everything here is."""
        self.hosts = hosts
        self.directions: dict[Hop, Direction] = {direction.hop: direction for direction in plan.directions}
        """As they are configured now, in the plan's order."""
        self._down: set[Hop] = set()
        self._counters_directory = counters_directory
        self._scratch_directory = scratch_directory
        self._daemons: dict[str, DelayDaemon] = {}
        self._background: BackgroundTraffic | None = None
        self._aggregators: list[RunningAggregator] = []
        self.aggregator_reports: list[AggregatorReport] = []
        """Of each aggregator, once :meth:`read_aggregators` has been called."""
        self.serving: dict[str, int] = {}
        """The processes beside the workers that serve them, by name: parameter servers, aggregators in user space and
        the storage node, which moves no gradients."""
        self.working: dict[str, int] = {}
        """The workers' processes, by the name of their host."""
        self.holders: dict[str, int] = {}
        """The processes that keep the nodes' namespaces, by node; of containers the runtime knows."""
        self.relay: DelayDaemon | None = None
        """Carries all links; None where the kernel does."""
        self._controls: dict[str, tuple[LinkController, dict[str, int]]] = {}
        self._takes_newer = True
        """Whether `tc_commands_if_known` have failed in no change yet; where they do, they always will."""
        self.machines = machines

    def monitor(self, node: str) -> LinkMonitor:
        """A netlink socket inside the node's namespace."""
        with self.hosts[node].entered():
            return LinkMonitor()

    def differences(self) -> list[str]:
        """Everything the kernel says that the plan did not ask for; empty when all is as requested."""
        limits = [line for host in self.hosts.values() for line in host.limit_differences()]
        return [line for lines in self._for_each_node(self._differences) for line in lines] + limits

    def read_back(self) -> dict[str, Any]:
        """What the kernel says now, by node: for the record."""
        states = self._for_each_node(self._state)
        for state in states:
            state["classes"] = {name: [asdict(item) for item in items] for name, items in state["classes"].items()}
            state["relay"] = {str(index): asdict(parameters) for index, parameters in state["relay"].items()}
        return dict(zip((node.name for node in self.plan.nodes), states, strict=True))

    def check(self) -> None:
        """Raise RunFailedError if the agent of a machine, a process that holds a node's namespaces, a delay daemon, the
        relay, or an end of a background flow has ended, or a worker that needed more memory than the spec gives it."""
        # Effects before causes: an agent takes its holders along, and may be killed between one look and the other.
        ended = [(node, pid) for node, pid in self.holders.items() if network_namespace(pid) is None]
        if self.machines is not None:
            self.machines.check()
        for node, pid in ended:
            raise RunFailedError(
                f"the process that held the network namespace of {node} (pid {pid}) has ended: somebody killed it, "
                "and nothing in there can be watched or measured any more"
            )
        for name in self.out_of_memory():
            raise RunFailedError(
                f"hosts.{name}.memory: the kernel ended {name}, which needed more than it was given: give it more, or "
                "leave the limit out"
            )
        for daemon in self._daemons.values():
            daemon.check()
        if self.relay is not None:
            self.relay.check()
        if self._background is not None:
            self._background.check()

    def processes(self) -> dict[str, int]:
        """Pids, by name, of what makes delays, carries links, aggregates, serves parameters or sends background traffic
        now."""
        daemons = [*self._daemons.values(), *([self.relay] if self.relay else [])]
        found = {daemon.name: daemon.pid for daemon in daemons} | self.serving
        found |= {} if self.machines is None else self.machines.processes
        for aggregator in self._aggregators:
            found.pop(aggregator.plan.name, None)
            found |= aggregator.processes()
        return found | (self._background.processes() if self._background else {})

    def check_names(self) -> None:
        """Have the first worker look every host up by its name and by its address, with the libraries that workers
        have; the others' names and files have been read already. Raises MissingRequirementError with what is not so."""
        first = self.plan.participants[0]
        names = (f"{name}={address}" for name, address in self.plan.host_names().items())
        process = self.hosts[first].start(
            ProcessSpec(name="names", entry="testbed.plan.names:main", arguments=(first, *names))
        )
        if process.wait(_LOOK_UP_TIMEOUT_S) != 0:
            said = log_tail(process.log_path) or f"not within {_LOOK_UP_TIMEOUT_S:g} s"
            raise MissingRequirementError(f"hosts cannot be looked up by their names (in {first}): {said}")

    def start_background(self) -> None:
        """Start the plan's background flows. Raises MissingRequirementError with what one of them said."""
        self._background = BackgroundTraffic(
            self.plan.background, self.hosts, directory=self._counters_directory, seed=self.plan.experiment.seed
        )

    def start_aggregators(self) -> None:
        """Start what the plan has beside its switches. Raises MissingRequirementError with what one of them said."""
        for plan in self.plan.aggregators:
            self._aggregators.append(
                RunningAggregator(
                    plan,
                    self.hosts,
                    directory=self._scratch_directory,
                    dilation=self.planned.clock.dilation,
                )
            )
            if not plan.collective.plane.in_kernel:
                self.serving[plan.name] = self._aggregators[-1].pid

    def controlled_aggregators(self, directory: Path) -> AbstractContextManager[None]:
        """Within it people can look at them, and reset them, through sockets in the directory."""
        return controlled(self._aggregators, directory)

    def read_aggregators(self) -> None:
        """The workers have left: read what was counted."""
        self.aggregator_reports = [aggregator.report() for aggregator in self._aggregators]

    def aggregator_statuses(self) -> dict[str, Status]:
        """The status of each aggregator that is alive, by name."""
        found = {aggregator.plan.name: aggregator.status() for aggregator in self._aggregators}
        return {name: status for name, status in found.items() if status is not None}

    def begin_background(self) -> None:
        """The first iteration that communicates begins: moments of the background flows count from now."""
        if self._background is not None:
            self._background.begin()

    def background_counters(self) -> list[FlowCounters]:
        """Of each background flow of the plan, once they have been started."""
        return [] if self._background is None else self._background.counters()

    def out_of_memory(self) -> list[str]:
        """The names of processes that the kernel has ended because of their memory limit."""
        return [name for host in self.hosts.values() for name in host.out_of_memory()]

    def throttling(self) -> dict[str, Throttling]:
        """What CPU quotas have done so far, by the name of each process that has one."""
        return {name: found for host in self.hosts.values() for name, found in host.throttling().items()}

    def delay_daemon(self, node: str) -> DelayDaemon:
        """The daemon that serves the delay lines at the node's ports."""
        return self._daemons[node]

    def delay_counters(self) -> dict[tuple[str, str], DelayCounters]:
        """What each delay line that a daemon serves has done; by link and sending node."""
        return {key: report.delay for key, report in self._reports(self.plan.directions).items()}

    def relay_counters(self) -> dict[tuple[str, str], RelayCounters]:
        """What the relay has done in each direction that it carries; by link and sending node."""
        if self.relay is None:
            return {}
        found = self._reports(self.plan.directions)
        return {key: report.line for key, report in found.items() if report.line is not None}

    def _program_of(self, direction: Direction) -> DelayDaemon | None:
        """What serves the direction's stage; None where the kernel does, or where there is none."""
        stage = direction.delay_stage
        program = None if stage is None else delay_backends()[stage.backend].program
        if program is None:
            return None
        return self.relay if program.serves == "run" else self._daemons[direction.receiver.node]

    def _reports(self, directions: Iterable[Direction]) -> dict[tuple[str, str], ProgramReport]:
        """Of what programs serve; by link and sending node. Each program is read once."""
        read: dict[DelayDaemon, Mapping[int, ProgramReport]] = {}
        found: dict[tuple[str, str], ProgramReport] = {}
        for direction in directions:
            daemon, stage = self._program_of(direction), direction.delay_stage
            if daemon is not None and stage is not None:
                read[daemon] = reports = read.get(daemon) or daemon.reports()
                found[direction.link, direction.sender.node] = reports[stage.index]
        return found

    def is_down(self, direction: Direction) -> bool:
        """Whether everything sent into it is lost."""
        return direction.hop in self._down

    def change(self, direction: Direction, *, down: bool) -> None:
        """Turn the direction of the same nodes into this one, in place, dropping nothing that waits; one at a time.

        Raises MissingRequirementError when the kernel did not take it, and RunFailedError when a daemon did not.
        """
        before, hop = self.directions[direction.hop], direction.hop
        try:
            if direction.delay_stage and before.delay_stage and direction.delay_stage != before.delay_stage:
                self._change_stage(direction, before.delay_stage, direction.delay_stage)
            # After the stage, which may take processes: bytes are compared with the rate that `directions` say.
            if direction.shaper is not None and direction.shaper != before.shaper:
                self._change_shaper(direction.sender, direction.shaper)
            if down != (hop in self._down):
                control, index = self._control(direction.receiver)
                (control.set_down if down else control.set_up)(index)
                if control.is_down(index) != down:
                    raise MissingRequirementError(f"{direction.name} did not go {'down' if down else 'up'}")
        except NetlinkError as error:
            raise MissingRequirementError(f"{direction.name} cannot be changed: {error.strerror}") from error
        self.directions[hop] = direction
        self._down = self._down | {hop} if down else self._down - {hop}

    def restart_draws(self) -> None:
        """Every link draws anew from its seed (loss, jitter, duplicates, reordering): what was sent before, by
        calibration say, no longer decides what happens to which packet. One at a time with :meth:`change`.

        netem draws anew only where its seed can be set. Raises RunFailedError when a daemon does not answer.
        """
        for direction in self.directions.values():
            if direction.delay_stage is not None:
                _run_if_known(self.hosts[direction.receiver.node], direction.delay_stage.tc_commands_if_known())
        for daemon in self._daemons.values():
            daemon.restart_draws()
        if self.relay is not None:
            self.relay.restart_draws()

    def line_counters(self) -> dict[Hop, HtbClass | RelayCounters]:
        """What carries each direction has done so far; one at a time with :meth:`change`."""
        found: dict[Hop, HtbClass | RelayCounters] = {}
        relayed = self.relay_counters()
        for hop, direction in self.directions.items():
            if direction.shaper is None:
                found[hop] = relayed[direction.link, direction.sender.node]
            else:
                control, index = self._control(direction.sender)
                found[hop] = next(item for item in control.htb_classes(index) if item.handle == CLASS_HANDLE)
        return found

    def close(self) -> None:
        """Close the sockets that :meth:`change` has opened. Idempotent."""
        for control, _ in self._controls.values():
            control.close()
        self._controls.clear()

    def _control(self, port: Port) -> tuple[LinkController, int]:
        if port.node not in self._controls:
            with self.hosts[port.node].entered():
                control = LinkController()
            self._controls[port.node] = control, control.interfaces()
        control, indices = self._controls[port.node]
        return control, indices[port.interface]

    def _change_shaper(self, port: Port, shaper: Shaper) -> None:
        control, index = self._control(port)
        control.change_shaper(index, shaper)
        found = shaper.class_differences(control.htb_classes(index))
        limit_bytes = control.queue_limit_bytes(index)
        if limit_bytes != shaper.queue_bytes:
            found.append(f"{port.interface}: queue is {limit_bytes} bytes, requested {shaper.queue_bytes}")
        if found:
            raise MissingRequirementError(f"the kernel did not take a change: {'; '.join(found)}")

    def _change_stage(self, direction: Direction, before: DelayStage, stage: DelayStage) -> None:
        host, found = self.hosts[direction.receiver.node], []
        commands = stage.tc_changes(before)
        if commands:
            found += stage.differences(self._change_qdiscs(host, stage, commands))
        daemon, relayed = self._program_of(direction), stage.relay_argument()
        if daemon is not None:
            for argument in (*stage.daemon_arguments(), *([] if relayed is None else [relayed])):
                daemon.change(argument)
            found += stage.parameter_differences(daemon.reports()[stage.index].parameters)
        if found:
            raise MissingRequirementError(f"the kernel did not take a change: {'; '.join(found)}")

    def _change_qdiscs(self, host: Host, stage: DelayStage, commands: Sequence[str]) -> dict[str, Any]:
        """The stage's qdiscs, read back. All in one process, which takes 12 ms on a busy machine: a trace has ten steps
        a second, for each direction of its links."""
        known = stage.tc_commands_if_known()
        if known and self._takes_newer:
            try:
                return read_delay_line(stage.interface, host, [*commands, *known])
            except MissingRequirementError:
                self._takes_newer = False
        return read_delay_line(stage.interface, host, commands)

    def apply(self) -> None:
        """Run the plan's commands. Raises MissingRequirementError with what the kernel said."""
        self.relay = self._start_relay()  # it makes the ports of its links
        self._for_each_node(self._apply)
        for node in self.plan.nodes:
            if node.addresses.bridge:
                self._wait_forwarding(node.addresses.bridge, self.hosts[node.name])

    def _start_relay(self) -> DelayDaemon | None:
        """One relay for all links, in the first switch: the program enters each node's namespace itself."""
        program = self._program()
        if program is None or program.serves != "run":
            return None
        arguments: list[str] = []
        for direction in self.plan.directions:
            port, stage = direction.sender, direction.delay_stage
            argument = None if stage is None else stage.relay_argument()
            if argument is not None:
                namespace = f"/proc/{self.hosts[port.node].pid}/ns/net"
                arguments += [port_argument(port.interface, port.mac, namespace), argument]
        switch = next(node.name for node in self.plan.nodes if node.role == "switch")
        return DelayDaemon(self.hosts[switch], program, arguments, counters_path=self._counters_directory / "relay")

    def _program(self) -> DelayProgram | None:
        """What serves the plan's stages; None where the kernel does, or where there are none."""
        return None if self.plan.delay_backend is None else delay_backends()[self.plan.delay_backend].program

    def _for_each_node(self, do: Callable[[NodePlan], Result]) -> list[Result]:
        # Each is a few short processes in its own namespace; a small pool hides their start-up.
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(do, self.plan.nodes))

    def _apply(self, node: NodePlan) -> None:
        host = self.hosts[node.name]
        with host.entered():
            for key, value in sysctls_on_this_kernel(node).items():
                try:
                    write_sysctl(key, value)
                except OSError as error:
                    raise MissingRequirementError(f"sysctl {key}={value} (in {node.name}): {error.strerror}") from error
        host.execute(["ip", "-batch", "-"], stdin="\n".join(node.ip_commands) + "\n")
        if node.bridge_commands:
            host.execute(["bridge", "-batch", "-"], stdin="\n".join(node.bridge_commands) + "\n")
        host.execute(["tc", "-batch", "-"], stdin="\n".join(node.tc_commands) + "\n")
        _run_if_known(host, node.tc_commands_if_known)
        if node.daemon_arguments and (program := self._program()) is not None:
            path = self._counters_directory / f"delay-{node.name}"
            self._daemons[node.name] = DelayDaemon(host, program, node.daemon_arguments, counters_path=path)
        if node.firewall_rules:
            rules = "\n".join(["*mangle", *node.firewall_rules, "COMMIT"]) + "\n"
            host.execute(["iptables-restore", "--noflush", "--wait", "10"], stdin=rules)

    def _wait_forwarding(self, bridge: Bridge, host: Host) -> None:
        """Until the bridge's ports forward; one that never does is a difference."""
        deadline_s = time.monotonic() + _FORWARDING_TIMEOUT_S
        while not bridge.forwards(answers(host, "ip", ["address show"])[0]) and time.monotonic() < deadline_s:
            time.sleep(0.02)

    def _state(self, node: NodePlan) -> dict[str, Any]:
        return {**read_node(node, self.hosts[node.name]), "relay": self._relay_parameters(node.name)}

    def _relay_parameters(self, node: str) -> dict[int, Any]:
        """In force in the directions that end at the node; by their index."""
        parameters = self.relay.parameters() if self.relay else {}
        return {
            direction.delay_stage.index: parameters[direction.delay_stage.index]
            for direction in self.plan.directions
            if self.relay and direction.delay_stage and direction.receiver.node == node
        }

    def _differences(self, node: NodePlan) -> list[str]:
        host = self.hosts[node.name]
        found = host.name_differences(self.plan.host_names()) if node.role in END_HOSTS else []
        state = self._state(node)
        found += node_differences(
            node,
            state,
            list(self.directions.values()),
            down=self._down,
            mtu=self.plan.experiment.mtu,
            congestion=self.plan.congestion,
        )
        if self.machines is not None:
            found += self.machines.differences(node.name, state["addresses"])
        if daemon := self._daemons.get(node.name):
            parameters = daemon.parameters()
            for direction in self.directions.values():
                if direction.receiver.node == node.name and direction.delay_stage:
                    stage = direction.delay_stage
                    found += stage.parameter_differences(parameters[stage.index])
        if node.path_manager:
            limits = host.execute(["ip", "mptcp", "limits", "show"])
            endpoints = json.loads(host.execute(["ip", "-j", "mptcp", "endpoint", "show"]))
            found += [f"{node.name}: {each}" for each in node.path_manager.differences(limits, endpoints)]
        return found


def _run_if_known(host: Host, commands: Iterable[str]) -> None:
    """Arguments of `tc`, each of which may fail where kernel or iproute2 are older."""
    for line in commands:
        with suppress(MissingRequirementError):
            host.execute(["tc", *line.split()])


@contextmanager
def deploy(
    plan: Plan,
    state: RunState,
    *,
    log_directory: Path,
    runtime: RunningRuntime | None = None,
    machines: RunningMachines | None = None,
) -> Iterator[Deployment]:
    """Make the plan's nodes and links, apply and read back every setting; undo all of it at the end. Cores of this
    machine stay awake meanwhile.

    Without a runtime every node is a namespace, and nothing can be forked. Of a plan that is spread over machines these
    have made the nodes and make the links.

    Raises MissingRequirementError when something cannot be made or the kernel's answer differs from the plan.
    """
    from testbed.deployment.mininet_nodes import EmulatedNetwork  # Mininet is an extra of the package

    contained = runtime.holders if runtime else {}
    network = EmulatedNetwork(plan, state, machines.holders if machines else contained)
    hosts: dict[str, Host] = {}
    with ExitStack() as stack:  # what one of them raises keeps no other from being stopped
        stack.enter_context(shallow_sleep())
        stack.callback(network.stop)
        network.build()
        if machines is not None:
            machines.make_links()
        network.start()
        for node in plan.nodes:
            pid = network.get(node.name).pid
            if runtime is None:
                hosts[node.name] = NamespaceHost(node.name, pid, state=state, log_directory=log_directory)
            else:
                hosts[node.name] = runtime.host(node.name, pid)
        for host in reversed(hosts.values()):
            stack.callback(host.stop)
        for host in hosts.values():
            stack.callback(host.tell_to_end)
        deployment = Deployment(
            plan,
            hosts,
            counters_directory=state.directory,
            scratch_directory=state.scratch_directory,
            machines=machines,
        )
        deployment.holders = {
            node.name: network.get(node.name).pid for node in plan.nodes if node.name not in contained
        }
        deployment.apply()
        differences = deployment.differences()
        if differences:
            raise MissingRequirementError(
                "the kernel did not take what was requested:\n  " + "\n  ".join(differences) + "\n"
                "run `testbed doctor` to see what this machine can do"
            )
        stack.callback(deployment.close)
        yield deployment
