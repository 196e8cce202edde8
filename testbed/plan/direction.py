"""One direction of a link: what is requested, how it is done, what it must carry."""

from dataclasses import asdict, dataclass
from typing import Any

from testbed.experiment.delay_backends.base import DelayStage
from testbed.experiment.link import LinkSpec
from testbed.links.htb import Shaper
from testbed.plan.addressing import Port
from testbed.plan.paths import Hop


@dataclass(frozen=True, kw_only=True, slots=True)
class Direction:
    """Plain data, decided by the plan."""

    link: str
    """`w0-s0`, for both directions."""
    sender: Port
    receiver: Port
    requested: LinkSpec
    """Fully resolved: the rate is this direction's share, the queue is in bytes."""
    gso_max_segments: int | None
    """Of the sender's interface, from the lowest rate that the spec gives the link, `changes` included: connections
    keep what they begin with, so it stays through the run. None: the kernel's own limit."""
    shaper: Shaper | None
    """None: the delay stage makes rate and queue as well."""
    delay_stage: DelayStage | None
    expected_bytes: int | None
    """Of gradients, per iteration, Ethernet, IP, TCP and frame headers included, acknowledgements not. None: flows that
    could take another of several equal paths may or may not pass here."""
    balanced_bytes: float
    """The same if every switch split what it forwards evenly over equal paths."""
    split_bytes: int
    """By how much they may be more, if no message shares its last segment with the next, by what a stack adds, and if
    an engine that joins what is ready joins nothing."""
    input_bytes: int | None
    """Of batches that are read from the storage node, and of requests for them, per iteration, counted alike."""

    @property
    def hop(self) -> Hop:
        """Sending and receiving node."""
        return self.sender.node, self.receiver.node

    @property
    def name(self) -> str:
        """`w0 -> s0`."""
        return " -> ".join(self.hop)

    @property
    def rate_bps(self) -> float:
        """The requested rate."""
        return self.requested.rate_bps

    @property
    def delay_s(self) -> float:
        """The requested one-way delay; its mean where there is jitter."""
        return self.requested.delay_s

    @property
    def loss(self) -> float:
        """The share of packets lost in the long run, as requested."""
        return self.requested.mean_loss

    @property
    def balanced_s(self) -> float:
        """How long the link is busy with its balanced bytes."""
        return self.balanced_bytes * 8 / self.rate_bps

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "link": self.link,
            "sender": asdict(self.sender),
            "receiver": asdict(self.receiver),
            "rate_bps": self.rate_bps,
            "delay_s": self.delay_s,
            "loss": self.loss,
            "requested": self.requested.model_dump(mode="json", by_alias=True),
            "shaper": None if self.shaper is None else asdict(self.shaper),
            "delay_backend": None if self.delay_stage is None else self.delay_stage.backend,
            "expected_bytes": self.expected_bytes,
            "balanced_bytes": self.balanced_bytes,
            "split_bytes": self.split_bytes,
            "input_bytes": self.input_bytes,
        }
