"""The tc and ip commands that make a link what was asked, and what the kernel must then say about it. Pure.

Shaping: one HTB class per direction at the sender's egress, as accurate as 0.1 % up to 10 Gbit/s when `burst` and
`cburst` hold a tenth of a millisecond at the rate and `quantum` is given (tc-htb(8); Mininet's `burst 15k` loses 2.5 %
at 10 Gbit/s). The leaf is a byte queue: `pfifo` would count 64 KiB super-frames.

Delay, jitter and loss: netem on an IFB at the receiver's ingress, apart from the shaper and never at the sender,
where it would tangle with TCP Small Queues.
"""

from dataclasses import dataclass
from typing import Any, Final

from testbed.links.netlink import TICK_S, HtbClass
from testbed.links.spec import LinkSpec

MTU: Final = 1500
MIN_BURST_BYTES: Final = 15_000
"""Ten packets: below, the 4 ms timer tick of some kernels shows at low rates."""
QUANTUM_BYTES: Final = 60_000
"""Given explicitly, because the default (rate / r2q) makes the kernel warn above 16 Mbit/s."""
BURST_S: Final = 1e-4
"""Long enough for 0.1 % at 10 Gbit/s; ten times longer, and a whole 64 KiB message at 1 Gbit/s would pass for free."""
ROOT_HANDLE: Final = "1:"
CLASS_ID: Final = "1:1"
CLASS_HANDLE: Final = 0x10001
LEAF_HANDLE: Final = "10:"
NETEM_HANDLE: Final = "20:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shaper:
    """One direction of a link, at its sender's egress."""

    interface: str
    rate_bps: float
    queue_bytes: int

    @property
    def burst_bytes(self) -> int:
        """Bytes that may leave at once after the link was idle."""
        return max(MIN_BURST_BYTES, int(self.rate_bps * BURST_S / 8))

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
        """What `tc -j qdisc show` and the kernel's HTB classes of the interface say that was not asked for.

        The classes come from netlink: `tc -j class show` of iproute2 6.1 prints no JSON for HTB. tc keeps
        bursts as times, in whole microseconds and then in the packet scheduler's ticks of 64 ns, rounded down.
        """
        found: list[str] = []
        root = next((qdisc for qdisc in qdiscs if qdisc.get("root")), {})
        if (root.get("kind"), root.get("handle")) != ("htb", ROOT_HANDLE):
            found.append(f"{self.interface}: root qdisc is {root.get('kind', 'absent')}, asked for htb {ROOT_HANDLE}")
        elif root.get("options", {}).get("default") not in {"0x1", 1, "1"}:
            found.append(f"{self.interface}: htb default is {root['options'].get('default')}, asked for 1")
        leaf = next((qdisc for qdisc in qdiscs if qdisc.get("parent") == CLASS_ID), {})
        if leaf.get("kind") != "bfifo":
            found.append(f"{self.interface}: leaf qdisc is {leaf.get('kind', 'absent')}, asked for bfifo")
        elif leaf.get("options", {}).get("limit") != self.queue_bytes:
            found.append(
                f"{self.interface}: queue is {leaf['options'].get('limit')} bytes, asked for {self.queue_bytes}"
            )
        shaped = next((item for item in classes if item.handle == CLASS_HANDLE), None)
        if shaped is None:
            return [*found, f"{self.interface}: no htb class {CLASS_ID}"]
        rounding_bytes = 1 + self.rate_bps / 8 * (1e-6 + 2 * TICK_S)
        for what, value, wanted, tolerance in (
            ("rate in bit/s", shaped.rate_bps, self.rate_bps, 8.0),
            ("ceil in bit/s", shaped.ceil_bps, self.rate_bps, 8.0),
            ("burst in bytes", shaped.burst_bytes, self.burst_bytes, rounding_bytes),
            ("cburst in bytes", shaped.cburst_bytes, self.burst_bytes, rounding_bytes),
            ("quantum in bytes", shaped.quantum_bytes, QUANTUM_BYTES, 0.0),
        ):
            if abs(value - wanted) > tolerance:
                found.append(f"{self.interface}: htb {what} is {value:.0f}, asked for {wanted:.0f}")
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class DelayStage:
    """One direction's delay, jitter and loss, at its receiver's ingress."""

    interface: str
    device: str
    """The IFB that carries netem."""
    delay_s: float
    jitter_s: float
    loss: float
    limit_packets: int

    def ip_commands(self) -> list[str]:
        """Lines for `ip -batch`."""
        return [f"link add {self.device} type ifb", f"link set {self.device} up"]

    def commands(self) -> list[str]:
        """Lines for `tc -batch`."""
        netem = f"delay {self.delay_s * 1e6:.0f}us"
        if self.jitter_s > 0:
            netem += f" {self.jitter_s * 1e6:.0f}us distribution normal"
        if self.loss > 0:
            netem += f" loss random {self.loss * 100:.6g}%"
        return [
            f"qdisc add dev {self.interface} handle ffff: ingress",
            (
                f"filter add dev {self.interface} parent ffff: protocol all u32 match u32 0 0 "
                f"action mirred egress redirect dev {self.device}"
            ),
            f"qdisc add dev {self.device} root handle {NETEM_HANDLE} netem limit {self.limit_packets} {netem}",
        ]

    def differences(self, qdiscs: list[dict[str, Any]]) -> list[str]:
        """What `tc -j qdisc show dev <device>` says that was not asked for."""
        root = next((qdisc for qdisc in qdiscs if qdisc.get("root")), {})
        if root.get("kind") != "netem":
            return [f"{self.device}: root qdisc is {root.get('kind', 'absent')}, asked for netem"]
        options = root.get("options", {})
        delay = options.get("delay", {})
        found: list[str] = []
        for what, value, wanted, tolerance in (
            ("limit", options.get("limit"), self.limit_packets, 0),
            ("delay", delay.get("delay", 0.0), self.delay_s, 2e-6),
            ("jitter", delay.get("jitter", 0.0), self.jitter_s, 2e-6),
            ("loss", options.get("loss-random", {}).get("loss", 0.0), self.loss, 1e-6),
        ):
            if not isinstance(value, int | float) or abs(value - wanted) > tolerance:
                found.append(f"{self.device}: netem {what} is {value}, asked for {wanted}")
        return found


def delay_stage(link: LinkSpec, *, interface: str, device: str) -> DelayStage | None:
    """The delay stage at the receiving `interface`, or None when only rate and queue are asked.

    The limit holds twice the bandwidth-delay product in full-sized packets, so netem never drops by itself.
    """
    if not link.needs_delay_stage:
        return None
    in_flight_packets = link.rate_bps / 8 * (link.delay_s + 4 * link.jitter_s) / MTU
    return DelayStage(
        interface=interface,
        device=device,
        delay_s=link.delay_s,
        jitter_s=link.jitter_s,
        loss=link.loss,
        limit_packets=max(1000, int(2 * in_flight_packets)),
    )
