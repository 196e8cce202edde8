"""The commands that make a switch a bridge which forwards by a static table, and what the kernel must then say. Pure.

Options: bridge(8) and the bridge sections of ip-link(8).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_NOT_OF_PORTS: Final = ("learning", "flood", "mcast_flood", "bcast_flood")
_NOT_OF_BRIDGE: Final = ("stp_state", "vlan_filtering")
"""Off unless somebody switches them on; kernels without them refuse to set them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bridge:
    """The bridge of one switch."""

    interface: str
    mac: str
    ports: tuple[str, ...]
    entries: tuple[tuple[str, str], ...]
    """The MAC address of every other node and the port towards it."""

    def ip_commands(self) -> list[str]:
        """Lines for `ip -batch`."""
        port = " ".join(f"{setting} off" for setting in _NOT_OF_PORTS)
        return [
            f"link add name {self.interface} address {self.mac} type bridge",
            *(f"link set dev {name} master {self.interface}" for name in self.ports),
            *(f"link set dev {name} type bridge_slave {port}" for name in self.ports),
        ]

    def bridge_commands(self) -> list[str]:
        """Lines for `bridge -batch`."""
        return [f"fdb add {mac} dev {port} master static" for mac, port in self.entries]

    def forwards(self, links: Sequence[Mapping[str, Any]]) -> bool:
        """Whether every port does; the kernel lets one only a moment after the link's other end has come up."""
        states = {link.get("ifname"): _port(link).get("state") for link in links}
        return all(states.get(name) == "forwarding" for name in self.ports)

    def differences(self, links: Sequence[Mapping[str, Any]], table: Sequence[Mapping[str, Any]]) -> list[str]:
        """What `ip -d -j address show` and `bridge -j fdb show` say that was not requested."""
        by_name = {link.get("ifname"): link for link in links}
        own = by_name.get(self.interface, {}).get("linkinfo", {}).get("info_data", {})
        found = [
            f"{self.interface}: {setting} is {own[setting]}, requested 0"
            for setting in _NOT_OF_BRIDGE
            if own.get(setting, 0) != 0
        ]
        for name in self.ports:
            link = by_name.get(name, {})
            if link.get("master") != self.interface:
                found.append(f"{name}: its bridge is {link.get('master', 'absent')}, requested {self.interface}")
            port = _port(link)
            if port.get("state") != "forwarding":
                found.append(f"{name}: is {port.get('state', 'absent')}, requested forwarding")
            found += [
                f"{name}: {setting} is {port.get(setting, 'absent')}, requested off"
                for setting in _NOT_OF_PORTS
                if port.get(setting) is not False
            ]
        # Permanent entries are the kernel's own, for the addresses of the bridge and its ports.
        entries = [entry for entry in table if entry.get("state") != "permanent"]
        known = {(str(entry.get("mac")), str(entry.get("ifname"))): entry.get("state") for entry in entries}
        for mac, port_name in self.entries:
            state = known.pop((mac, port_name), None)
            if state != "static":
                found.append(f"{self.interface}: {mac} to {port_name} is {state or 'absent'}, requested static")
        return found + [f"{self.interface}: {mac} to {name}, which nobody requested" for mac, name in known]


def _port(link: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `ip -d -j` says of an interface as a port of a bridge."""
    port: Mapping[str, Any] = link.get("linkinfo", {}).get("info_slave_data", {})
    return port
