"""How many packets a link loses: numbered datagrams, counted at the other end, with a confidence interval."""

import math
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from testbed.deployment.deployment import Deployment
from testbed.plan.direction import Direction

DATAGRAM_BYTES: Final = 100
WIRE_BYTES: Final = DATAGRAM_BYTES + 14 + 20 + 8
"""With Ethernet, IPv4 and UDP headers."""
MAX_PACKETS_PER_S: Final = 20_000
"""What one thread sends and a delay line takes without anything else dropping a packet."""
EXPECTED_LOSSES: Final = 400
"""So many give the share to 10 % with 95 % confidence (1.96 / sqrt(400))."""
MIN_PACKETS: Final = 1_000
_QUIET_S: Final = 0.3
SO_RCVBUFFORCE: Final = 33
"""Of linux/socket.h; Python has no name for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossMeasurement:
    """The packets sent and lost on one direction."""

    requested: float
    num_packets: int
    num_lost: int
    low: float
    """Bounds of the loss probability at the confidence of `Z`."""
    high: float

    @property
    def share(self) -> float:
        """The lost packets' share of those sent."""
        return self.num_lost / self.num_packets

    @property
    def holds(self) -> bool:
        """Whether what was requested lies between the bounds."""
        return self.low <= self.requested <= self.high


def wilson(num_lost: int, num_packets: int, *, z: float) -> tuple[float, float]:
    """The score interval of a binomial share (Wilson, JASA 22, 1927); z is 2.576 for 99 % confidence."""
    share, square = num_lost / num_packets, z * z
    center = (share + square / (2 * num_packets)) / (1 + square / num_packets)
    half = z / (1 + square / num_packets) * math.sqrt(share * (1 - share) / num_packets + square / (4 * num_packets**2))
    return max(0.0, center - half), min(1.0, center + half)


def num_packets_for(loss: float, rate_bps: float, *, limit_s: float) -> int:
    """As many as tell the loss to 10 %, or as many as the time allows."""
    return max(MIN_PACKETS, min(math.ceil(EXPECTED_LOSSES / loss), int(limit_s * _packets_per_s(rate_bps))))


def _packets_per_s(rate_bps: float) -> float:
    """At most half of the link, so that its queue drops nothing."""
    return min(MAX_PACKETS_PER_S, rate_bps / 2 / (8 * WIRE_BYTES))


def measure_loss(
    deployment: Deployment, direction: Direction, *, requested: float, num_packets: int, z: float
) -> LossMeasurement:
    """Send numbered datagrams over one direction and count those that arrive, however late or often."""
    with ExitStack() as stack:
        with deployment.hosts[direction.receiver.node].entered():
            target = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with deployment.hosts[direction.sender.node].entered():
            source = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        target.bind((direction.receiver.address, 0))
        target.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 4096 * MIN_PACKETS)
        target.setblocking(False)
        source.bind((direction.sender.address, 0))
        source.connect(target.getsockname())
        arrived: set[bytes] = set()

        def drain() -> bool:
            before = len(arrived)
            try:
                while True:
                    arrived.add(target.recv(8))
            except BlockingIOError:
                return len(arrived) > before

        padding = bytes(DATAGRAM_BYTES - 8)
        per_s = _packets_per_s(direction.rate_bps)
        begun_s = time.monotonic()
        for number in range(num_packets):
            source.send(number.to_bytes(8) + padding)
            if number % 20 == 19:
                time.sleep(max(0.0, begun_s + number / per_s - time.monotonic()))
                drain()
        quiet_s = time.monotonic() + direction.delay_s + _QUIET_S
        while len(arrived) < num_packets and time.monotonic() < quiet_s:
            if drain():
                quiet_s = time.monotonic() + direction.delay_s + _QUIET_S
            time.sleep(1e-3)
    num_lost = num_packets - len(arrived)
    low, high = wilson(num_lost, num_packets, z=z)
    return LossMeasurement(requested=requested, num_packets=num_packets, num_lost=num_lost, low=low, high=high)
