"""The commands that make one network namespace a node of the plan. Pure."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.experiment.topologies.base import END_HOSTS, PARTICIPANTS, Node
from testbed.plan.addressing import NodeAddresses, Port
from testbed.plan.bridging import BRIDGE_SYSCTLS
from testbed.plan.direction import Direction
from testbed.plan.link_configuration import LinkConfig
from testbed.plan.path_manager import PathManager

DEFAULT_BUFFER_BYTES: Final = 4 * 2**20
"""The smaller of the kernel's usual limits of tcp_rmem (6 MiB) and tcp_wmem (4 MiB)."""

HASH_FIELDS: Final = 0x37
"""Source and destination address, protocol, source and destination port: fib_multipath_hash_fields in the kernel's
ip-sysctl."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlan:
    """One network namespace and the commands that set it up, in this order."""

    name: str
    role: str
    sysctls: dict[str, str]
    sysctls_if_known: dict[str, str]
    """Set where the kernel has them."""
    ip_commands: tuple[str, ...]
    tc_commands: tuple[str, ...]
    tc_commands_if_known: tuple[str, ...]
    """Tried after them, one by one."""
    firewall_rules: tuple[str, ...]
    """Lines for the mangle table of `iptables-restore`."""
    rto_min_ms: int | None
    """On the routes: TCP repeats nothing sooner; None: the kernel's own."""
    daemon_arguments: tuple[str, ...]
    """One for each port whose delay line the node's delay daemon serves; none: no daemon."""
    path_manager: PathManager | None
    """Of Multipath TCP, where connections have several subflows."""
    bridge_commands: tuple[str, ...]
    """Lines for `bridge -batch`."""
    addresses: NodeAddresses
    """What the tables of addresses, neighbours, routes and forwarding hold after the commands, and nothing else."""


def node_plan(
    node: Node,
    ports: Sequence[Port],
    addresses: NodeAddresses,
    directions: Sequence[Direction],
    *,
    congestion: str,
    rto_min_ms: int | None,
    seed: int,
    mtu: int,
    marks: bool,
    buffer_sysctls: Mapping[str, str],
    num_subflows: int,
) -> NodePlan:
    """The node's ports, addresses, shapers and delay stages; `directions` are the whole plan's in real time.

    `marks` says whether any link ever marks packets; `num_subflows` is that of each connection between participants.
    """
    bridge = addresses.bridge
    ip_commands = ["link set lo up", *(bridge.ip_commands() if bridge else ())]
    tc_commands: list[str] = []
    tc_commands_if_known: list[str] = []
    firewall_rules: list[str] = []
    daemon_arguments: list[str] = []
    segments = {each.sender.interface: each.gso_max_segments for each in directions if each.sender.node == node.name}
    for interface in (port.interface for port in ports):
        limit = f" gso_max_segs {segments[interface]}" if segments.get(interface) else ""
        ip_commands.append(f"link set dev {interface} mtu {mtu}{limit}")
    ip_commands += [f"address add {address} dev {interface}" for interface, address in addresses.addresses]
    interfaces = [*(port.interface for port in ports), *([bridge.interface] if bridge else ())]
    ip_commands += [f"link set dev {interface} up" for interface in interfaces]
    ip_commands += [neighbour.command for neighbour in addresses.neighbours]
    ip_commands += [route.command(congestion, rto_min_ms) for route in addresses.routes]
    path_manager = None
    if num_subflows > 1 and node.role in PARTICIPANTS:
        address = addresses.addresses[0][1].partition("/")[0]
        path_manager = PathManager(address=address, num_subflows=num_subflows)
        ip_commands += path_manager.commands()
    for direction in directions:
        if direction.sender.node == node.name and direction.shaper:
            tc_commands += direction.shaper.commands()
        if direction.receiver.node == node.name and direction.delay_stage:
            ip_commands += direction.delay_stage.ip_commands()
            tc_commands += direction.delay_stage.tc_commands()
            tc_commands_if_known += direction.delay_stage.tc_commands_if_known()
            firewall_rules += direction.delay_stage.firewall_rules()
            daemon_arguments += direction.delay_stage.daemon_arguments()
    sysctls = {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"}
    sysctls["net.ipv4.ip_forward"] = "0" if node.role in END_HOSTS or bridge else "1"
    if marks:
        sysctls["net.ipv4.tcp_ecn"] = "1"  # by default a connection does not ask for marks
    sysctls_if_known = dict(BRIDGE_SYSCTLS) if bridge else {}
    if any(len(route.gateways) > 1 for route in addresses.routes):
        # Addresses, protocol and ports, from the packet. Policy 1 hashes the same, but takes the random number that the
        # sender's TCP gave the connection (sk_txhash) instead, which lives on the packet across a veth pair.
        sysctls["net.ipv4.fib_multipath_hash_policy"] = "3"
        sysctls["net.ipv4.fib_multipath_hash_fields"] = str(HASH_FIELDS)
        sysctls_if_known["net.ipv4.fib_multipath_hash_seed"] = str(_hash_seed(node.name, seed))
    return NodePlan(
        name=node.name,
        role=node.role,
        sysctls={**sysctls, **buffer_sysctls},
        sysctls_if_known=sysctls_if_known,
        ip_commands=tuple(ip_commands),
        tc_commands=tuple(tc_commands),
        tc_commands_if_known=tuple(tc_commands_if_known),
        firewall_rules=tuple(firewall_rules),
        rto_min_ms=rto_min_ms,
        daemon_arguments=tuple(daemon_arguments),
        path_manager=path_manager,
        bridge_commands=tuple(bridge.bridge_commands()) if bridge else (),
        addresses=addresses,
    )


def buffer_sysctls(requested: Sequence[LinkConfig], path_s: float) -> dict[str, str]:
    """Socket buffers that let one TCP connection fill the longest path, however the links are configured in the course
    of the run; the kernel's own limits where they do.

    A buffer holds twice the window, because the kernel reckons with its own overhead (tcp(7), tcp_adv_win_scale); half
    as much again is for the queues.
    """
    rate_bps = max(
        each.spec.rate_bps for each in requested if each.hop[0].startswith(("w", "h", "ps")) and not each.spec.unshaped
    )
    window_bytes = 2 * path_s * rate_bps / 8 + max(each.spec.queue_bytes for each in requested)
    limit_bytes = int(3 * window_bytes)
    if path_s == 0 or limit_bytes <= DEFAULT_BUFFER_BYTES:
        return {}
    # The kernel keeps them in a signed int.
    limit_bytes = min(limit_bytes, 2**31 - 1)
    return {"net.ipv4.tcp_rmem": f"4096 131072 {limit_bytes}", "net.ipv4.tcp_wmem": f"4096 16384 {limit_bytes}"}


def _hash_seed(name: str, seed: int) -> int:
    """Of each switch its own: with one seed for all, the flows that a switch receives were chosen by the very bit by
    which it chooses, and it would send them all the same way. 0 means a random seed to the kernel."""
    return zlib.crc32(f"{seed} {name}".encode()) or 1
