"""The netem backend: the kernel's own delay line, on an IFB at the receiver's ingress.

Never at the sender, where it would tangle with TCP Small Queues and share its queue with the shaper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from testbed.errors import SpecError
from testbed.experiment.delay_backends.base import DELAY_BACKENDS, VETH, DelayBackend, DelayStage
from testbed.experiment.link import MTU, GilbertElliott, LinkSpec
from testbed.experiment.seeds import own_seed

NETEM_HANDLE: Final = "20:"
_SEED_STEP: Final = 2**49
"""From the seed of a change to that of the next: more than any seed of a run's links."""
_NUM_SEEDS: Final = 2**64


@dataclass(frozen=True, kw_only=True, slots=True)
class NetemStage(DelayStage):
    """One direction's delay, jitter, loss, duplicates and reordering."""

    interface: str
    index: int
    device: str
    """The IFB that carries netem."""
    requested: LinkSpec
    max_packets: int
    seed: int
    """Of the draws from here on: each change has another, or the same draws would come again with each."""
    normal_table: bool
    """Whether netem has the table of the normal distribution: once given, it is used for all jitter."""

    def ip_commands(self) -> list[str]:
        """Lines for `ip -batch`."""
        return [f"link add {self.device} type ifb", f"link set {self.device} up"]

    def tc_commands(self) -> list[str]:
        """Lines for `tc -batch`."""
        return [
            f"qdisc add dev {self.interface} handle ffff: ingress",
            (
                f"filter add dev {self.interface} parent ffff: protocol all u32 match u32 0 0 "
                f"action mirred egress redirect dev {self.device}"
            ),
            f"qdisc add {self.qdisc()}",
        ]

    def tc_commands_if_known(self) -> list[str]:
        """The seed of losses, duplicates and jitter: Linux 6.6 and iproute2 6.6 have it. Else the kernel draws anew in
        every run; the record's read-back shows which it was."""
        return [f"qdisc change {self.qdisc()} seed {self.seed}"] if self.requested.draws else []

    def following(self, before: "NetemStage") -> "NetemStage":
        """Raises SpecError for uniform jitter where there has been a normal one, whose table netem keeps, also while
        there is none."""
        if before.normal_table and self.requested.jitter_s > 0 and not self.normal_table:
            raise SpecError(
                "jitter: netem cannot change normal jitter into uniform; start the run with the uniform one"
            )
        changes = self.qdisc() != before.qdisc()
        seed = (before.seed + _SEED_STEP * changes) % _NUM_SEEDS
        return replace(self, seed=seed, normal_table=self.normal_table or before.normal_table)

    def tc_changes(self, before: "NetemStage") -> list[str]:
        """The parameters anew: netem keeps the packets it holds, and their times (sch_netem.c, netem_change). None
        where all are as before (a change of the rate, say): many kernels would go on with a seed of their own."""
        if self.qdisc() == before.qdisc():
            return []
        # netem_change keeps the share it reorders unless it is given a new one.
        ends = " reorder 0%" if before.requested.reorder > 0 and self.requested.reorder == 0 else ""
        return [f"qdisc change {self.qdisc()}{ends}"]

    def qdisc(self) -> str:
        """What `tc qdisc add` and `tc qdisc change` are given, but for the seed."""
        requested = self.requested
        parts = [f"dev {self.device} root handle {NETEM_HANDLE} netem limit {self.max_packets}"]
        parts.append(f"delay {requested.delay_s * 1e6:.0f}us")
        if requested.jitter_s > 0:
            parts.append(f"{self._jitter_s * 1e6:.0f}us")
            parts += ["distribution normal"] if requested.jitter.distribution == "normal" else []
        if isinstance(requested.loss, GilbertElliott):
            model = requested.loss
            states = (model.good_to_bad, model.bad_to_good, model.loss_in_bad, model.loss_in_good)
            parts.append("loss gemodel " + " ".join(_percent(share) for share in states))
        elif requested.loss > 0:
            parts.append(f"loss random {_percent(requested.loss)}")
        if requested.duplicate > 0:
            parts.append(f"duplicate {_percent(requested.duplicate)}")
        if requested.reorder > 0:
            parts.append(f"reorder {_percent(requested.reorder)}")
        return " ".join(parts)

    @property
    def _jitter_s(self) -> float:
        """netem's own: the standard deviation of a normal distribution, half the width of a uniform one."""
        jitter = self.requested.jitter
        return jitter.deviation_s if jitter.distribution == "normal" else jitter.greatest_s

    def differences(self, state: Mapping[str, Any]) -> list[str]:
        """What `tc -j qdisc show` of the node, and its ports' filters, say that was not requested."""
        targets = state["redirects"].get(self.interface, [])
        if targets != [self.device]:
            return [f"{self.interface}: what arrives goes to {targets or 'no delay line'}, requested {self.device}"]
        qdiscs = [qdisc for qdisc in state["qdiscs"] if qdisc.get("dev") == self.device]
        root: dict[str, Any] = next((qdisc for qdisc in qdiscs if qdisc.get("root")), {})
        if root.get("kind") != "netem":
            return [f"{self.device}: root qdisc is {root.get('kind', 'absent')}, requested netem"]
        options = root.get("options", {})
        requested, bursts = (
            self.requested,
            self.requested.loss if isinstance(self.requested.loss, GilbertElliott) else None,
        )
        found: list[str] = []
        for what, path, wanted, tolerance in (
            ("limit", ("limit",), self.max_packets, 0),
            ("delay", ("delay", "delay"), requested.delay_s, 2e-6),
            ("jitter", ("delay", "jitter"), self._jitter_s, 2e-6),
            ("loss", ("loss-random", "loss"), 0.0 if bursts else requested.mean_loss, 1e-6),
            ("good_to_bad", ("loss-gemodel", "p"), bursts.good_to_bad if bursts else 0.0, 1e-6),
            ("bad_to_good", ("loss-gemodel", "r"), bursts.bad_to_good if bursts else 0.0, 1e-6),
            ("loss_in_bad", ("loss-gemodel", "1-h"), bursts.loss_in_bad if bursts else 0.0, 1e-6),
            ("loss_in_good", ("loss-gemodel", "1-k"), bursts.loss_in_good if bursts else 0.0, 1e-6),
            ("duplicate", ("duplicate", "duplicate"), requested.duplicate, 1e-6),
            ("reorder", ("reorder", "reorder"), requested.reorder, 1e-6),
        ):
            value: Any = options
            for key in path:
                value = value.get(key, {}) if isinstance(value, dict) else {}
            value = 0.0 if value == {} else value  # tc says nothing of what is not set
            if not isinstance(value, int | float) or abs(value - wanted) > tolerance:
                found.append(f"{self.device}: netem {what} is {value}, requested {wanted}")
        seed = options.get("seed", self.seed)  # said where it can be set
        if requested.draws and seed != self.seed:
            found.append(f"{self.device}: netem seed is {seed}, requested {self.seed}")
        return found


