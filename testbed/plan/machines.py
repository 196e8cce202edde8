"""A plan spread over two machines: whose node is whose, which links are between them, and what these need. Pure.

Whatever has not been made to work across machines is refused here, with the field that asks for it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from testbed.errors import SpecError
from testbed.experiment.background.base import BACKGROUNDS
from testbed.experiment.delay_backends.base import DELAY_BACKENDS, delay_backends
from testbed.experiment.machines import Machines
from testbed.experiment.runtimes.base import RUNTIMES
from testbed.experiment.storage.base import STORAGES
from testbed.experiment.switch_modes.base import SWITCH_MODES
from testbed.experiment.workloads.base import WORKLOADS
from testbed.links.vxlan import LINK_BITS, OVERHEAD_BYTES, VNI_BITS, Vxlan
from testbed.plan.addressing import Port
from testbed.plan.paths import Hop
from transports.registry import Registry

if TYPE_CHECKING:
    from testbed.plan.direction import Direction
    from testbed.plan.plan import Plan

ETHERNET_HEADER_BYTES: Final = 14


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """One machine and its part of the plan."""

    name: str
    address: str
    """On the network between the machines, the underlay."""
    namespace: str | None
    """The network namespace that is this machine; None: Ray finds the machine by its address."""
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tunnel:
    """A link between two machines."""

    index: int
    """Of the link in the plan."""
    first: Port
    second: Port
    machines: tuple[str, str]
    """Of the first and of the second end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """What the underlay has to carry from one machine to the other, in real time."""

    source: str
    target: str
    num_links: int
    rate_bps: float
    """Of all links in that direction together, as shapers count."""
    wire_bps: float
    """The same on the underlay, for full frames with what VXLAN adds."""
    packet_bytes: int
    """The longest IP packet."""
    least_delay_s: float
    """Of these links, one way; what the underlay adds to it must be small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Where everything is."""

    machines: tuple[Machine, ...]
    tunnels: tuple[Tunnel, ...]
    needs: tuple[Need, ...]
    """By direction between machines."""

    def machine_of(self, node: str) -> Machine:
        """The machine that has the node."""
        return next(machine for machine in self.machines if node in machine.nodes)

    def vxlan(self, tunnel: Tunnel, port: Port, run_id: str) -> Vxlan:
        """The device at one end of a link, in that run: runs at the same time have networks of their own, and where
        two have the same one the kernel refuses the second."""
        own, other = tunnel.machines if port == tunnel.first else tunnel.machines[::-1]
        addresses = {machine.name: machine.address for machine in self.machines}
        run = crc32(run_id.encode()) % (1 << (VNI_BITS - LINK_BITS))
        return Vxlan(
            interface=port.interface,
            mac=port.mac,
            vni=(run << LINK_BITS) + tunnel.index + 1,
            local=addresses[own],
            remote=addresses[other],
        )

    def crosses(self, hop: Hop) -> bool:
        """Whether its two nodes are on different machines."""
        return self.machine_of(hop[0]) != self.machine_of(hop[1])

    def devices(self, run_id: str) -> Iterator[tuple[Port, Vxlan]]:
        """Every end of every link between machines."""
        for tunnel in self.tunnels:
            for port in (tunnel.first, tunnel.second):
                yield port, self.vxlan(tunnel, port, run_id)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "machines": [asdict(machine) for machine in self.machines],
            "links_between": [f"{tunnel.first.node}-{tunnel.second.node}" for tunnel in self.tunnels],
            "underlay": [asdict(need) for need in self.needs],
        }


def spread_over(plan: "Plan", requested: Machines) -> "Plan":
    """The plan with its nodes on these machines. Raises SpecError for a node that is on none or on both, and for what
    cannot be had across machines."""
    if unsupported := list(_unsupported(plan)):
        raise SpecError("\n".join(unsupported))
    machines = _placed(requested, [node.name for node in plan.nodes])
    home = {node: machine.name for machine in machines for node in machine.nodes}
    tunnels = tuple(
        Tunnel(index=index, first=first, second=second, machines=(home[first.node], home[second.node]))
        for index, (first, second) in enumerate(plan.links)
        if home[first.node] != home[second.node]
    )
    if not tunnels:
        raise SpecError(
            "machines: no link is between the two: give both machines nodes that are linked to each other, or leave "
            "--machines out"
        )
    if len(plan.links) >= 1 << LINK_BITS:
        raise SpecError(f"machines: {len(plan.links)} links; allowed with --machines: {(1 << LINK_BITS) - 1}")
    crossing = [each for each in plan.real().directions if home[each.sender.node] != home[each.receiver.node]]
    if unshaped := sorted({each.link for each in crossing if each.requested.unshaped}):
        raise SpecError(
            f"machines: {unshaped[0]} has no rate, because its ends are in one host: put both on the same machine"
        )
    needs = tuple(
        _need(source.name, target.name, [each for each in crossing if home[each.sender.node] == source.name], plan)
        for source, target in (machines, machines[::-1])
    )
    return replace(plan, spread=Spread(machines=machines, tunnels=tunnels, needs=needs))


