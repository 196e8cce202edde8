"""Mininet's nodes and links, ours: they raise where Mininet prints and goes on, and own nothing outside themselves.

Kept is what Mininet is good at: a fresh network and mount namespace per node with a shell in it, a network built from a
topology object with replaceable classes. Replaced is what fails open: the switch lives in its own namespace;
links are shaped by the plan's commands (TCIntf's 1 Gbit/s cap and `burst 15k` lose the rate without an error);
a node is called by its name, which all others know (testbed.hosts.naming);
no limits of the machine are raised (`Mininet.init` writes global sysctls); stopping a node ends its namespaces, and
the veth pairs with them, so nothing is deleted by name. Replaced too is what takes the time: a node's namespaces are
held by a `cat`, its shell starts when it is first used, and one `ip` makes all links.
"""

import subprocess
from collections.abc import Mapping
from typing import Any

from mininet.link import Intf, Link
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.node import Host, Node, Switch
from mininet.topo import Topo

from testbed.errors import MissingRequirementError
from testbed.experiment.delay_backends.base import makes_ports
from testbed.experiment.topologies.base import END_HOSTS
from testbed.hosts.holder import Holder, start_named
from testbed.hosts.naming import NamingThread
from testbed.links.veth import End, pair_command
from testbed.plan.addressing import Port
from testbed.plan.plan import Plan
from testbed.system.run_state import RunState


class _Owned(Node):  # type: ignore[misc]
    """A network, mount and UTS namespace of its own, held by a process (testbed.hosts.holder)."""

    def __init__(self, name: str, *, state: RunState, naming: NamingThread, **parameters: Any) -> None:
        self.state = state
        self.naming = naming
        self.holder: Holder | None = None
        super().__init__(name, **{**parameters, "inNamespace": True})

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: ARG002, N802 - Mininet's name and signature
        """Start the holder instead; :meth:`wait_ready` waits for it, and the shell starts when it is first used."""
        self.holder = Holder(self.name, naming=self.naming, run_id=self.state.run_id)
        self.pid = self.holder.pid

    def wait_ready(self) -> None:
        """Until the namespaces exist. Raises MissingRequirementError with what mnexec said."""
        assert self.holder is not None
        self.holder.wait_ready()

    def _popen(self, cmd: list[str], **parameters: Any) -> "subprocess.Popen[bytes]":
        return start_named(self.naming, self.name, cmd, run_id=self.state.run_id, **parameters)

    def cmd(self, *words: Any, **options: Any) -> Any:
        """As Mininet's: run a command in the node's shell and return what it prints."""
        self._open_shell()
        return super().cmd(*words, **options)

    def sendCmd(self, *words: Any, **options: Any) -> Any:  # noqa: N802 - Mininet's name
        """Begin a command in the node's shell, as Mininet's method does."""
        self._open_shell()
        return super().sendCmd(*words, **options)

    def _open_shell(self) -> None:
        if self.shell is None and self.holder is not None:
            pid, self.inNamespace = self.pid, False
            try:
                super().startShell(mnopts=f"-cda{pid}")  # in the holder's namespaces, not in new ones
                self.state.add_process(f"shell of {self.name}", self.pid)
            finally:
                self.pid, self.inNamespace = pid, True

    def config(self, **_parameters: Any) -> dict[str, str]:
        """Nothing here: the deployment runs the plan's commands and reads them back."""
        return {}

    def release(self) -> None:
        """Let the holder end, without waiting."""
        if self.holder is not None:
            self.holder.release()

    def terminate(self) -> None:
        """End the shell and the holder. Idempotent."""
        super().terminate()
        if self.holder is not None:
            self.holder.end()
            self.holder = None


class EmulatedHost(_Owned, Host):  # type: ignore[misc]
    """A worker's node."""


class ContainedHost(EmulatedHost):
    """The node of a container, which holds the namespaces; what looks after the node uses this machine's programs."""

    def __init__(self, name: str, *, holder_pid: int, **parameters: Any) -> None:
        self.holder_pid = holder_pid
        super().__init__(name, **parameters)

    def startShell(self, mnopts: str | None = None) -> None:  # noqa: ARG002, N802 - Mininet's name and signature
        """The container runs already."""
        self.pid = self.holder_pid

    def wait_ready(self) -> None:
        """Returns at once: the container runs already."""

    def _open_shell(self) -> None:
        if self.shell is None:
            self.inNamespace = False
            try:
                Host.startShell(self)
                self.state.add_process(f"shell of {self.name}", self.pid)
            finally:
                self.pid, self.inNamespace = self.holder_pid, True

    def _popen(self, cmd: list[str], **parameters: Any) -> "subprocess.Popen[bytes]":
        # mnexec would enter the container's files with its network, where its own programs are not.
        return super()._popen(["nsenter", f"--target={self.holder_pid}", "--net", "--", *cmd], **parameters)


