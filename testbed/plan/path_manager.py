"""What a host's path manager of Multipath TCP is configured to, and how its answers read: ip-mptcp(8). Pure.

Each participant announces further ports of its one address; the side that has connected then adds a subflow to each.
Which of several equal paths a subflow takes is decided by the switches' hash of addresses and ports.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

FIRST_PORT: Final = 20_000
"""Below those that the kernel gives out (ip_local_port_range)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PathManager:
    """The settings of one network namespace's path manager."""

    address: str
    num_subflows: int
    """Of each connection, the first included."""

    @property
    def ports(self) -> range:
        """Announced beside the one that is connected to."""
        return range(FIRST_PORT, FIRST_PORT + self.num_subflows - 1)

    def commands(self) -> list[str]:
        """Lines for `ip -batch`."""
        more = self.num_subflows - 1
        return [
            f"mptcp limits set subflows {more} add_addr_accepted {more}",
            *(f"mptcp endpoint add {self.address} port {port} signal" for port in self.ports),
        ]

    def differences(self, limits: str, endpoints: Sequence[dict[str, Any]]) -> list[str]:
        """`limits` is what `ip mptcp limits show` answers, `endpoints` what `ip -j mptcp endpoint show` does."""
        words = limits.split()
        reported = dict(zip(words[::2], words[1::2], strict=False))
        more = str(self.num_subflows - 1)
        found = [
            f"ip mptcp limits: {name} is {reported.get(name)}, requested {more}"
            for name in ("subflows", "add_addr_accepted")
            if reported.get(name) != more
        ]
        requested = [(self.address, port, True) for port in self.ports]
        known = [(each.get("address"), each.get("port"), bool(each.get("signal"))) for each in endpoints]
        if sorted(known, key=str) != requested:
            found.append(f"ip mptcp endpoints are {known}, requested {requested}")
        return found
