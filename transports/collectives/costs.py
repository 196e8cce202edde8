"""What hosts add to links: what the cost model (`timing.py`) charges for messages and for their bytes."""

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelCosts:
    """What a channel takes of processors that does more for bytes than hand them to the kernel's TCP: cuts them into
    datagrams, encrypts them, wraps them in a library's frames."""

    channel: str
    """Its kind."""
    message_s: float
    copy_s_per_byte: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What hosts add to links. The defaults are those of a machine of 2.5 GHz that nobody has measured;
    `testbed fit` measures them."""

    host_latency_s: float = 50e-6
    """Of a message beside propagation: two system calls and two wake-ups, which keep no other message waiting."""
    message_s: float = 25e-6
    """Of a participant's processor for each message that it sends, and for each that it receives."""
    copy_s_per_byte: float = 1e-9
    """Of a participant's processor for what it sends, and for what it receives: copies, and the kernel's packets."""
    addition_s_per_byte: float = 0.1e-9
    """Of a participant's processor to add what came to what is there."""
    late_s: float = 50e-6
    """By how much a link with a delay holds a message longer than requested."""
    shaper_late_s: float = 50e-6
    """By how much later than its tokens allow a link's shaper lets go what had to wait for them: a timer of the kernel.
    What follows does not wait for that as well: meanwhile tokens come."""
    link_share: float = 1.0
    """What a long stream reaches, of what headers leave of a link's rate."""
    num_cores: int | None = None
    """Which all participants share; None: each has one of its own."""
    tcp: bool = True
    """Whether senders discover how much they may send, so that they begin slowly, and overflow a queue together."""
    channels: tuple[ChannelCosts, ...] = ()
    """Of channels that were measured by themselves; all others are taken to cost what TCP does."""
    fitted_at: str | None = None
    """When these were fitted to measurements (ISO 8601); None: they are the defaults."""

    def of_channel(self, kind: str) -> "Costs":
        """Of that channel alone: with what it takes for a message and a byte in the place of TCP's."""
        for each in self.channels:
            if each.channel == kind:
                return replace(self, message_s=each.message_s, copy_s_per_byte=each.copy_s_per_byte, channels=())
        return replace(self, channels=())


DEFAULT_COSTS: Final = Costs()
FREE: Final = Costs(
    host_latency_s=0.0,
    message_s=0.0,
    copy_s_per_byte=0.0,
    addition_s_per_byte=0.0,
    late_s=0.0,
    shaper_late_s=0.0,
    tcp=False,
)
"""Links alone."""