class EmulatedSwitch(_Owned, Switch):  # type: ignore[misc]
    """A switch in a namespace of its own, which routes or bridges as the plan's commands tell it.

    Routing hands each packet to a fresh socket-less life: TCP Small Queues of the sender do not reach through it, so
    queues, drops and incast at the switch are real (over a bridge they are not).
    """

    def start(self, controllers: list[Any]) -> None:
        """Forwarding is the plan's; there is no controller."""
        assert not controllers, "a switch of ours has no controller"

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803 - Mininet's name
        """The ports vanish with the namespace."""


class EmulatedInterface(Intf):  # type: ignore[misc]
    """One end of a link; addressed and shaped by the plan's commands."""

    def config(self, **_parameters: Any) -> dict[str, str]:
        """Nothing: the deployment configures interfaces."""
        return {}


class EmulatedLink(Link):  # type: ignore[misc]
    """A veth pair made directly between two namespaces: it is never seen in the root namespace."""

    @classmethod
    def makeIntfPair(cls, *_names: Any, **_options: Any) -> None:  # noqa: N802 - Mininet's name
        """Nothing: the network makes all its pairs at once."""

    def stop(self) -> None:
        """The pair vanishes with its namespaces."""


class _PlannedTopo(Topo):  # type: ignore[misc]
    """The plan as Mininet reads it."""

    def build(self, plan: Plan, state: RunState, naming: NamingThread, holders: Mapping[str, int]) -> None:
        """Nodes and links in the plan's order."""
        owned = {"state": state, "naming": naming}
        for node in plan.nodes:
            if node.name in holders:
                self.addHost(node.name, cls=ContainedHost, holder_pid=holders[node.name], **owned)
            else:
                (self.addHost if node.role in END_HOSTS else self.addSwitch)(node.name, **owned)
        for first, second in plan.links:
            self.addLink(
                first.node,
                second.node,
                intfName1=first.interface,
                intfName2=second.interface,
                addr1=first.mac,
                addr2=second.mac,
            )


class EmulatedNetwork(Mininet):  # type: ignore[misc]
    """A plan as a Mininet network; `build()` makes its nodes and links, `stop()` ends what was made.

    `holders` are the processes whose namespaces are nodes already, by node. Raises MissingRequirementError when hosts
    cannot be given names.
    """

    def __init__(self, plan: Plan, state: RunState, holders: Mapping[str, int]) -> None:
        setLogLevel("error")
        Mininet.inited = True  # its init() would raise limits and sysctls of the whole machine
        self.plan = plan
        self.state = state
        self.naming = NamingThread(plan.host_names(), state.directory)
        super().__init__(
            topo=_PlannedTopo(plan, state, self.naming, holders),
            host=EmulatedHost,
            switch=EmulatedSwitch,
            link=EmulatedLink,
            intf=EmulatedInterface,
            controller=None,
            build=False,
        )

    def build(self) -> None:
        """Make every node and link. Raises MissingRequirementError with what mnexec or `ip` said."""
        super().build()
        nodes = [*self.hosts, *self.switches]
        self.state.add_processes({f"holder of {node.name}": node.pid for node in nodes})
        for node in nodes:
            node.wait_ready()
        lines = [] if makes_ports(self.plan.delay_backend) or self.plan.spread else self._pairs()
        done = subprocess.run(
            ["ip", "-batch", "-"], input="\n".join([*lines, ""]), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise MissingRequirementError(f"cannot make the links: {done.stderr.strip()}")

    def _pairs(self) -> list[str]:
        return [pair_command(self._end(first), self._end(second)) for first, second in self.plan.links]

    def _end(self, port: Port) -> End:
        return End(port.interface, port.mac, self.get(port.node).pid)

    def stop(self) -> None:
        """End every node, all at once."""
        for node in [*self.hosts, *self.switches]:
            node.release()
        super().stop()
        self.naming.close()
