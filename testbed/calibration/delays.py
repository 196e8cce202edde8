"""One-way delays of small packets, by user-space time stamps on one clock.

Sockets of both ends are made inside the two namespaces and driven from one thread, which is awake when a packet is
due and runs before ordinary programs: its own waking up, and the time slice of whatever else runs, would otherwise be
measured as the link's (1.7 to 2.8 ms of a 99th percentile on a busy machine, against 0.2 ms). `ping` would not do:
its kernel time stamps are taken before netfilter and miss a delay stage at the receiver.
"""

import random
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from testbed.deployment.deployment import Deployment
from testbed.errors import CalibrationError
from testbed.plan.direction import Direction
from testbed.system.kernel import realtime

SPACING_S: Final = 250e-6
"""Between two packets, of whichever direction, on average.

The gaps are random: with even ones every packet of a 1 ms delay would be due just when another wakes the delay line,
and none of a 200 us delay (RFC 2330, section 11.1.1, on sampling that falls into step with what it measures).
"""
_AWAKE_S: Final = 0.5e-3
"""Before and after a packet is due."""
_PATIENCE_S: Final = 1.0
_STAMP: Final = struct.Struct("=Id")


def one_way_delays_s(
    deployment: Deployment, directions: Sequence[Direction], *, num_packets: int, spacing_s: float = SPACING_S
) -> list[list[float]]:
    """Delays of the packets that arrived, for each direction; they are sent in turns, one every `spacing_s`.

    Raises CalibrationError when a link that loses nothing lost one, or nothing arrived at all.
    """
    with ExitStack() as stack:
        ends = [_opened(deployment, direction, stack) for direction in directions]
        with realtime():
            delays_s = _exchange(directions, ends, num_packets, spacing_s)
    for direction, measured in zip(directions, delays_s, strict=True):
        name = f"{direction.sender.node} -> {direction.receiver.node}"
        if not measured:
            raise CalibrationError(f"{name}: no packet of {num_packets} arrived")
        if direction.loss == 0 and len(measured) < num_packets:
            raise CalibrationError(f"{name}: a packet was lost on a link without loss")
    return delays_s


def _opened(deployment: Deployment, direction: Direction, stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    with deployment.hosts[direction.receiver.node].entered():
        target = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with deployment.hosts[direction.sender.node].entered():
        source = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    target.bind((direction.receiver.address, 0))
    target.setblocking(False)
    source.bind((direction.sender.address, 0))
    source.connect(target.getsockname())
    return source, target


def _exchange(
    directions: Sequence[Direction],
    ends: Sequence[tuple[socket.socket, socket.socket]],
    num_packets: int,
    spacing_s: float,
) -> list[list[float]]:
    delays_s: list[list[float]] = [[] for _ in directions]
    pending: dict[int, tuple[int, float]] = {}  # by number, in the order sent: direction, when it is due
    poll = select.poll()
    for _, target in ends:
        poll.register(target, select.POLLIN)
    by_descriptor = {target.fileno(): (index, target) for index, (_, target) in enumerate(ends)}
    total, sent = num_packets * len(directions), 0
    gaps = random.Random(0)
    next_s = time.monotonic()
    while sent < total or pending:
        now_s = time.monotonic()
        if sent < total and now_s >= next_s:
            index = sent % len(directions)
            pending[sent] = index, now_s + directions[index].delay_s
            ends[index][0].send(_STAMP.pack(sent, time.monotonic()))
            sent += 1
            next_s = max(next_s + gaps.uniform(0.5, 1.5) * spacing_s, now_s)
        due_s = min((due for _, due in pending.values()), default=float("inf"))
        if due_s + _PATIENCE_S < now_s:  # lost
            pending = {number: entry for number, entry in pending.items() if entry[1] + _PATIENCE_S >= now_s}
            continue
        next_event_s = min(next_s if sent < total else float("inf"), due_s - _AWAKE_S)
        overdue = now_s > due_s + _AWAKE_S
        # Spinning while one is due; else asleep until the next thing to do, in the kernel's hands.
        wait_s = 1e-3 if overdue else max(0.0, next_event_s - now_s)
        if wait_s > 0 and not overdue:
            time.sleep(wait_s)
        for descriptor, _ in poll.poll(wait_s * 1e3 if overdue else 0):
            index, target = by_descriptor[descriptor]
            number, sent_s = _STAMP.unpack(target.recv(64))
            arrived_s = time.monotonic()
            if pending.pop(number, None) is not None:  # else a duplicate
                delays_s[index].append(arrived_s - sent_s)
    return delays_s
