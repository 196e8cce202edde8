"""What the kernel says of a node, and where that is not what the plan requested."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from testbed.deployment.delay_daemon import queues_of
from testbed.deployment.link_control import LinkController
from testbed.experiment.delay_backends.netem import redirects
from testbed.hosts.base import Host
from testbed.plan.direction import Direction
from testbed.plan.nodes import NodePlan
from testbed.plan.paths import Hop
from testbed.system.kernel import has_sysctl, read_sysctl

_JSON: Final = json.JSONDecoder()


def read_node(node: NodePlan, host: Host) -> dict[str, Any]:
    """What the kernel says now of the node's interfaces, tables, queues and sysctls."""
    with host.entered(), LinkController() as monitor:
        indices = monitor.interfaces()
        disconnected = [name for name, index in indices.items() if monitor.is_down(index)]
        classes = {name: monitor.htb_classes(index) for name, index in indices.items() if name != "lo"}
        sysctls = {key: read_sysctl(key) for key in sysctls_on_this_kernel(node)}
    firewall: list[str] = []
    if node.firewall_rules:
        saved = host.execute(["iptables-save", "-t", "mangle"]).splitlines()
        firewall = [line for line in saved if line.startswith("-A ")]
    (qdiscs,) = answers(host, "tc", ["qdisc show"])
    entrances = [str(qdisc["dev"]) for qdisc in qdiscs if qdisc.get("kind") == "ingress"]
    filters = answers(host, "tc", [f"filter show dev {name} ingress" for name in entrances]) if entrances else []
    addresses, routes, neighbours = answers(host, "ip", ["address show", "route show", "neighbour show"])
    return {
        "qdiscs": qdiscs,
        "redirects": {name: redirects(found) for name, found in zip(entrances, filters, strict=True)},
        "disconnected": disconnected,
        "classes": classes,
        "addresses": addresses,
        "routes": routes,
        "neighbours": neighbours,
        "forwarding": answers(host, "bridge", ["fdb show"])[0] if node.addresses.bridge else [],
        "sysctls": sysctls,
        "firewall": firewall,
        "queues": queues_of(host) if node.daemon_arguments else {},
    }


def read_delay_line(interface: str, host: Host, commands: Sequence[str]) -> dict[str, Any]:
    """What :func:`read_node` says of the qdiscs that delay what arrives at a port, after these commands of `tc -batch`,
    in the same process. Raises MissingRequirementError when one of them fails."""
    qdiscs, filters = answers(host, "tc", [*commands, "qdisc show", f"filter show dev {interface} ingress"])
    return {"qdiscs": qdiscs, "redirects": {interface: redirects(filters)}}


def answers(host: Host, program: str, questions: Sequence[str]) -> list[Any]:
    """What `ip` or `tc` answers, in one process: starting one takes longer than answering. Commands have no answer."""
    text = host.execute([program, "-j", "-d", "-batch", "-"], stdin="\n".join([*questions, ""]))
    found = []
    while text := text.lstrip():
        answer, end = _JSON.raw_decode(text)
        found.append(answer)
        text = text[end:]
    return found


def sysctls_on_this_kernel(node: NodePlan) -> dict[str, str]:
    """What is set on this kernel."""
    known = {key: value for key, value in node.sysctls_if_known.items() if has_sysctl(key)}
    return {**node.sysctls, **known}


def node_differences(
    node: NodePlan,
    state: Mapping[str, Any],
    directions: Sequence[Direction],
    *,
    down: Collection[Hop],
    mtu: int,
    congestion: str,
) -> list[str]:
    """What the node's :func:`read_node`, and the relay's parameters beside it (`relay`), say that was not requested.
    Pure; `directions` are the whole network's, `down` those that are taken down."""
    known = {key: value for key, value in node.sysctls_if_known.items() if key in state["sysctls"]}
    found = [
        f"{node.name}: sysctl {key} is {state['sysctls'].get(key)}, requested {value}"
        for key, value in {**node.sysctls, **known}.items()
        if state["sysctls"].get(key) != value
    ]
    for direction in directions:
        if direction.receiver.node == node.name:
            disconnected = direction.receiver.interface in state["disconnected"]
            if disconnected != (direction.hop in down):
                found.append(f"{direction.name}: is {'down' if disconnected else 'up'}, requested the other")
            if direction.delay_stage:
                found += direction.delay_stage.differences(state)
        if direction.sender.node == node.name:
            interface = direction.sender.interface
            qdiscs = [qdisc for qdisc in state["qdiscs"] if qdisc.get("dev") == interface]
            if direction.shaper:
                found += direction.shaper.differences(qdiscs, state["classes"].get(interface, []))
            found += _packet_differences(direction, mtu, state["addresses"])
    found += _address_differences(node, directions, state["addresses"])
    found += _neighbour_differences(node, state["neighbours"])
    if node.addresses.bridge:
        found += node.addresses.bridge.differences(state["addresses"], state["forwarding"])
    return found + _route_differences(node, congestion, state["routes"])


