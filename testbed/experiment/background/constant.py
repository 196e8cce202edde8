"""UDP at a constant rate, whatever happens to the packets: a video, telemetry, an inelastic neighbour."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from testbed.experiment.background.base import BACKGROUNDS, ETHERNET_BYTES, MAX_PACKETS_PER_S, Background
from testbed.experiment.link import MAX_RATE_BPS
from transports.units import Rate, format_rate


@BACKGROUNDS.register
class Constant(Background):
    """Packets of one size at equal distances."""

    rate_bps: Rate = Field(alias="rate", ge=1000, le=MAX_RATE_BPS)
    """On the wire, headers included, as links count."""
    packet_bytes: int = Field(1500, alias="packet", ge=64, le=1500)
    """Of an IP packet, its headers included."""

    protocol: ClassVar[Literal["udp", "tcp"]] = "udp"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        refuse_too_many_packets(self.rate_bps, self.packet_bytes)
        return self

    def source_arguments(self, *, seed: int) -> tuple[str, ...]:
        """No silence."""
        return (f"{self.rate_bps:.0f}", str(self.packet_bytes), "0", "0", "0", str(seed))

    def offered_bps(self) -> float | None:
        """The rate."""
        return self.rate_bps

    def text(self) -> str:
        """The rate and the size."""
        return f"{format_rate(self.rate_bps)} of {self.packet_bytes} B packets"


def refuse_too_many_packets(rate_bps: float, packet_bytes: int) -> None:
    """Raise ValueError when one source cannot be sure to send so many packets."""
    most_bps = MAX_PACKETS_PER_S * 8 * (packet_bytes + ETHERNET_BYTES)
    if rate_bps > most_bps:
        raise ValueError(
            f"{format_rate(rate_bps)} are more than the {MAX_PACKETS_PER_S:,} packets a second that one source sends; "
            f"at most {most_bps / 1e6:.0f}mbit with packets of {packet_bytes} B, or several flows, or kind bulk"
        )
