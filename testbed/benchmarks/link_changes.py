"""How soon a stream follows its link to another rate, and whether a change drops anything.

A super-frame occupies a slow link for many milliseconds (64 KiB at 100 Mbit/s: 5 ms), so its bytes are spread over the
time until the next arrives before anything is counted in bins.
"""

import math
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from testbed.calibration.calibrate import flow_of
from testbed.calibration.queues import num_drops
from testbed.calibration.streams import streaming
from testbed.deployment.deployment import Deployment
from testbed.deployment.live_links import LiveLinks
from testbed.errors import CalibrationError
from testbed.experiment.changes import LinkChange
from testbed.experiment.link import parse_override
from testbed.links.htb import goodput_fraction
from testbed.plan.direction import Direction
from testbed.system.kernel import realtime
from transports.units import format_rate

BIN_S: Final = 0.02
WINDOW_S: Final = 0.06
TOLERANCE: Final = 0.1
"""Of the new rate."""
HELD_S: Final = 0.1
"""So long the new rate has to last to count as reached."""
_WARM_UP_S: Final = 1.0
_SETTLE_S: Final = 0.6
"""How long a stream is watched after each change."""
_TIMEOUT_S: Final = 10.0
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangesMeasurement:
    """What happened to one direction's traffic as its links changed."""

    settling_s: Sequence[float]
    """Of each change: until the new rate was there, see :func:`settling_s`; inf: it never was."""
    taking_s: Sequence[float]
    """Of each change: until the kernel, or the relay, had taken it and it was read back."""
    num_drops: int
    """Packets that port, relay and delay line dropped meanwhile."""


def settling_s(
    at_s: npt.NDArray[np.float64], arrived_bytes: npt.NDArray[np.float64], *, changed_s: float, rate_bps: float
) -> float:
    """From a change to the end of the first WINDOW_S in which the rate is within TOLERANCE of the new one, and then
    stays there for HELD_S; inf if there is none.

    `at_s` are the moments of arrivals (CLOCK_MONOTONIC), ascending, and `arrived_bytes` how many bytes came with each;
    `rate_bps` is of what is counted there. Both arrays have the shape (number of arrivals,).
    """
    before = np.concatenate([[0.0], np.cumsum(arrived_bytes)[:-1]])
    num_held = 1 + round(HELD_S / BIN_S)
    begins_s = np.arange(changed_s, at_s[-1] - WINDOW_S, BIN_S)
    rates_bps = 8 * (np.interp(begins_s + WINDOW_S, at_s, before) - np.interp(begins_s, at_s, before)) / WINDOW_S
    right = np.abs(rates_bps / rate_bps - 1) <= TOLERANCE
    for first in range(len(right) - num_held + 1):
        if right[first : first + num_held].all():
            return float(begins_s[first] + WINDOW_S - changed_s)
    return math.inf


def measure_changes(deployment: Deployment, direction: Direction, rates_bps: Sequence[float]) -> ChangesMeasurement:
    """Give the direction one rate after the other, as `testbed link set` does, while a TCP stream fills it.

    Its queue has to hold all that TCP may have under way, so that nothing but a change drops a packet. Raises
    CalibrationError when the stream dries up.
    """
    with (
        closing(LiveLinks(deployment)) as links,
        streaming(deployment, [flow_of(direction)], timeout_s=_TIMEOUT_S) as (stream,),
    ):
        links.accept(lambda _: None)
        arrivals: list[tuple[float, int]] = []
        stop = threading.Event()
        reader = threading.Thread(target=_read, args=(stream.taken, arrivals, stop), name="stream-receive", daemon=True)
        reader.start()
        time.sleep(_WARM_UP_S)
        dropped_before = _dropped(deployment, direction)
        requested_s, taken_s = [], []
        for rate_bps in rates_bps:
            settings = parse_override({"rate": format_rate(rate_bps)})
            requested_s.append(time.monotonic())
            links.change(
                LinkChange(
                    at_s=0.0, link="->".join(direction.hop), settings=settings, source="manual", key="bench links"
                )
            )
            taken_s.append(time.monotonic())
            time.sleep(_SETTLE_S)
        dropped = _dropped(deployment, direction) - dropped_before
        stop.set()
        reader.join(_TIMEOUT_S)
    if not arrivals or arrivals[-1][0] < taken_s[-1]:
        raise CalibrationError(f"{direction.name}: the measuring stream dried up")
    at_s, arrived_bytes = np.asarray(arrivals, dtype=np.float64).T
    ends_s = [*requested_s[1:], at_s[-1]]
    return ChangesMeasurement(
        settling_s=[
            settling_s(
                at_s[at_s <= end_s],
                arrived_bytes[at_s <= end_s],
                changed_s=changed_s,
                rate_bps=rate_bps * goodput_fraction(),
            )
            for changed_s, end_s, rate_bps in zip(requested_s, ends_s, rates_bps, strict=True)
        ],
        taking_s=[taken - requested for taken, requested in zip(taken_s, requested_s, strict=True)],
        num_drops=dropped,
    )


def _read(taken: socket.socket, arrivals: list[tuple[float, int]], stop: threading.Event) -> None:
    buffer = bytearray(_BLOCK_BYTES)
    with realtime():
        while not stop.is_set():
            try:
                count = taken.recv_into(buffer, _BLOCK_BYTES, socket.MSG_TRUNC)
            except BlockingIOError:
                return
            if count == 0:
                return
            arrivals.append((time.monotonic(), count))


def _dropped(deployment: Deployment, direction: Direction) -> int:
    """By the port's queue, and by what delays."""
    delayed = deployment.delay_counters().get((direction.link, direction.sender.node))
    return num_drops(deployment, direction) + (delayed.num_dropped if delayed else 0)
