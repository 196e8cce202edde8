"""What a protocol core is: a state machine that is given datagrams and the time, and does nothing by itself.

A driver gives it a socket and a clock, the simulator gives it faults and virtual time. Five calls, after aioquic.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

Address = tuple[str, int]
"""Host and UDP port."""


class Datagram(NamedTuple):
    """One UDP datagram, to or from the other end."""

    peer: Address
    data: bytes
    marked: bool = False
    """Whether it met congestion on the way (IP's CE code point, RFC 3168); of received ones."""
    age_s: float = 0.0
    """How long ago the kernel took it in (socket(7), SO_TIMESTAMPNS); of received ones."""
    local_port: int = 0
    """UDP port of this end, where a core has several (switch_agg.switchml); 0: it has one."""


class Core(Protocol):
    """One end of a protocol."""

    def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
        """These have come."""

    def transmit(self, now_s: float) -> Sequence[Datagram]:
        """What to send now, in this order; empty when there is nothing."""

    def deadline_s(self) -> float | None:
        """When :meth:`expire` wants to be called; None: not before something is received."""

    def expire(self, now_s: float) -> None:
        """The deadline has passed."""
