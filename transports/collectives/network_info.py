"""What is known of a network and its hosts by whoever makes them, for collectives that choose or size by it."""

from pydantic import BaseModel, ConfigDict

from transports.collectives.base import Collective
from transports.collectives.timing import DEFAULT_COSTS, DEFAULT_QUEUE_BYTES, Costs


class NetworkInfo(BaseModel):
    """See :meth:`Collective.with_network_info`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    latency_s: float
    """Of an empty message from participant to participant."""
    rate_bps: float
    """Payload that the slowest link carries."""
    queue_bytes: float = DEFAULT_QUEUE_BYTES
    burst_bytes: int | None = None
    frame_bytes: int | None = None
    costs: Costs = DEFAULT_COSTS

    def given_to(self, collective: Collective, *, tensors: tuple[int, ...] = ()) -> Collective:
        """The collective, knowing all of it."""
        return collective.with_network_info(
            latency_s=self.latency_s,
            rate_bps=self.rate_bps,
            tensors=tensors,
            queue_bytes=self.queue_bytes,
            burst_bytes=self.burst_bytes,
            frame_bytes=self.frame_bytes,
            costs=self.costs,
        )
