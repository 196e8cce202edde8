"""The netem backend: the kernel's own delay line, on an IFB at the receiver's ingress.

Never at the sender, where it would tangle with TCP Small Queues and share its queue with the shaper.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from testbed.links.spec import BackendName, GilbertElliott, LinkSpec
from testbed.links.tc import MTU

NETEM_HANDLE: Final = "20:"


@dataclass(frozen=True, kw_only=True, slots=True)
class NetemStage:
    """One direction's delay, jitter and loss; implements testbed.links.delay.DelayStage."""

    backend: ClassVar[BackendName] = "netem"
    interface: str
    device: str
    """The IFB that carries netem."""
    delay_s: float
    jitter_s: float
    loss: float
    max_packets: int

    def ip_commands(self) -> list[str]:
        """Lines for `ip -batch`."""
        return [f"link add {self.device} type ifb", f"link set {self.device} up"]

    def tc_commands(self) -> list[str]:
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
            f"qdisc add dev {self.device} root handle {NETEM_HANDLE} netem limit {self.max_packets} {netem}",
        ]

    def firewall_rules(self) -> tuple[str, ...]:
        """None."""
        return ()

    def daemon_arguments(self) -> tuple[str, ...]:
        """None: the kernel does it."""
        return ()

    def differences(self, state: Mapping[str, Any]) -> list[str]:
        """What `tc -j qdisc show` of the node says that was not asked for."""
        qdiscs = [qdisc for qdisc in state["qdiscs"] if qdisc.get("dev") == self.device]
        root: dict[str, Any] = next((qdisc for qdisc in qdiscs if qdisc.get("root")), {})
        if root.get("kind") != "netem":
            return [f"{self.device}: root qdisc is {root.get('kind', 'absent')}, asked for netem"]
        options = root.get("options", {})
        delay = options.get("delay", {})
        found: list[str] = []
        for what, value, wanted, tolerance in (
            ("limit", options.get("limit"), self.max_packets, 0),
            ("delay", delay.get("delay", 0.0), self.delay_s, 2e-6),
            ("jitter", delay.get("jitter", 0.0), self.jitter_s, 2e-6),
            ("loss", options.get("loss-random", {}).get("loss", 0.0), self.loss, 1e-6),
        ):
            if not isinstance(value, int | float) or abs(value - wanted) > tolerance:
                found.append(f"{self.device}: netem {what} is {value}, asked for {wanted}")
        return found


def netem_refusals(link: LinkSpec) -> dict[str, str]:
    """What this backend has not got."""
    found = {}
    if link.ecn_bytes is not None:
        found["ecn"] = "netem marks instead of losing, not by the length of a queue"
    if isinstance(link.loss, GilbertElliott):
        found["loss"] = "bursts are not made yet"
    if link.duplicate > 0:
        found["duplicate"] = "is not made yet"
    if link.reorder > 0:
        found["reorder"] = "is not made yet"
    if link.jitter_s > 0 and link.jitter.distribution != "normal":
        found["jitter"] = "only a normal distribution is made yet"
    return found


def netem_stage(link: LinkSpec, *, interface: str, index: int, seed: int) -> NetemStage:  # noqa: ARG001 - no seed in iproute2 6.1
    """The stage at the receiving `interface`.

    The limit holds twice the bandwidth-delay product in full-sized packets, so netem never drops by itself.
    """
    return NetemStage(
        interface=interface,
        device=f"ifb{index}",
        delay_s=link.delay_s,
        jitter_s=link.jitter_s,
        loss=link.mean_loss,
        max_packets=link.max_packets_in_flight(MTU),
    )
