"""The tc and ip commands that make a link what was requested, and what the kernel must then say about it. Pure.

Shaping: one HTB class per direction at the sender's egress, as accurate as 0.1 % up to 10 Gbit/s when `burst` and
`cburst` hold a tenth of a millisecond at the rate and `quantum` is given (tc-htb(8); Mininet's `burst 15k` loses 2.5 %
at 10 Gbit/s). The leaf is a byte queue: `pfifo` would count 64 KiB super-frames.
"""

from dataclasses import dataclass
from typing import Any, Final

from testbed.experiment.link import MTU, SUPERFRAME_BYTES
from testbed.system.netlink import TICK_S, HtbClass
from transports.channels.tcp import Tcp


def goodput_fraction(mtu: int = MTU) -> float:
    """TCP payload per byte that the shaper counts: 1448/1514 at MTU 1500."""
    return Tcp().goodput_fraction(mtu)


def wire_bytes(packet_bytes: int, mtu: int) -> int:
    """The most that a packet of that size counts: with the headers of every segment inside."""
    return round(packet_bytes / goodput_fraction(mtu))


QUANTUM_BYTES: Final = 60_000
"""Given explicitly, because the default (rate / r2q) makes the kernel warn above 16 Mbit/s."""
BURST_S: Final = 1e-4
"""Long enough for 0.1 % at 10 Gbit/s; ten times longer, and a whole 64 KiB message at 1 Gbit/s would pass for free."""
MIN_BURST_BYTES: Final = 1514
"""One packet of MTU 1500 with its header. Ten packets, as others allow, are 4.8 ms of a link of 25 Mbit/s."""
MAX_BURST_RATE_BPS: Final = 10e9
"""Bursts grow with the rate up to here, and beyond only with what the kernel really sends."""
ROOT_HANDLE: Final = "1:"
CLASS_ID: Final = "1:1"
CLASS_HANDLE: Final = 0x10001
LEAF_HANDLE: Final = "10:"


SUPERFRAME_S: Final = 1e-3
"""The longest that a super-frame takes at its link's rate. TCP aims at that itself, but not where the round trip is
short: there it fills them whatever the rate (tcp_output.c, tcp_tso_autosize). A shaper lets a packet pass whole as soon
as it may pass at all, so a message of one super-frame would take no time on a link at rest."""


def gso_max_segments(packet_bytes: int, mtu: int, rate_bps: float) -> int | None:
    """`gso_max_segs` of the interface of a link of that rate whose packets are to be at most that long; None where the
    kernel's own limit holds. TCP then makes no longer super-frames (tcp_output.c, tcp_tso_segs), and an interface on
    the way cuts up those that are. Where super-frames may be as long as the kernel's, they last a millisecond at
    most."""
    if packet_bytes >= SUPERFRAME_BYTES:
        packet_bytes = int(min(packet_bytes, rate_bps * SUPERFRAME_S / 8))
        if packet_bytes >= SUPERFRAME_BYTES:
            return None
    return max(1, packet_bytes // mtu)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shaper:
    """One direction of a link, at its sender's egress."""

    interface: str
    rate_bps: float
    queue_bytes: int
    burst_bytes: int
    """That may leave at once after the link was idle."""

    @classmethod
    def of(cls, *, interface: str, rate_bps: float, queue_bytes: int, real_bps: float | None = None) -> "Shaper":
        """Of a link of that rate, which the kernel sends at `real_bps` where time is dilated. Bursts are the same bytes
        in slower time, as queues are: the kernel needs no more at lower rates."""
        burst_bps = max(min(rate_bps, MAX_BURST_RATE_BPS), rate_bps if real_bps is None else real_bps)
        burst_bytes = max(MIN_BURST_BYTES, int(burst_bps * BURST_S / 8))
        return cls(interface=interface, rate_bps=rate_bps, queue_bytes=queue_bytes, burst_bytes=burst_bytes)

    def commands(self) -> list[str]:
        """Lines for `tc -batch`."""
        rate, burst = f"{self.rate_bps:.0f}bit", f"{self.burst_bytes}b"
        return [
            f"qdisc add dev {self.interface} root handle {ROOT_HANDLE} htb default 1",
            (
                f"class add dev {self.interface} parent {ROOT_HANDLE} classid {CLASS_ID} htb "
                f"rate {rate} ceil {rate} burst {burst} cburst {burst} quantum {QUANTUM_BYTES}"
            ),
            f"qdisc add dev {self.interface} parent {CLASS_ID} handle {LEAF_HANDLE} bfifo limit {self.queue_bytes}",
        ]

    def differences(self, qdiscs: list[dict[str, Any]], classes: list[HtbClass]) -> list[str]:
        """What `tc -j qdisc show` and the kernel's HTB classes of the interface say that was not requested.

        The classes come from netlink: `tc -j class show` of iproute2 6.1 prints no JSON for HTB. tc keeps
        bursts as times, in whole microseconds and then in the packet scheduler's ticks of 64 ns, rounded down.
        """
        found: list[str] = []
        root = next((qdisc for qdisc in qdiscs if qdisc.get("root")), {})
        if (root.get("kind"), root.get("handle")) != ("htb", ROOT_HANDLE):
            found.append(f"{self.interface}: root qdisc is {root.get('kind', 'absent')}, requested htb {ROOT_HANDLE}")
        elif root.get("options", {}).get("default") not in {"0x1", 1, "1"}:
            found.append(f"{self.interface}: htb default is {root['options'].get('default')}, requested 1")
        leaf = next((qdisc for qdisc in qdiscs if qdisc.get("parent") == CLASS_ID), {})
        if leaf.get("kind") != "bfifo":
            found.append(f"{self.interface}: leaf qdisc is {leaf.get('kind', 'absent')}, requested bfifo")
        elif leaf.get("options", {}).get("limit") != self.queue_bytes:
            found.append(
                f"{self.interface}: queue is {leaf['options'].get('limit')} bytes, requested {self.queue_bytes}"
            )
        return found + self.class_differences(classes)

    def class_differences(self, classes: list[HtbClass]) -> list[str]:
        """What the kernel's HTB classes of the interface alone say that was not requested."""
        found: list[str] = []
        shaped = next((item for item in classes if item.handle == CLASS_HANDLE), None)
        if shaped is None:
            return [f"{self.interface}: no htb class {CLASS_ID}"]
        rounding_bytes = 1 + self.rate_bps / 8 * (1e-6 + 2 * TICK_S)
        for what, value, wanted, tolerance in (
            ("rate in bit/s", shaped.rate_bps, self.rate_bps, 8.0),
            ("ceil in bit/s", shaped.ceil_bps, self.rate_bps, 8.0),
            ("burst in bytes", shaped.burst_bytes, self.burst_bytes, rounding_bytes),
            ("cburst in bytes", shaped.cburst_bytes, self.burst_bytes, rounding_bytes),
            ("quantum in bytes", shaped.quantum_bytes, QUANTUM_BYTES, 0.0),
        ):
            if abs(value - wanted) > tolerance:
                found.append(f"{self.interface}: htb {what} is {value:.0f}, requested {wanted:.0f}")
        return found
