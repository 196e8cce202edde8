"""Background traffic: flows between hosts that share links with the experiment. Pure.

Each flow is a pair of processes (testbed/system/native/traffic.c): a sink in the host it goes to, a source in the host
it comes from.
"""

from abc import abstractmethod
from typing import ClassVar, Final, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from transports.registry import Options, Registry
from transports.units import Time, format_time

ETHERNET_BYTES: Final = 14
"""Counted with every packet, as links count."""
MAX_PACKETS_PER_S: Final = 100_000
"""One source is sure to keep this up on one core (measured: see the decision on background traffic)."""


class Background(Options):
    """A value on the background axis: one flow, from one host to another."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    from_: str = Field(alias="from")
    """The host that sends: a worker's (`w0`), or one that is there for traffic (`x0`, see `hosts`)."""
    to: str
    """The host that receives."""
    start_s: Time = Field(0.0, alias="start", ge=0)
    """From the first iteration that communicates, warm-up included. 0: from before the first iteration of any kind."""
    stop_s: Time | None = Field(None, alias="stop", gt=0)
    """The same; None: with the run."""

    protocol: ClassVar[Literal["udp", "tcp"]]
    across_machines: ClassVar[bool] = False
    """Whether nodes of one run may be on several machines with it: it has been made to work there, and tried."""

    @model_validator(mode="after")
    def _some_time(self) -> Self:
        if self.stop_s is not None and self.stop_s <= self.start_s:
            raise ValueError(f"stop ({format_time(self.stop_s)}) must come after start ({format_time(self.start_s)})")
        if self.from_ == self.to:
            raise ValueError(f"from and to are both {self.to}: nothing would cross a link")
        return self

    @abstractmethod
    def source_arguments(self, *, seed: int) -> tuple[str, ...]:
        """The rest of the source's command line, after the moments."""

    @abstractmethod
    def offered_bps(self) -> float | None:
        """Mean rate on the wire while it lasts, headers included; None: as much as it gets."""

    @abstractmethod
    def text(self) -> str:
        """`20mbit of 1200 B packets`."""

    @property
    def when(self) -> str:
        """`, from 5s until 10s of training`; empty for all the time."""
        begin = f" from {format_time(self.start_s)}" if self.start_s else ""
        end = f" until {format_time(self.stop_s)}" if self.stop_s is not None else ""
        return f",{begin}{end} of training" if begin or end else ""


BACKGROUNDS: Final[Registry[Background]] = Registry("background", "testbed.experiment.background")
