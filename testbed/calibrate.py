"""Measures every link before a run: its rate with a real TCP stream, its delay with user-space timestamps.

A link that does not do what it says ends the run (CalibrationError, exit 4). Sockets of both ends are made inside the
two namespaces and driven from this process, so both ends read one clock and each direction's delay is measured
alone. `ping` would not do: its kernel timestamps are taken before netfilter and miss a delay stage at the receiver.

Other load on the machine moves a measurement both ways (a receiver that runs late makes a link look slow, and one
that begins late finds a backlog and makes it look fast), so one that misses is repeated and the closest one counts: a
link that is really wrong is wrong every time.
"""

import math
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from testbed.deploy import Deployment
from testbed.errors import CalibrationError
from testbed.links.direction import Direction
from testbed.links.tc import MTU
from transports.channels.tcp import Tcp
from transports.units import format_size

RATE_TOLERANCE: Final = 0.02
"""Of TCP goodput against rate x 1448/1514."""
RATE_EXCESS_TOLERANCE: Final = 0.01
"""A shaper never gives more than its rate; a link that does flatters every result."""
DELAY_TOLERANCE: Final = 0.05
DELAY_FLOOR_S: Final = 300e-6
"""Two wake-ups and the serialisation of a small packet; more on a busy machine, hence the attempts."""
NUM_ATTEMPTS: Final = 4
NUM_ECHOES: Final = 25
WARM_UP_S: Final = 0.1
MIN_WINDOW_S: Final = 0.25
MIN_WINDOW_BYTES: Final = 1_500_000
"""A thousand packets, so that one more or less is 0.1 %."""
MAX_SUPERFRAME_BYTES: Final = 65_536
SIGNAL_LATENCY_S: Final = 0.2
MAX_PARALLEL_BPS: Final = 2e9
"""What two cores push and receive in Python beside a shaper without becoming the bottleneck."""

_AWAKE_S: Final = 0.5e-3
"""Before and after a packet is due."""