def redirects(filters: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the filters of a port, as `tc -j filter show` has them, send packets; `some` for those that match not all.

    A filter that does anything else stands as its kind.
    """
    found = []
    for options in (entry.get("options", {}) for entry in filters):
        for action in options.get("actions", ()):
            to_all = options.get("match", {}).get("mask") == "0"
            sends = action.get("kind") == "mirred" and action.get("mirred_action") == "redirect"
            found.append(str(action.get("to_dev") if sends and to_all else "some" if sends else action.get("kind")))
    return found


@DELAY_BACKENDS.register
class Netem(DelayBackend):
    """The kernel's own, exact to a few microseconds."""

    preference: ClassVar[int] = 10
    needs: ClassVar[str] = (
        "a kernel with netem: modprobe sch_netem ifb act_mirred; on RHEL install kernel-modules-extra; WSL2's kernel "
        "has none"
    )
    sees_frames: ClassVar[bool] = True

    def unsupported(self, link: LinkSpec) -> dict[str, str]:
        """See :class:`DelayBackend`."""
        if link.ecn_bytes is not None:
            return {"ecn": "netem marks instead of losing, not by the length of a queue"}
        return {}

    def stage(self, link: LinkSpec, *, interface: str, index: int, seed: int) -> NetemStage:
        """The limit holds twice the bandwidth-delay product in full-sized packets, so netem never drops by itself."""
        return NetemStage(
            interface=interface,
            index=index,
            device=f"ifb{index}",
            requested=link,
            max_packets=link.max_packets_in_flight(MTU),
            seed=own_seed(seed, index),
            normal_table=link.jitter_s > 0 and link.jitter.distribution == "normal",
        )

    def trial(self, program: str, directory: str) -> Sequence[str]:  # noqa: ARG002 (the kernel does it)
        """A millisecond on an IFB."""
        return [
            VETH,
            "ip link add ifb9 type ifb",
            "tc qdisc add dev v0 handle ffff: ingress",
            "tc filter add dev v0 parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect dev ifb9",
            "tc qdisc add dev ifb9 root netem delay 1ms",
        ]


def _percent(share: float) -> str:
    return f"{share * 100:.6g}%"
