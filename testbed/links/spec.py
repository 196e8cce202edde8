"""What is asked of a link. Both directions of a link are asked the same."""

from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from transports.units import Fraction, Rate, Size, Time

BackendName = Literal["netem", "nfqueue"]
MIN_PACKETS: Final = 1000
"""So many packets every delay line can hold."""
MIN_RATE_BPS: Final = 1e6
"""Below, one super-frame takes half a second."""
MAX_RATE_BPS: Final = 100e9
"""Above, no machine carries it."""


class LinkSpec(BaseModel):
    """One class of link, per direction."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    rate_bps: Rate = Field(100e6, alias="rate", ge=MIN_RATE_BPS, le=MAX_RATE_BPS)
    """Line rate, 1mbit to 100gbit."""
    delay_s: Time = Field(0.0, alias="delay", ge=0, le=1.0)
    """One-way propagation delay, 0 to 1 s."""
    jitter_s: Time = Field(0.0, alias="jitter", ge=0, le=1.0)
    """Standard deviation of the delay; at most the delay."""
    loss: Fraction = Field(0.0, ge=0, lt=1)
    """Probability that a packet is lost, 0 to 1."""
    queue_bytes: Size = Field(1_000_000, alias="queue", ge=100_000, le=1_000_000_000)
    """The queue before the link. At least 100kB: the kernel queues super-frames of up to 64 KiB."""
    backend: Literal["auto"] | BackendName = "auto"
    """What makes delay, jitter and loss: `auto` takes netem where the kernel has it, else nfqueue."""

    @model_validator(mode="after")
    def _jitter_needs_delay(self) -> Self:
        if self.jitter_s > self.delay_s:
            raise ValueError("jitter may not exceed delay: a packet cannot arrive before it was sent")
        return self

    @property
    def needs_delay_stage(self) -> bool:
        """Whether anything but rate and queue is asked."""
        return self.delay_s > 0 or self.jitter_s > 0 or self.loss > 0

    def max_packets_in_flight(self, mtu: int) -> int:
        """Twice the bandwidth-delay product in full-sized packets: what a delay line must hold to never drop."""
        in_flight_packets = self.rate_bps / 8 * (self.delay_s + 4 * self.jitter_s) / mtu
        return max(MIN_PACKETS, int(2 * in_flight_packets))
