"""Addresses and forwarding of a bridged network: every switch a Linux bridge, all nodes in one subnet. Pure.

Nothing is learnt, flooded or requested: every node has a static neighbour entry for every other one, every switch a
static forwarding entry for every node (bridge(8)), learning, flooding and the spanning tree are off. So a frame takes
the one path there is, or none; a network with loops has no such path and is refused. Each switch is a node of the
subnet itself, with the address of its bridge: its links can be measured one by one.

What differs from routing: a bridge passes the sender's packet on as it is, still charged to the sender's socket, and
TCP Small Queues (net.ipv4.tcp_limit_output_bytes) count what waits in the switches' queues too. A sender then stops
before such a queue is full, and queues, drops and incast at a switch look milder than in reality: one TCP stream from a
1 Gbit/s link into a port of 100 Mbit/s with a queue of 1.5 MB keeps 136 kB waiting there, without a drop and with a
round trip of 15 ms; where the switch routes, 1284 kB, drops and 106 ms (measured on Linux 6.18). Take `bridged` to
study that, or frames; take `routed` for everything else. Netfilter has no part in it (bridge-nf-call-* are off in the
switch's namespace), so a delay that netfilter makes does not work here.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from testbed.errors import SpecError
from testbed.experiment.topologies.base import END_HOSTS, Network
from testbed.links.bridge import Bridge
from testbed.plan.addressing import Neighbour, NodeAddresses, Port, Route, port_names
from testbed.plan.paths import NextHops, next_hops

SUBNET: Final = "10.0.0.0/16"
PREFIX_LENGTH: Final = 16
BRIDGE_SYSCTLS: Final = {f"net.bridge.bridge-nf-call-{table}": "0" for table in ("iptables", "ip6tables", "arptables")}
"""Of the namespace, where the kernel has br_netfilter."""


def bridged_ports(network: Network) -> tuple[tuple[Port, Port], ...]:
    """Both ends of each link; a switch's ports have the address of its bridge. Raises SpecError for a loop."""
    if len(network.edges) != len(network.nodes) - 1:
        raise SpecError(
            f"switch: bridged needs one path between any two nodes, and this topology has {len(network.edges)} links "
            f"between {len(network.nodes)} nodes: it has loops; allowed: switch=routed, or a topology without loops "
            "(star, dumbbell, leaf_spine with spines=1)"
        )
    numbers = {node.name: number for number, node in enumerate(network.nodes, start=1)}
    roles = {node.name: node.role for node in network.nodes}

    def port(node: str, interface: str, link: int, last: int) -> Port:
        return Port(
            node=node,
            interface=interface,
            address=f"10.0.{numbers[node] >> 8}.{numbers[node] & 255}",
            prefix_length=PREFIX_LENGTH,
            mac=f"02:00:00:{link >> 8:02x}:{link & 255:02x}:{last:02x}",
            bridge=None if roles[node] in END_HOSTS else f"{node}-br",
        )

    return tuple(
        (port(edge.first, first, index, 2), port(edge.second, second, index, 1))
        for index, (edge, (first, second)) in enumerate(zip(network.edges, port_names(network), strict=True))
    )


def bridged_addresses(network: Network, links: Sequence[tuple[Port, Port]]) -> dict[str, NodeAddresses]:
    """What every node is set up with."""
    hops = next_hops(network, {node.name for node in network.nodes})
    ports: dict[str, list[tuple[Port, Port]]] = {node.name: [] for node in network.nodes}
    for first, second in links:
        ports[first.node].append((first, second))
        ports[second.node].append((second, first))
    macs = {name: _mac(own[0][0], number) for number, (name, own) in enumerate(ports.items())}
    addresses = {name: own[0][0].address for name, own in ports.items()}
    return {name: _node(name, own, macs, addresses, hops) for name, own in ports.items()}


def bridged(
    network: Network,
    hops: NextHops,  # noqa: ARG001 (bridges have paths to switches, too)
) -> tuple[tuple[tuple[Port, Port], ...], dict[str, NodeAddresses]]:
    """See testbed.plan.forwarding.Layout. Raises SpecError for a loop."""
    links = bridged_ports(network)
    return links, bridged_addresses(network, links)


def _mac(port: Port, number: int) -> str:
    return port.mac if port.bridge is None else f"02:00:01:{number >> 8:02x}:{number & 255:02x}:00"


def _node(
    name: str,
    own: Sequence[tuple[Port, Port]],
    macs: Mapping[str, str],
    addresses: Mapping[str, str],
    hops: NextHops,
) -> NodeAddresses:
    port = own[0][0]
    towards = {far.node: near.interface for near, far in own}
    others = [other for other in macs if other != name]
    return NodeAddresses(
        addresses=((port.address_interface, f"{port.address}/{PREFIX_LENGTH}"),),
        neighbours=tuple(
            Neighbour(address=addresses[other], mac=macs[other], interface=port.address_interface) for other in others
        ),
        routes=(Route(destination=SUBNET, gateways=(), interface=port.address_interface, source=port.address),),
        bridge=None
        if port.bridge is None
        else Bridge(
            interface=port.bridge,
            mac=macs[name],
            ports=tuple(near.interface for near, _ in own),
            entries=tuple((macs[other], towards[hops[other][name][0]]) for other in others),
        ),
    )
