"""What hosts add to links: what the cost model (`timing.py`) charges for messages and for their bytes."""

from dataclasses import dataclass
from typing import Final


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
    link_share: float = 1.0
    """What a long stream reaches, of what headers leave of a link's rate."""
    num_cores: int | None = None
    """Which all participants share; None: each has one of its own."""
    tcp: bool = True
    """Whether senders discover how much they may send, so that they begin slowly, and overflow a queue together."""
    fitted_at: str | None = None
    """When these were fitted to measurements (ISO 8601); None: they are the defaults."""


DEFAULT_COSTS: Final = Costs()
FREE: Final = Costs(
    host_latency_s=0.0, message_s=0.0, copy_s_per_byte=0.0, addition_s_per_byte=0.0, late_s=0.0, tcp=False
)
"""Links alone."""
