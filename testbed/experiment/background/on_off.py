"""UDP in bursts: at a constant rate for a while, silent for a while.

With exponential times it is the classic on-off source, whose superposition models packetised voice and bursty data
(Heffes, Lucantoni, "A Markov Modulated Characterization of Packetized Voice and Data Traffic and Related Statistical
Multiplexer Performance", IEEE Journal on Selected Areas in Communications 4(6), 1986).
"""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from testbed.experiment.background.base import BACKGROUNDS, Background
from testbed.experiment.background.constant import refuse_too_many_packets
from testbed.experiment.link import MAX_RATE_BPS
from transports.units import Rate, Time, format_rate, format_time


@BACKGROUNDS.register
class OnOff(Background):
    """Packets of one size at equal distances while it is on."""

    rate_bps: Rate = Field(alias="rate", ge=1000, le=MAX_RATE_BPS)
    """While it is on; on the wire, headers included."""
    packet_bytes: int = Field(1500, alias="packet", ge=64, le=1500)
    """Of an IP packet, its headers included."""
    on_s: Time = Field(0.1, alias="on", ge=1e-3, le=3600)
    """How long it sends, on average."""
    off_s: Time = Field(0.3, alias="off", ge=1e-3, le=3600)
    """How long it is silent, on average."""
    distribution: Literal["exponential", "fixed"] = "exponential"
    """Of both times, drawn from the run's seed."""

    @model_validator(mode="before")
    @classmethod
    def _words(cls, data: Any) -> Any:
        """`on` and `off` without quotes are truth values to YAML 1.1."""
        if not isinstance(data, dict):
            return data
        words = {"True": "on", "False": "off"}
        return {words.get(str(key), key): value for key, value in data.items()}

    protocol: ClassVar[Literal["udp", "tcp"]] = "udp"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        refuse_too_many_packets(self.rate_bps, self.packet_bytes)
        return self

    def source_arguments(self, *, seed: int) -> tuple[str, ...]:
        """Times in nanoseconds."""
        times = (f"{self.on_s * 1e9:.0f}", f"{self.off_s * 1e9:.0f}", str(int(self.distribution == "exponential")))
        return (f"{self.rate_bps:.0f}", str(self.packet_bytes), *times, str(seed))

    def offered_bps(self) -> float | None:
        """The rate for the share of time in which it is on."""
        return self.rate_bps * self.on_s / (self.on_s + self.off_s)

    def text(self) -> str:
        """Rate, size, times."""
        times = f"{self.distribution} {format_time(self.on_s)} on, {format_time(self.off_s)} off"
        return f"{format_rate(self.rate_bps)} of {self.packet_bytes} B packets, {times}"