def _placed(requested: Machines, nodes: Sequence[str]) -> tuple[Machine, ...]:
    found: dict[str, list[str]] = {name: [] for name in requested.machines}
    for name, machine in requested.machines.items():
        for pattern in machine.nodes:
            named = [node for node in nodes if fnmatchcase(node, pattern)]
            if not named:
                raise SpecError(
                    f"machines.{name}.nodes: {pattern!r} names no node of the plan; there are {', '.join(nodes)}"
                )
            found[name] += [node for node in named if node not in found[name]]
    for node in nodes:
        where = [name for name, named in found.items() if node in named]
        if len(where) != 1:
            what = f"is on both {' and '.join(where)}" if where else "is on no machine"
            raise SpecError(f"machines: {node} {what}; each node is on exactly one")
    return tuple(
        Machine(
            name=name,
            address=str(machine.address),
            namespace=None if machine.namespace is None else str(machine.namespace),
            nodes=tuple(node for node in nodes if node in found[name]),
        )
        for name, machine in requested.machines.items()
    )


def _need(source: str, target: str, directions: "Sequence[Direction]", plan: "Plan") -> Need:
    rate_bps = sum(each.rate_bps for each in directions)
    frame_bytes = plan.experiment.mtu + ETHERNET_HEADER_BYTES
    return Need(
        source=source,
        target=target,
        num_links=len(directions),
        rate_bps=rate_bps,
        wire_bps=rate_bps * (frame_bytes + OVERHEAD_BYTES) / frame_bytes,
        packet_bytes=plan.experiment.mtu + OVERHEAD_BYTES,
        least_delay_s=min(each.delay_s for each in directions),
    )


class _Chosen(NamedTuple):
    """What a spec has chosen on an axis, each value of which says whether nodes may be on several machines with it."""

    field: str
    axis: Registry[Any]
    values: Sequence[Any]
    without: str | None = None
    """What there is without any value of the axis."""

    def unsupported(self) -> Iterator[str]:
        """Of those that say no."""
        allowed = [kind for kind in self.axis.kinds() if self.axis[kind].across_machines]
        allowed += [self.without] if self.without is not None else []
        for value in self.values:
            if not value.across_machines:
                yield _not_here(f"{self.field}: {value.kind}", ", ".join(allowed))


def _unsupported(plan: "Plan") -> Iterator[str]:
    """What the spec asks for that has not been made to work across machines, with the field."""
    experiment = plan.experiment
    backends = [] if plan.delay_backend is None else [delay_backends()[plan.delay_backend]]
    storages = [] if experiment.storage is None else [experiment.storage]
    for chosen in (
        _Chosen("runtime", RUNTIMES, [experiment.runtime]),
        _Chosen("switch", SWITCH_MODES, [experiment.switch]),
        _Chosen("workload", WORKLOADS, [experiment.workload]),
        _Chosen("link.backend", DELAY_BACKENDS, backends, "or links without delay, jitter and loss"),
        _Chosen("background", BACKGROUNDS, experiment.background, "none"),
        _Chosen("storage", STORAGES, storages, "none"),
    ):
        yield from chosen.unsupported()
    if plan.aggregators:
        yield _not_here(f"collective: {experiment.collective.kind}", "a collective without an aggregating switch")
    if experiment.stack is not None and experiment.stack.enters_namespaces:
        yield _not_here(f"stack: {experiment.stack.kind}", "a stack whose ranks the testbed starts")
    if experiment.changes:
        yield _not_here("changes", "none: what the underlay must carry is measured for the rates at the start")


def _not_here(what: str, allowed: str) -> str:
    return f"{what} cannot be had on two machines yet; allowed with --machines: {allowed}"
