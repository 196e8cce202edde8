"""The commands that make a link between two machines, and what the kernel must then say. Pure.

One end is a VXLAN device (RFC 7348, ip-link(8)) in the node's namespace whose UDP socket is in the machine's: whoever
runs the command is in that, and the kernel remembers it. What is shaped and counted is the device's, so the inner
frame, before it is encapsulated. There is nothing to learn: one device has one peer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from testbed.links.veth import End

PORT: Final = 4789
"""IANA's."""
OVERHEAD_BYTES: Final = 50
"""What a frame is longer on the network between the machines: IPv4 (20), UDP (8), VXLAN (8) and a second Ethernet
header (14). So an IP packet that carries a link's packet is that much longer than it."""
TTL: Final = 64
VNI_BITS: Final = 24
LINK_BITS: Final = 10
"""Of a VNI; the others are the run's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vxlan:
    """One end of a link between machines."""

    interface: str
    mac: str
    vni: int
    local: str
    """The machine's own address."""
    remote: str
    """The other machine's."""

    def command(self, end: End) -> str:
        """A line for `ip -batch`, run in the machine's namespace, that makes the device in the node's.

        No UDP checksum (RFC 7348 asks for zero): what is inside has its own. `df set`: a packet that does not fit the
        network between the machines is lost and said to be too long, instead of being cut up.
        """
        return (
            f"link add name {end.interface} address {end.mac} netns {end.pid} type vxlan id {self.vni} "
            f"local {self.local} remote {self.remote} dstport {PORT} nolearning noudpcsum df set ttl {TTL}"
        )

    def differences(self, links: Sequence[Mapping[str, Any]]) -> list[str]:
        """What `ip -d -j address show` says of the device that was not requested."""
        link = next((each for each in links if each.get("ifname") == self.interface), {})
        information = link.get("linkinfo", {})
        if information.get("info_kind") != "vxlan":
            return [f"{self.interface}: is {information.get('info_kind', 'no device')}, requested vxlan"]
        data = information.get("info_data", {})
        requested = {
            "id": self.vni,
            "local": self.local,
            "remote": self.remote,
            "port": PORT,
            "learning": False,
            "udp_csum": False,
            "df": "set",
            "ttl": TTL,
        }
        return [
            f"{self.interface}: vxlan {setting} is {data.get(setting, 'unset')}, requested {wanted}"
            for setting, wanted in requested.items()
            if data.get(setting) != wanted
        ]