def _address_differences(
    node: NodePlan, directions: Sequence[Direction], links: Sequence[dict[str, Any]]
) -> Iterator[str]:
    requested = {direction.sender.interface: "" for direction in directions if direction.sender.node == node.name}
    requested |= {interface: address.partition("/")[0] for interface, address in node.addresses.addresses}
    found = {link.get("ifname"): link for link in links}
    for interface, address in requested.items():
        if interface not in found:
            yield f"{interface}: absent"
            continue
        if "UP" not in found[interface].get("flags", []):
            yield f"{interface}: is not up"
        known = [item.get("local") for item in found[interface].get("addr_info", [])]
        if known != [address] * bool(address):
            yield f"{interface}: addresses are {known}, requested only {address or 'none'}"


def _neighbour_differences(node: NodePlan, table: Sequence[dict[str, Any]]) -> Iterator[str]:
    known = {(entry.get("dst"), entry.get("lladdr"), entry.get("dev")): entry.get("state") for entry in table}
    for neighbour in node.addresses.neighbours:
        state = known.pop((neighbour.address, neighbour.mac, neighbour.interface), None)
        if state != ["PERMANENT"]:
            yield f"{node.name}: neighbour {neighbour.address} ({neighbour.mac}) is {state or 'absent'}, not permanent"
    for address, mac, interface in known:
        yield f"{node.name}: a neighbour {address} ({mac}) on {interface} that nobody requested"


def _packet_differences(direction: Direction, mtu: int, links: Sequence[dict[str, Any]]) -> list[str]:
    interface, wanted = direction.sender.interface, direction.gso_max_segments
    link = next((link for link in links if link.get("ifname") == interface), {})
    found = [] if link.get("mtu") == mtu else [f"{interface}: mtu is {link.get('mtu')}, requested {mtu}"]
    if wanted is not None and link.get("gso_max_segs") != wanted:
        found.append(f"{interface}: gso_max_segs is {link.get('gso_max_segs')}, requested {wanted} (packet_mode)")
    return found


def _route_differences(node: NodePlan, congestion: str, table: Sequence[dict[str, Any]]) -> list[str]:
    found = []
    known = {str(entry.get("dst")): entry for entry in table}
    for route in node.addresses.routes:
        name = "default route" if route.destination == "default" else f"route to {route.destination}"
        entry = known.pop(route.destination, None)
        if entry is None:
            found.append(f"{node.name}: no {name}")
            continue
        requested: list[tuple[str | None, str | None]] = [
            (gateway.address, gateway.interface) for gateway in route.gateways
        ]
        requested = requested or [(None, route.interface)]
        hops = entry.get("nexthops", [entry])
        nexthops = [(hop.get("gateway"), hop.get("dev")) for hop in hops]
        weights = [hop.get("weight", 1) for hop in hops]
        if nexthops != requested or set(weights) != {1}:
            found.append(
                f"{node.name}: {name} is by {nexthops} with weights {weights}, requested evenly by {requested}"
            )
        # iproute2 prints the route's metrics as a list with one mapping; times in it are milliseconds.
        timeouts = [metric.get("rto_min") for metric in entry.get("metrics", [])]
        if timeouts != [node.rto_min_ms]:
            found.append(
                f"{node.name}: TCP's least timeout on the {name} is {timeouts or 'unset'} ms, requested "
                f"{node.rto_min_ms or 'none'}"
            )
        controls = [metric.get("congestion") for metric in entry.get("metrics", [])]
        if controls != [congestion]:
            found.append(
                f"{node.name}: congestion control on the {name} is {controls or 'unset'}, requested {congestion}"
            )
    return found + [f"{node.name}: a route to {destination} that nobody requested" for destination in known]
