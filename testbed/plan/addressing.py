"""Addresses and routes of a routed network. Pure.

Link i is 10.x.y.0/30 with the node nearer to the worker at .2 and the switch at .1, so every port is a subnet of its
own. MAC addresses follow from the link's number. Every switch has a route to every worker's subnet over all shortest
paths.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.experiment.topologies.base import Network
from testbed.links.bridge import Bridge
from testbed.plan.paths import NextHops


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """One end of a link."""

    node: str
    interface: str
    address: str
    mac: str
    prefix_length: int = 30
    bridge: str | None = None
    """The bridge that the interface is a port of, and that has the address in its stead."""

    @property
    def address_interface(self) -> str:
        """The interface that has the address."""
        return self.bridge or self.interface


@dataclass(frozen=True, kw_only=True, slots=True)
class Gateway:
    """A next hop of a route."""

    address: str
    interface: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """One entry of a node's routing table; its congestion control is the plan's."""

    destination: str
    """`10.0.0.4/30` or `default`."""
    gateways: tuple[Gateway, ...]
    """Several: a flow takes one by its hash. None: the destination is on the link."""
    interface: str | None = None
    """Of a destination on the link."""
    source: str | None = None
    """The node's own address there."""

    def command(self, congestion: str, rto_min_ms: int | None = None) -> str:
        """A line for `ip -batch`; `rto_min_ms`: TCP repeats nothing sooner, where that is not the kernel's own.

        congctl on the routes: the namespace's sysctl is refused by the kernel for controls that are not on the
        machine's allowed list, and a per-socket option would not reach the baselines.
        """
        metrics = f"congctl {congestion}" + (f" rto_min {rto_min_ms}ms" if rto_min_ms is not None else "")
        if not self.gateways:
            return (
                f"route replace {self.destination} dev {self.interface} proto kernel scope link src {self.source} "
                f"{metrics}"
            )
        if len(self.gateways) == 1:
            (gateway,) = self.gateways
            return f"route add {self.destination} via {gateway.address} dev {gateway.interface} {metrics}"
        hops = " ".join(f"nexthop via {gateway.address} dev {gateway.interface}" for gateway in self.gateways)
        return f"route add {self.destination} {metrics} {hops}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """A static entry of a node's neighbour table: nobody asks who has an address."""

    address: str
    mac: str
    interface: str

    @property
    def command(self) -> str:
        """A line for `ip -batch`."""
        return f"neighbour replace {self.address} lladdr {self.mac} dev {self.interface} nud permanent"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeAddresses:
    """What makes a node reachable, and others from it."""

    addresses: tuple[tuple[str, str], ...]
    """Interface and `10.0.0.1/30`."""
    neighbours: tuple[Neighbour, ...]
    routes: tuple[Route, ...]
    bridge: Bridge | None = None
    """What joins the ports of a switch that does not route."""


def port_names(network: Network) -> tuple[tuple[str, str], ...]:
    """The interfaces at both ends of each link: `w0-eth0`, `s0-eth3`."""
    num_ports = dict.fromkeys((node.name for node in network.nodes), 0)

    def name(node: str) -> str:
        num_ports[node] += 1
        return f"{node}-eth{num_ports[node] - 1}"

    return tuple((name(edge.first), name(edge.second)) for edge in network.edges)


def ports_of(network: Network) -> tuple[tuple[Port, Port], ...]:
    """Both ends of each link, in the order of the network's edges."""

    def port(node: str, interface: str, link: int, last: int) -> Port:
        return Port(
            node=node,
            interface=interface,
            address=f"10.{link >> 14}.{(link >> 6) & 255}.{(link & 63) * 4 + last}",
            mac=f"02:00:00:{link >> 8:02x}:{link & 255:02x}:{last:02x}",
        )

    return tuple(
        (port(edge.first, first, index, 2), port(edge.second, second, index, 1))
        for index, (edge, (first, second)) in enumerate(zip(network.edges, port_names(network), strict=True))
    )


def routed_addresses(network: Network, links: Sequence[tuple[Port, Port]], hops: NextHops) -> dict[str, NodeAddresses]:
    """What every node is set up with."""
    return {node.name: _node(node.name, links, hops) for node in network.nodes}


def routed(network: Network, hops: NextHops) -> tuple[tuple[tuple[Port, Port], ...], dict[str, NodeAddresses]]:
    """See testbed.plan.forwarding.Layout."""
    links = ports_of(network)
    return links, routed_addresses(network, links, hops)


def _node(name: str, links: Sequence[tuple[Port, Port]], hops: NextHops) -> NodeAddresses:
    own = [(near, far) for link in links for near, far in (link, link[::-1]) if near.node == name]
    return NodeAddresses(
        addresses=tuple((near.interface, f"{near.address}/{near.prefix_length}") for near, _ in own),
        neighbours=tuple(Neighbour(address=far.address, mac=far.mac, interface=near.interface) for near, far in own),
        routes=_routes(name, own, links, hops),
    )


def _subnet(port: Port) -> str:
    """The /30 of a link."""
    network, _, last = port.address.rpartition(".")
    return f"{network}.{int(last) & ~3}/30"


def _routes(
    name: str, ends: Sequence[tuple[Port, Port]], links: Sequence[tuple[Port, Port]], hops: NextHops
) -> tuple[Route, ...]:
    """The node's own links, then every worker's subnet; a worker needs one way out."""
    own = {far.node: (near, far) for near, far in ends}
    routes = [
        Route(destination=_subnet(near), gateways=(), interface=near.interface, source=near.address)
        for near, _ in own.values()
    ]
    if name in hops:
        ((near, far),) = own.values()
        out = Gateway(address=far.address, interface=near.interface)
        return (*routes, Route(destination="default", gateways=(out,)))
    subnets = {first.node: _subnet(first) for first, _ in links if first.node in hops}
    for worker, towards in hops.items():
        if worker not in own:
            next_hops = [own[neighbour] for neighbour in towards[name]]
            gateways = tuple(Gateway(address=far.address, interface=near.interface) for near, far in next_hops)
            routes.append(Route(destination=subnets[worker], gateways=gateways))
    return tuple(routes)
