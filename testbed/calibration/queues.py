"""How much a full queue delays: more UDP than the link carries, and the time stamps of what arrives.

The delay that the queue adds is its bytes x 8 / rate. Arrival is stamped by the kernel at the interface, before a delay
stage and whatever the receiver does, and the same link's delay while its queue is empty is taken off.
"""

import math
import socket
import statistics
import struct
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple

from testbed.deployment.deployment import Deployment
from testbed.errors import CalibrationError
from testbed.links.htb import CLASS_HANDLE
from testbed.plan.direction import Direction
from testbed.system.kernel import realtime

PACKET_BYTES: Final = 1514
"""As the queue counts a full packet: with its Ethernet header."""
_PAYLOAD_BYTES: Final = PACKET_BYTES - 14 - 20 - 8
_SEND_CALL_S: Final = 30e-6
"""What a call to send a datagram takes; larger sends (UDP_SEGMENT, udp(7)) keep up with faster links."""
_MAX_SEGMENTS: Final = 40
_MIN_SENDS: Final = 50
"""So many fill the queue, so that one more or less, which is what a full queue varies by, is 2 %."""
_EXCESS: Final = 2.0
"""Sent over what the link carries, at least."""
_FILL_S: Final = 0.1
"""In which a queue that takes longer to drain is filled, where calls to send keep up with that."""
_SENDS_PER_ROUND: Final = 8
_FILLINGS: Final = 3.0
_FULL_S: Final = 0.5
"""For how long a queue is kept full, at most: hundreds of packets at 5 Mbit/s; a queue may take seconds to drain."""
_MAX_TRIES: Final = 5
"""To fill a queue and to see something come through."""
_SILENCE_S: Final = 0.1
"""When nothing has arrived for so long, or for as long as four packets take, the queue is empty."""
_READS_PER_ROUND: Final = 2
"""A sample of what arrives is enough; its time stamps are the kernel's, so it may wait in the receiver's buffer, and
what finds no place there is of no interest."""
# Of linux/socket.h and udp.h; Python has no names for them.
SO_SNDBUFFORCE: Final = 32
SO_RCVBUFFORCE: Final = 33
SO_TIMESTAMPNS: Final = 35
UDP_SEGMENT: Final = 103
_TIMESPEC: Final = struct.Struct("@ll")
_STAMP: Final = struct.Struct("=d")


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueMeasurement:
    """How long one direction's full queue delays a packet."""

    queue_bytes: int
    added_s: float
    """By the full queue, median."""
    expected_s: float
    num_drops: int
    """Packets, or super-packets of a few, that the port counted as dropped meanwhile."""

    @property
    def error(self) -> float:
        """Relative."""
        return self.added_s / self.expected_s - 1


def fill_s(direction: Direction) -> float:
    """How long a full queue takes to drain."""
    return direction.requested.queue_bytes * 8 / direction.rate_bps


def _filling_excess(direction: Direction, num_segments: int) -> float:
    """How many times the link's rate to send while its queue fills, in calls of so many segments."""
    sent_bps = num_segments * PACKET_BYTES * 8 / _SEND_CALL_S
    return max(_EXCESS, min(1 + fill_s(direction) / _FILL_S, sent_bps / direction.rate_bps))


def num_drops(deployment: Deployment, direction: Direction) -> int:
    """Packets that found the direction's queue full since it was made. Raises CalibrationError if nobody counts."""
    relayed = deployment.relay_counters().get((direction.link, direction.sender.node))
    if relayed is not None:
        return relayed.num_drops
    with deployment.monitor(direction.sender.node) as monitor:
        index = monitor.interfaces().get(direction.sender.interface, 0)
        for item in monitor.htb_classes(index):
            if item.handle == CLASS_HANDLE:
                return item.num_drops
    raise CalibrationError(f"{direction.name}: its shaper is gone")


def measure_queue(deployment: Deployment, direction: Direction) -> QueueMeasurement:
    """Keep the queue of one direction full for three times as long as it takes to drain, or half a second.

    Raises CalibrationError where again and again nothing of it arrives: a process that has no core for so long sends
    nothing while the queue is full.
    """
    for _ in range(_MAX_TRIES):
        filling = _fill(deployment, direction)
        if filling.full_s and filling.idle_s:
            return QueueMeasurement(
                queue_bytes=direction.requested.queue_bytes,
                added_s=statistics.median(filling.full_s) - statistics.median(filling.idle_s),
                expected_s=fill_s(direction),
                num_drops=filling.num_drops,
            )
    raise CalibrationError(
        f"{direction.name}: its queue was filled {_MAX_TRIES} times, and nothing that was sent while it was full "
        "arrived; run again when this machine has cores to spare"
    )


