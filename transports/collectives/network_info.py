"""What is known of a network and its hosts by whoever makes them, for collectives that choose or size by it."""

from typing import Final

from pydantic import BaseModel, ConfigDict

from transports.collectives.costs import DEFAULT_COSTS, Costs

DEFAULT_QUEUE_BYTES: Final = 1_000_000
"""What the port of a switch is taken to hold where nobody says."""


class NetworkInfo(BaseModel):
    """See :meth:`transports.collectives.base.Collective.with_network_info`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    latency_s: float
    """Of an empty message from participant to participant."""
    rate_bps: float
    """Payload that the slowest link carries in each direction."""
    queue_bytes: float = DEFAULT_QUEUE_BYTES
    """What the smallest queue on the way holds."""
    burst_bytes: int | None = None
    """Payload that a link lets pass at once after rest; None: not known."""
    frame_bytes: int | None = None
    """Payload that a link lets pass in one piece at any time; None: not known."""
    costs: Costs = DEFAULT_COSTS
    """What hosts add to links."""

    @property
    def latency_bytes(self) -> int:
        """What the slowest link carries while a message travels."""
        return round(self.latency_s * self.rate_bps / 8)

    @property
    def rest_s(self) -> float:
        """After which the slowest link lets its burst pass again, whatever it has sent; 0.0 where neither that nor its
        super-frames are known."""
        return ((self.burst_bytes or 0) + (self.frame_bytes or 0)) * 8 / self.rate_bps

    @property
    def two_round_trips_bytes(self) -> int:
        """What the slowest link carries in two round trips: with as much under way no sender waits for answers."""
        return 2 * 2 * self.latency_bytes
