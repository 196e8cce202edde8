"""Delay, jitter and loss of a link: which backends there are, what each can do, and the interface of its stages.

A stage lies at the receiving port of a direction, before routing, apart from the shaper: every packet passes it,
whatever sent it and whoever it is for. Everything here is pure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from testbed.experiment.delay_backends.netem import netem_refusals, netem_stage
from testbed.experiment.delay_backends.nfqueue import nfqueue_refusals, nfqueue_stage
from testbed.experiment.delay_backends.tap import tap_refusals, tap_stage
from testbed.experiment.link import BackendName, LinkSpec


class DelayStage(Protocol):
    """One direction's delay, jitter and loss: plain data that says how to make it and whether it is there."""

    @property
    def interface(self) -> str:
        """The receiving port."""

    @property
    def backend(self) -> BackendName:
        """Whose stage this is."""

    def ip_commands(self) -> Sequence[str]:
        """Lines for `ip -batch`."""

    def tc_commands(self) -> Sequence[str]:
        """Lines for `tc -batch`."""

    def tc_commands_if_known(self) -> Sequence[str]:
        """Arguments of `tc` for what only newer kernels and versions of iproute2 have; each may fail."""

    def tc_changes(self, before: Any) -> Sequence[str]:
        """Lines for `tc -batch` that turn the stage `before` of the same port into this one in place, dropping nothing;
        then come its `tc_commands_if_known`; the delay daemon is told the new `daemon_arguments`. Raises SpecError
        where that cannot be."""

    def firewall_rules(self) -> Sequence[str]:
        """Lines for the mangle table of `iptables-restore`."""

    def daemon_arguments(self) -> Sequence[str]:
        """What the delay daemon of the port's node is told; none where no daemon is needed."""

    def differences(self, state: Mapping[str, Any]) -> list[str]:
        """What the node's read-back (`qdiscs`, `firewall`, `queues`) says that was not asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DelayBackend:
    """One way to delay packets."""

    name: BackendName
    needs: str
    """What a machine must have, and how to get it."""
    refusals: Callable[[LinkSpec], dict[str, str]]
    """Why this backend cannot do what the link asks, whatever the machine, by the setting it cannot do (`delay`,
    `jitter`, ...); empty when it can do all."""
    cuts_superframes: bool
    """Whether it draws for every packet even where the sender makes super-frames of several."""
    shapes: bool
    """Whether its stage makes rate and queue as well, in place of the shaper."""
    sees_frames: bool
    """Whether it delays what a bridge passes on, too, and not only what a node routes or receives."""
    stage: Callable[..., DelayStage]
    """`stage(link, interface=..., index=..., seed=...)`; index counts the directions of the plan."""


BACKENDS: Final[dict[BackendName, DelayBackend]] = {
    "netem": DelayBackend(
        name="netem",
        needs="a kernel with netem: modprobe sch_netem ifb act_mirred; on RHEL install kernel-modules-extra; "
        "WSL2's kernel has none",
        refusals=netem_refusals,
        cuts_superframes=False,
        shapes=False,
        sees_frames=True,
        stage=netem_stage,
    ),
    "nfqueue": DelayBackend(
        name="nfqueue",
        needs="iptables, a C compiler (apt-get install --no-install-recommends iptables gcc libc6-dev) and a kernel "
        "with NFQUEUE: modprobe nfnetlink_queue xt_NFQUEUE",
        refusals=nfqueue_refusals,
        cuts_superframes=True,
        shapes=False,
        sees_frames=False,
        stage=nfqueue_stage,
    ),
    "tap": DelayBackend(
        name="tap",
        needs="/dev/net/tun (modprobe tun; in a container: --device /dev/net/tun) and a C compiler "
        "(apt-get install --no-install-recommends gcc libc6-dev linux-libc-dev)",
        refusals=tap_refusals,
        cuts_superframes=True,
        shapes=True,
        sees_frames=True,
        stage=tap_stage,
    ),
}
"""In the order in which `auto` prefers them."""