class _Filling(NamedTuple):
    """What became of the datagrams."""

    idle_s: list[float]
    """How long each took while the queue was empty."""
    full_s: list[float]
    """And while it was full."""
    num_drops: int


def _fill(deployment: Deployment, direction: Direction) -> _Filling:
    sender = direction.sender
    queue_bytes, drain_s = direction.requested.queue_bytes, fill_s(direction)
    num_segments = math.ceil(_EXCESS * direction.rate_bps * _SEND_CALL_S / (8 * PACKET_BYTES))
    num_segments = min(num_segments, _MAX_SEGMENTS, max(1, queue_bytes // (_MIN_SENDS * PACKET_BYTES)))
    with ExitStack() as stack:
        with deployment.hosts[direction.receiver.node].entered():
            target = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with deployment.hosts[sender.node].entered():
            source = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        target.bind((direction.receiver.address, 0))
        target.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        target.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 17)
        target.setblocking(False)
        source.bind((sender.address, 0))
        # What waits in the queue is charged to the sender: it must not be held back before the queue is full.
        source.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, min(2**30, 8 * queue_bytes + (1 << 20)))
        if num_segments > 1:
            source.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, _PAYLOAD_BYTES)
        source.setblocking(False)
        source.connect(target.getsockname())
        padding = bytes(_PAYLOAD_BYTES - _STAMP.size)

        def send(segments: int) -> None:
            try:
                source.send((_STAMP.pack(time.time()) + padding) * segments)
            except (BlockingIOError, ConnectionRefusedError):
                return

        idle_s: list[float] = []
        for _ in range(20):
            send(1)
            time.sleep(direction.delay_s + 2 * PACKET_BYTES * 8 / direction.rate_bps + 0.5e-3)
            idle_s += [delay_s for _, delay_s in _arrived(target)]
        drops_before = num_drops(deployment, direction)
        begun_s = time.time()
        # Sent at so many times the rate, the queue fills within drain_s / (excess - 1).
        excess = _filling_excess(direction, num_segments)
        full_s = begun_s + drain_s / (excess - 1)
        full: list[float] = []
        # Paced, so that nobody else on this core starves; where the pace cannot be kept, flat out.
        round_s = _SENDS_PER_ROUND * num_segments * PACKET_BYTES * 8 / direction.rate_bps
        next_s = begun_s
        with realtime():
            while (now_s := time.time()) < full_s + min(_FILLINGS * drain_s, _FULL_S):
                time.sleep(max(0.0, next_s - now_s))
                next_s = max(next_s + round_s / (excess if now_s < full_s else _EXCESS), now_s)
                for _ in range(_SENDS_PER_ROUND):
                    send(num_segments)
                full += [delay_s for sent_s, delay_s in _arrived(target, _READS_PER_ROUND) if sent_s > full_s]
        silence_s = max(_SILENCE_S, 4 * PACKET_BYTES * 8 / direction.rate_bps)
        heard_s = time.time() + direction.delay_s
        deadline_s = heard_s + 2 * drain_s + silence_s
        while (now_s := time.time()) < min(deadline_s, heard_s + silence_s):
            arrived = _arrived(target)
            full += [delay_s for sent_s, delay_s in arrived if sent_s > full_s]
            heard_s = max(heard_s, now_s) if arrived else heard_s
            time.sleep(1e-3)
        dropped = num_drops(deployment, direction) - drops_before
    return _Filling(idle_s, full, dropped)


def _arrived(target: socket.socket, limit: int = 1_000_000) -> list[tuple[float, float]]:
    """When each datagram that waits was sent, and how long it took; at most `limit` of them."""
    found: list[tuple[float, float]] = []
    for _ in range(limit):
        try:
            data, messages, _, _ = target.recvmsg(_PAYLOAD_BYTES, socket.CMSG_SPACE(_TIMESPEC.size))
        except BlockingIOError:
            break
        (sent_s,) = _STAMP.unpack_from(data)
        for _, kind, value in messages:
            if kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = _TIMESPEC.unpack(value)
                found.append((sent_s, seconds + nanoseconds * 1e-9 - sent_s))
    return found
