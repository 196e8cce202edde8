"""Mininet's nodes and links, ours: they raise where Mininet prints and goes on, and own nothing outside themselves.

Kept is what Mininet is good at: a shell in a fresh network and mount namespace per node, a network built from a
topology object with replaceable classes. Replaced is what fails open: the switch lives in its own namespace and
routes; links are shaped by the plan's commands (TCIntf's 1 Gbit/s cap and `burst 15k` lose the rate without an error);
no limits of the machine are raised (`Mininet.init` writes global sysctls); stopping a node ends its namespaces, and
the veth pairs with them, so nothing is deleted by name.
"""

import os
import subprocess
from typing import Any

from mininet.link import Intf, Link
from mininet.log import setLogLevel
from mininet.net import Mininet
from mininet.node import Host, Node, Switch
from mininet.topo import Topo

from testbed.errors import EnvironmentLacksError
from testbed.plan import Plan
from testbed.processes import RUN_ID_VARIABLE
from testbed.state import RunState


class _Owned(Node):  # type: ignore[misc]
    """A shell in its own network and mount namespace that carries the run's id in its environment."""

    def __init__(self, name: str, *, state: RunState, **parameters: Any) -> None:
        self.state = state
        super().__init__(name, **{**parameters, "inNamespace": True})

    def _popen(self, cmd: list[str], **parameters: Any) -> "subprocess.Popen[bytes]":
        try:
            process = subprocess.Popen(cmd, env={**os.environ, RUN_ID_VARIABLE: self.state.run_id}, **parameters)
        except FileNotFoundError as error:
            raise EnvironmentLacksError(f"{error.filename} is missing: apt-get install mininet") from error
        self.state.add_process(f"shell of {self.name}", process.pid)
        return process

    def config(self, **_parameters: Any) -> dict[str, str]:
        """Nothing here: the deployment runs the plan's commands and reads them back."""
        return {}


class EmulatedHost(_Owned, Host):  # type: ignore[misc]
    """A worker's node."""


class RoutedSwitch(_Owned, Switch):  # type: ignore[misc]
    """A switch that forwards at layer 3 in a namespace of its own.

    Routing hands each packet to a fresh socket-less life: TCP Small Queues of the sender do not reach through it, so
    queues, drops and incast at the switch are real (over a bridge they are not).
    """

    def start(self, controllers: list[Any]) -> None:
        """Forwarding is a sysctl of the plan; there is no controller."""
        assert not controllers, "a routed switch has no controller"

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803 - Mininet's name
        """The ports vanish with the namespace."""


class EmulatedInterface(Intf):  # type: ignore[misc]
    """One end of a link; addressed and shaped by the plan's commands."""

    def config(self, **_parameters: Any) -> dict[str, str]:
        """Nothing here: see the deployment."""
        return {}


class EmulatedLink(Link):  # type: ignore[misc]
    """A veth pair made directly between two namespaces: it is never seen in the root namespace."""

    @classmethod
    def makeIntfPair(  # noqa: N802 - Mininet's name
        cls,
        intfname1: str,
        intfname2: str,
        addr1: str | None = None,
        addr2: str | None = None,
        node1: Node | None = None,
        node2: Node | None = None,
        deleteIntfs: bool = True,  # noqa: ARG003, N803 - Mininet's signature
    ) -> None:
        """Make the pair. Raises EnvironmentLacksError with what `ip` said."""
        assert node1 is not None
        assert node2 is not None
        argv = [
            "ip",
            "link",
            "add",
            "name",
            intfname1,
            "address",
            addr1,
            "netns",
            str(node1.pid),
            "type",
            "veth",
        ]
        argv += ["peer", "name", intfname2, "address", addr2, "netns", str(node2.pid)]
        done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise EnvironmentLacksError(f"cannot make link {intfname1} - {intfname2}: {done.stderr.strip()}")

    def stop(self) -> None:
        """The pair vanishes with its namespaces."""


class _PlannedTopo(Topo):  # type: ignore[misc]
    """The plan as Mininet reads it."""

    def build(self, plan: Plan, state: RunState) -> None:
        """Nodes and links in the plan's order."""
        for node in plan.nodes:
            (self.addSwitch if node.role == "switch" else self.addHost)(node.name, state=state)
        for first, second in plan.links:
            self.addLink(
                first.node,
                second.node,
                intfName1=first.interface,
                intfName2=second.interface,
                addr1=first.mac,
                addr2=second.mac,
            )


def mininet_of(plan: Plan, state: RunState) -> Mininet:
    """The plan as a Mininet network; `build()` makes its nodes and links, `stop()` ends what was made."""
    setLogLevel("error")
    Mininet.inited = True  # its init() would raise limits and sysctls of the whole machine
    return Mininet(
        topo=_PlannedTopo(plan, state),
        host=EmulatedHost,
        switch=RoutedSwitch,
        link=EmulatedLink,
        intf=EmulatedInterface,
        controller=None,
        build=False,
    )