_STAMP: Final = struct.Struct("=Qd")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One direction of one link, as measured."""

    link: str
    sender: str
    receiver: str
    goodput_bps: float
    """TCP payload per second."""
    rate_bps: float
    """The goodput as line rate: times 1514/1448."""
    delay_s: float
    """One way, median."""
    congestion: str
    """What the kernel used on the measuring stream."""
    num_attempts: int


def goodput_fraction() -> float:
    """TCP payload per byte that the shaper counts: 1448/1514 at MTU 1500."""
    return Tcp().goodput_fraction(MTU)


def measure_rate(
    deployment: Deployment,
    direction: Direction,
    *,
    window_s: float | None = None,
    stopping: threading.Event | None = None,
) -> tuple[float, str]:
    """TCP goodput in bit/s at the receiver over the window, after slow start, and the congestion control used.

    Raises CalibrationError when `stopping` is set meanwhile: a window on a slow link is many seconds long.
    """
    window_s = window_s or max(MIN_WINDOW_S, MIN_WINDOW_BYTES * 8 / direction.rate_bps)
    sending, receiving = deployment.hosts[direction.sender.node], deployment.hosts[direction.receiver.node]
    with ExitStack() as stack:
        with receiving.entered():
            listener = stack.enter_context(socket.create_server((direction.receiver.address, 0)))
        with sending.entered():
            out = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        limit_s = WARM_UP_S + window_s + 10 + _slow_start_s(direction)
        for end in (listener, out):
            end.settimeout(limit_s)
        out.bind((direction.sender.address, 0))
        out.connect(listener.getsockname())
        taken = stack.enter_context(listener.accept()[0])
        taken.settimeout(limit_s)
        congestion = out.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
        stop = threading.Event()

        def pump() -> None:
            block = bytes(1 << 17)
            try:
                while not stop.is_set():
                    out.send(block)
            except OSError:
                return  # the receiver has seen enough

        pumping = threading.Thread(target=pump, name="calibrate-send", daemon=True)
        pumping.start()
        try:
            goodput_bps = _receive_rate(taken, WARM_UP_S + _slow_start_s(direction), window_s, stopping)
        finally:
            stop.set()
            taken.close()
            out.close()
            pumping.join(limit_s)
    return goodput_bps, congestion


def _slow_start_s(direction: Direction) -> float:
    """What TCP needs, from ten segments, to have a bandwidth-delay product under way, and a few round trips more."""
    round_trip_s = 2 * direction.delay_s
    in_flight_bytes = direction.rate_bps / 8 * round_trip_s
    return round_trip_s * (4 + math.log2(max(1.0, in_flight_bytes / (10 * MTU))))


def _receive_rate(taken: socket.socket, warm_up_s: float, window_s: float, stopping: threading.Event | None) -> float:
    """Payload over time between two arrivals, counting what arrived with the first but not with the last.

    HTB lets a whole super-frame go and then waits for as long as it takes at the rate, so the time from one arrival to
    the next belongs to the earlier one; at 10 Mbit/s one super-frame more or less is several percent.
    """
    buffer = bytearray(1 << 18)
    begun_s = time.monotonic()
    first_s: float | None = None
    received = 0
    while True:
        count = taken.recv_into(buffer)
        now_s = time.monotonic()
        if count == 0:
            raise CalibrationError("the measuring stream ended early")
        if stopping is not None and stopping.is_set():
            raise CalibrationError("the measurement was stopped")
        if first_s is None:
            # More than one super-frame at once is a backlog: this thread is late, and so would be its first time stamp.
            late = count > MAX_SUPERFRAME_BYTES and now_s - begun_s < 2 * warm_up_s
            if now_s - begun_s < warm_up_s or late:
                continue
            first_s = now_s
        elif now_s - first_s >= window_s:
            return received * 8 / (now_s - first_s)
        received += count


def measure_delay(deployment: Deployment, direction: Direction) -> float:
    """One-way delay in seconds of small UDP packets, median, window 1, by user-space timestamps."""
    sending, receiving = deployment.hosts[direction.sender.node], deployment.hosts[direction.receiver.node]
    with ExitStack() as stack:
        with receiving.entered():
            target = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with sending.entered():
            source = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        target.bind((direction.receiver.address, 0))
        target.settimeout(1.0 + 4 * direction.delay_s)
        source.bind((direction.sender.address, 0))
        source.connect(target.getsockname())
        delays_s: list[float] = []
        for number in range(NUM_ECHOES * 4):
            source.send(_STAMP.pack(number, time.monotonic()))
            try:
                echoed, sent_s = _STAMP.unpack(_receive_awake(target, time.monotonic() + direction.delay_s))
            except TimeoutError:
                if direction.loss == 0:
                    raise CalibrationError(f"{direction.link}: a packet was lost on a link without loss") from None
                continue
            if echoed == number:
                delays_s.append(time.monotonic() - sent_s)
            if len(delays_s) == NUM_ECHOES:
                break
        if not delays_s:
            raise CalibrationError(f"{direction.link}: no packet arrived from {direction.sender.node}")
    return statistics.median(delays_s)


def _receive_awake(target: socket.socket, expected_s: float) -> bytes:
    """The next packet, looked for without sleeping when it is due: waking up is this thread's delay, not the link's."""
    time.sleep(max(0.0, expected_s - time.monotonic() - _AWAKE_S))
    while time.monotonic() < expected_s + _AWAKE_S:
        try:
            return target.recv(64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            continue
    return target.recv(64)


def measure(deployment: Deployment, direction: Direction, *, stopping: threading.Event | None = None) -> Measurement:
    """Rate and delay of one direction, repeated while they are not what was asked; the closest count."""
    asked_bps = direction.rate_bps * goodput_fraction()
    goodput_bps, delay_s, congestion, num_attempts = 0.0, float("inf"), "", 0
    while num_attempts < NUM_ATTEMPTS and not (
        _rate_holds(goodput_bps, asked_bps) and _delay_holds(direction, delay_s)
    ):
        num_attempts += 1
        if not _rate_holds(goodput_bps, asked_bps):
            measured_bps, congestion = measure_rate(deployment, direction, stopping=stopping)
            goodput_bps = min(goodput_bps, measured_bps, key=lambda bps: abs(bps - asked_bps))
        if not _delay_holds(direction, delay_s):
            delay_s = min(delay_s, measure_delay(deployment, direction), key=lambda s: abs(s - direction.delay_s))
    return Measurement(
        link=direction.link,
        sender=direction.sender.node,
        receiver=direction.receiver.node,
        goodput_bps=goodput_bps,
        rate_bps=goodput_bps / goodput_fraction(),
        delay_s=delay_s,
        congestion=congestion,
        num_attempts=num_attempts,
    )


def _rate_holds(goodput_bps: float, asked_bps: float) -> bool:
    return 1 - RATE_TOLERANCE <= goodput_bps / asked_bps <= 1 + RATE_EXCESS_TOLERANCE


def _delay_holds(direction: Direction, delay_s: float) -> bool:
    over_s = delay_s - direction.delay_s
    return -DELAY_TOLERANCE * direction.delay_s <= over_s <= max(DELAY_FLOOR_S, DELAY_TOLERANCE * direction.delay_s)


def judge(deployment: Deployment, measurements: Sequence[Measurement]) -> list[str]:
    """What is wrong with the links, one line each; empty when all is as asked."""
    found: list[str] = []
    asked = {(direction.sender.node, direction.receiver.node): direction for direction in deployment.plan.directions}
    for measured in measurements:
        direction = asked[measured.sender, measured.receiver]
        name = f"{measured.sender} -> {measured.receiver}"
        error = measured.rate_bps / direction.rate_bps - 1
        # Loss keeps a TCP stream from filling the link; only an excess is then a fault of the link.
        if error > RATE_EXCESS_TOLERANCE or (error < -RATE_TOLERANCE and direction.loss == 0):
            found.append(
                f"{name}: measured {measured.rate_bps / 1e6:.2f} Mbit/s, asked for {direction.rate_bps / 1e6:.2f} "
                f"({error:+.1%}; allowed {-RATE_TOLERANCE:+.0%} to {RATE_EXCESS_TOLERANCE:+.0%})"
                + (_queue_hint(direction) if error < 0 else "")
            )
        if not _delay_holds(direction, measured.delay_s):
            found.append(
                f"{name}: measured a delay of {measured.delay_s * 1e6:.0f} us, asked for {direction.delay_s * 1e6:.0f}"
            )
        if measured.congestion != deployment.plan.congestion:
            found.append(f"{name}: TCP used {measured.congestion}, asked for {deployment.plan.congestion}")
    return found


def _queue_hint(direction: Direction) -> str:
    """One TCP stream fills a link through a loss only if the queue holds what a round trip has under way."""
    under_way_bytes = direction.rate_bps / 8 * 2 * direction.delay_s
    queue_bytes = direction.asked.queue_bytes
    if queue_bytes >= under_way_bytes:
        return ""
    return (
        f"; a round trip has {format_size(int(under_way_bytes))} under way and the queue holds only "
        f"{format_size(queue_bytes)}: raise link.queue"
    )


def calibrate(deployment: Deployment, *, on_link: Callable[[str], None] = lambda _: None) -> list[Measurement]:
    """Measure every direction of every link. Raises CalibrationError naming each that is not what was asked."""
    rate_bps = max(direction.rate_bps for direction in deployment.plan.directions)
    num_parallel = max(1, min(4, int(MAX_PARALLEL_BPS // rate_bps)))

    stopping = threading.Event()

    def one(direction: Direction) -> Measurement:
        deployment.check()
        try:
            measured = measure(deployment, direction, stopping=stopping)
        except (OSError, CalibrationError):
            deployment.check()  # a dead delay daemon explains every silence
            raise
        on_link(direction.link)
        return measured

    # A link's two directions never run at once: the acknowledgements of one would count against the other.
    uplinks = deployment.plan.directions[::2]
    downlinks = deployment.plan.directions[1::2]
    with ThreadPoolExecutor(num_parallel, thread_name_prefix="calibrate") as pool:
        try:
            measurements = []
            for directions in (uplinks, downlinks):
                futures = [pool.submit(one, direction) for direction in directions]
                # In short waits: a signal that another thread took is handled when this one next wakes.
                while wait(futures, timeout=SIGNAL_LATENCY_S, return_when=FIRST_EXCEPTION).not_done:
                    for future in futures:
                        if future.done():
                            future.result()
                measurements += [future.result() for future in futures]
        except BaseException:
            stopping.set()  # Ctrl-C, or one that failed: leaving the pool waits for those under way
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    wrong = judge(deployment, measurements)
    if wrong:
        raise CalibrationError(
            "links do not do what they say:\n  " + "\n  ".join(wrong) + "\n"
            "if other programs load this machine, stop them; else ask for less than it can carry"
        )
    return measurements
