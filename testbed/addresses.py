"""Addresses and routes of a routed network. Pure.

Link i is 10.x.y.0/30 with the node nearer to the worker at .2 and the switch at .1, so every port is a subnet of its
own. MAC addresses follow from the link's number. Every switch has a route to every worker's subnet over all shortest
paths.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.routing import NextHops
from testbed.topologies.base import Network


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """One end of a link."""

    node: str
    interface: str
    address: str
    mac: str


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

    def command(self, congestion: str) -> str:
        """A line for `ip -batch`.

        congctl on the routes: the namespace's sysctl is refused by the kernel for controls that are not on the
        machine's allowed list, and a per-socket option would not reach the baselines.
        """
        if not self.gateways:
            return (
                f"route replace {self.destination} dev {self.interface} proto kernel scope link src {self.source} "
                f"congctl {congestion}"
            )
        if len(self.gateways) == 1:
            (gateway,) = self.gateways
            return f"route add {self.destination} via {gateway.address} dev {gateway.interface} congctl {congestion}"
        hops = " ".join(f"nexthop via {gateway.address} dev {gateway.interface}" for gateway in self.gateways)
        return f"route add {self.destination} congctl {congestion} {hops}"


def ports_of(network: Network) -> tuple[tuple[Port, Port], ...]:
    """Both ends of each link, in the order of the network's edges."""
    num_ports = dict.fromkeys((node.name for node in network.nodes), 0)

    def port(node: str, link: int, last: int) -> Port:
        interface = f"{node}-eth{num_ports[node]}"
        num_ports[node] += 1
        return Port(
            node=node,
            interface=interface,
            address=f"10.{link >> 14}.{(link >> 6) & 255}.{(link & 63) * 4 + last}",
            mac=f"02:00:00:{link >> 8:02x}:{link & 255:02x}:{last:02x}",
        )

    return tuple((port(edge.first, index, 2), port(edge.second, index, 1)) for index, edge in enumerate(network.edges))


def _subnet(port: Port) -> str:
    """The /30 of a link."""
    network, _, last = port.address.rpartition(".")
    return f"{network}.{int(last) & ~3}/30"


def routes_of(name: str, links: Sequence[tuple[Port, Port]], hops: NextHops) -> tuple[Route, ...]:
    """The node's own links, then every worker's subnet; a worker needs one way out."""
    own = {far.node: (near, far) for link in links for near, far in (link, link[::-1]) if near.node == name}
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
            ways = [own[neighbour] for neighbour in towards[name]]
            gateways = tuple(Gateway(address=far.address, interface=near.interface) for near, far in ways)
            routes.append(Route(destination=subnets[worker], gateways=gateways))
    return tuple(routes)
