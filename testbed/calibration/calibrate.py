"""Measures the links before a run: that they are what was requested, or the run ends (CalibrationError, exit 4).

Every setting of every link has been read back when this begins. Then

- every direction of every link: its one-way delay;
- every *class* of link (directions with the same configuration, between the same kinds of nodes): its rate with a real
  TCP stream, how much a full queue delays, and its loss with a confidence interval.

Queue and loss take seconds, so they may come from a cache of what was measured for the same class, kernel, processor
and code. What was measured on which link, when, and what came from the cache, is in the record (`calibration.json`).

Other load on the machine moves a measurement up or down, so one that misses is repeated and the median of five counts:
see :mod:`testbed.calibration.attempts`.
"""

import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

from testbed.calibration.attempts import MAX_ATTEMPTS, Attempts, StealMeter
from testbed.calibration.cache import CalibrationCache, Mode
from testbed.calibration.delays import one_way_delays_s
from testbed.calibration.losses import LossMeasurement, measure_loss, num_packets_for
from testbed.calibration.queues import PACKET_BYTES, QueueMeasurement, fill_s, measure_queue
from testbed.calibration.streams import WARM_UP_S, Flow, receive_rate_bps, streaming
from testbed.calibration.tolerances import (
    QUEUE_TOLERANCE_PACKETS,
    Calibration,
    ClassMeasurement,
    Dated,
    DelayMeasurement,
    Measurement,
    RateMeasurement,
    delay_holds,
    judge,
    link_class,
    loss_holds,
    queue_holds,
    rate_holds,
)
from testbed.deployment.deployment import Deployment
from testbed.errors import CalibrationError
from testbed.experiment.link import MTU, GilbertElliott, LinkSpec
from testbed.links.htb import goodput_fraction
from testbed.plan.direction import Direction
from transports.units import format_rate, format_time

MIN_QUEUE_PACKETS: Final = 4 * QUEUE_TOLERANCE_PACKETS
Z: Final = 3.89
"""99.99 % confidence: one link in ten thousand that is right is called wrong, and is then measured again."""
NUM_ECHOES: Final = 15
MIN_WINDOW_S: Final = 0.25
MIN_WINDOW_BYTES: Final = 750_000
"""Five hundred packets, so that one more or less is 0.2 %."""
LOSS_LIMIT_S: Final = 2.0
"""For counting losses of one class; the interval says how well they are known."""
MIN_FILL_S: Final = 2e-3
"""A queue that drains faster cannot be distinguished from a late wake-up."""
MAX_FILL_S: Final = 2.0
"""A queue that takes longer to fill is not worth the wait before every run."""
SIGNAL_LATENCY_S: Final = 0.2
MAX_PARALLEL_BPS: Final = 2e9
"""What two cores push and receive beside a shaper without becoming the bottleneck."""

Result = TypeVar("Result")
Value = TypeVar("Value", LossMeasurement, QueueMeasurement)


def measure_rate(
    deployment: Deployment,
    direction: Direction,
    *,
    window_s: float | None = None,
    stopping: threading.Event | None = None,
) -> tuple[float, str]:
    """TCP goodput in bit/s at the receiver over the window, after slow start, and the congestion control used; where
    packets are lost or overtake each other, the payload that arrives, in whatever order.

    Raises CalibrationError when `stopping` is set meanwhile: a window on a slow link is many seconds long.
    """
    requested = direction.requested
    window_s = window_s or max(MIN_WINDOW_S, _window_bytes(requested) * 8 / direction.rate_bps)
    round_trip_s = direction.delay_s + deployment.directions[direction.hop[::-1]].delay_s
    warm_up_s = WARM_UP_S + _slow_start_s(direction.rate_bps, round_trip_s)
    with streaming(deployment, [flow_of(direction)], timeout_s=warm_up_s + window_s + 10) as (stream,):
        rate_bps = receive_rate_bps(
            stream.taken,
            warm_up_s=warm_up_s,
            window_s=window_s,
            # Copies are made behind the shaper, and counted where segments are.
            segment_bytes=stream.segment_bytes / (1 + requested.duplicate) if requested.has_gaps else None,
            stopping=stopping,
        )
        return rate_bps, stream.congestion


def _window_bytes(requested: LinkSpec) -> float:
    """Where copies are among what is counted, so many that three standard deviations of their number are a hundredth of
    all packets."""
    share = requested.duplicate if requested.has_gaps else 0.0
    return max(MIN_WINDOW_BYTES, MTU * 9 * share * (1 - share) / 0.01**2)


def flow_of(direction: Direction) -> Flow:
    """A stream over this direction alone."""
    sender, receiver = direction.sender, direction.receiver
    return Flow(
        source=sender.node, source_address=sender.address, target=receiver.node, target_address=receiver.address
    )


def _slow_start_s(rate_bps: float, round_trip_s: float) -> float:
    """What TCP needs, from ten segments, to have a bandwidth-delay product under way, and a few round trips more."""
    in_flight_bytes = rate_bps / 8 * round_trip_s
    return round_trip_s * (4 + math.log2(max(1.0, in_flight_bytes / (10 * MTU))))


def rate_of(
    deployment: Deployment, direction: Direction, *, stopping: threading.Event | None = None
) -> RateMeasurement:
    """The rate of one direction, repeated while it is not what was requested."""
    mtu = deployment.plan.experiment.mtu
    requested_bps = direction.rate_bps * goodput_fraction(mtu)
    # Chance keeps a TCP stream from filling the link, however often tried; without a rate there is nothing to meet.
    by_chance = direction.requested.draws or direction.requested.unshaped
    attempts = Attempts[tuple[float, str]](
        lambda measured: rate_holds(measured[0], requested_bps),
        lambda measured: measured[0],
        max_attempts=1 if by_chance else MAX_ATTEMPTS,
    )
    while not attempts.settled:
        steal = StealMeter()
        attempts.add(measure_rate(deployment, direction, stopping=stopping), steal_share=steal.share)
        if not attempts.settled:
            (stopping or threading.Event()).wait(attempts.pause_s)
    goodput_bps, congestion = attempts.value
    return RateMeasurement(
        goodput_bps=goodput_bps,
        congestion=congestion,
        attempts_bps=tuple(measured_bps for measured_bps, _ in attempts.measured),
        mtu=mtu,
    )


def delays_of(deployment: Deployment, directions: Sequence[Direction]) -> list[DelayMeasurement]:
    """Median one-way delay of each direction, repeated while it is not what was requested."""
    everyone = [Attempts[float](partial(delay_holds, direction), float) for direction in directions]
    while missed := [index for index, attempts in enumerate(everyone) if not attempts.settled]:
        time.sleep(max((everyone[index].pause_s for index in missed if everyone[index].measured), default=0.0))
        steal = StealMeter()
        measured = one_way_delays_s(deployment, [directions[index] for index in missed], num_packets=NUM_ECHOES)
        for index, delays_s in zip(missed, measured, strict=True):
            everyone[index].add(statistics.median(delays_s), steal_share=steal.share)
    return [DelayMeasurement(attempts.value, tuple(attempts.measured)) for attempts in everyone]


def representatives(classes: Mapping[str, Sequence[Direction]]) -> dict[str, Direction]:
    """The direction of each class whose rate stands for all: on links of their own while there are such, because a
    link's two directions are measured one after the other."""
    found: dict[str, Direction] = {}
    for name, members in classes.items():
        taken = {direction.link for direction in found.values()}
        found[name] = next((each for each in members if each.link not in taken), members[0])
    return found


class _Calibrator:
    def __init__(
        self, deployment: Deployment, mode: Mode, cache: CalibrationCache | None, on_link: Callable[[str], None]
    ) -> None:
        self._deployment = deployment
        self._plan = deployment.plan
        self._mode: Final = mode
        self._cache = cache
        self._on_link = on_link
        self._stopping = threading.Event()
        self._classes: dict[str, list[Direction]] = {}
        for direction in self._plan.directions:
            self._classes.setdefault(link_class(self._plan, direction), []).append(direction)

    def calibrate(self) -> Calibration:
        delays = self._watched(lambda: delays_of(self._deployment, self._plan.directions))
        dated: dict[str, tuple[RateMeasurement, Dated]] = {}
        for name in self._classes:
            entry = self._cached(name, "rate") if self._mode is Mode.CACHED else None
            if entry is not None:
                dated[name] = _rate(entry["value"]), _dated(entry)
        unknown = {name: members for name, members in self._classes.items() if name not in dated}
        standing = representatives(unknown)
        everyone = [each for members in unknown.values() for each in members]
        chosen = {each.hop for each in (everyone if self._mode is Mode.FULL else standing.values())}
        rates = self._rates([direction for direction in self._plan.directions if direction.hop in chosen])
        for name, direction in standing.items():
            rate = rates[direction.hop]
            dated[name] = rate, _now(direction)
            if rate_holds(rate.goodput_bps, direction.rate_bps * goodput_fraction(rate.mtu)):
                self._keep(name, "rate", asdict(rate), dated[name][1])
        links = []
        for direction, delay in zip(self._plan.directions, delays, strict=True):
            name = link_class(self._plan, direction)
            own = rates.get(direction.hop)
            rate, rate_dated = dated[name] if own is None else (own, _now(direction))
            links.append(Measurement.of(direction, name, delay, rate, rate_dated))
        classes = [self._class(name, members, *dated[name]) for name, members in self._classes.items()]
        return Calibration(mode=self._mode, links=links, classes=classes)

    def _class(
        self, name: str, members: Sequence[Direction], rate: RateMeasurement, rate_dated: Dated
    ) -> ClassMeasurement:
        direction = members[0]
        not_measured: dict[str, str] = {}
        attempts: dict[str, tuple[float, ...]] = {}
        loss, loss_dated = None, None
        if isinstance(direction.requested.loss, GilbertElliott):
            not_measured["loss"] = "losses come in bursts: a count says little about their probabilities"
        elif direction.requested.loss:
            requested = direction.requested.loss
            num_packets = num_packets_for(requested, direction.rate_bps, limit_s=LOSS_LIMIT_S)
            loss, loss_dated = self._slow(
                name,
                "loss",
                direction,
                LossMeasurement,
                lambda: measure_loss(self._deployment, direction, requested=requested, num_packets=num_packets, z=Z),
                loss_holds,
                lambda measured: measured.share,
                attempts,
            )
        queue, queue_dated = None, None
        reason = _queue_unmeasured(direction)
        if reason:
            not_measured["queue"] = reason
        else:
            queue, queue_dated = self._slow(
                name,
                "queue",
                direction,
                QueueMeasurement,
                lambda: measure_queue(self._deployment, direction),
                queue_holds,
                lambda measured: measured.error,
                attempts,
            )
        if queue is not None and queue.num_drops == 0:
            not_measured["queue"] = "this machine does not send UDP fast enough to fill it"
            queue = queue_dated = None
        return ClassMeasurement(
            link_class=name,
            num_directions=len(members),
            rate=rate,
            rate_dated=rate_dated,
            loss=loss,
            loss_dated=loss_dated,
            queue=queue,
            queue_dated=queue_dated,
            not_measured=not_measured,
            attempts=attempts,
        )

    def _slow(
        self,
        name: str,
        quantity: str,
        direction: Direction,
        kind: Callable[..., Value],
        measure: Callable[[], Value],
        holds: Callable[[Value], bool],
        key: Callable[[Value], float],
        attempts_of: dict[str, tuple[float, ...]],
    ) -> tuple[Value, Dated]:
        entry = self._cached(name, quantity)
        if entry is not None:
            return kind(**entry["value"]), _dated(entry)
        attempts = Attempts(holds, key)
        while not attempts.settled:
            steal = StealMeter()
            attempts.add(self._watched(measure), steal_share=steal.share)
            if not attempts.settled:
                self._stopping.wait(attempts.pause_s)
        attempts_of[quantity] = tuple(map(key, attempts.measured))
        value, dated = attempts.value, _now(direction)
        if holds(value):
            self._keep(name, quantity, asdict(value), dated)
        self._on_link(direction.link)
        return value, dated

    def _rates(self, directions: Sequence[Direction]) -> dict[tuple[str, str], RateMeasurement]:
        if not directions:
            return {}
        num_parallel = max(1, min(4, int(MAX_PARALLEL_BPS // max(direction.rate_bps for direction in directions))))

        def one(direction: Direction) -> RateMeasurement:
            measured = self._watched(lambda: rate_of(self._deployment, direction, stopping=self._stopping))
            self._on_link(direction.link)
            return measured

        # A link's two directions never run at once: the acknowledgements of one would count against the other.
        first = {direction.link: direction for direction in reversed(directions)}
        measured: dict[tuple[str, str], RateMeasurement] = {}
        with ThreadPoolExecutor(num_parallel, thread_name_prefix="calibrate") as pool:
            try:
                for is_first in (True, False):
                    chosen = [each for each in directions if (first[each.link] is each) == is_first]
                    futures = [pool.submit(one, direction) for direction in chosen]
                    # In short waits: a signal that another thread took is handled when this one next wakes.
                    while wait(futures, timeout=SIGNAL_LATENCY_S, return_when=FIRST_EXCEPTION).not_done:
                        for future in futures:
                            if future.done():
                                future.result()
                    measured |= {
                        direction.hop: future.result() for direction, future in zip(chosen, futures, strict=True)
                    }
            except BaseException:
                self._stopping.set()  # Ctrl-C, or one that failed: leaving the pool waits for those under way
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return measured

    def _watched(self, measure: Callable[[], Result]) -> Result:
        self._deployment.check()
        try:
            return measure()
        except (OSError, CalibrationError):
            self._deployment.check()  # a dead delay daemon explains every silence
            raise

    def _cached(self, name: str, quantity: str) -> Mapping[str, Any] | None:
        return self._cache.get(name, quantity) if self._cache is not None and self._mode is not Mode.FULL else None

    def _keep(self, name: str, quantity: str, value: Mapping[str, Any], dated: Dated) -> None:
        if self._cache is not None:
            entry = {"measured_at": dated.measured_at, "direction": dated.direction, "value": dict(value)}
            self._cache.put(name, quantity, entry)


def _now(direction: Direction) -> Dated:
    measured_at = datetime.now(UTC).isoformat(timespec="seconds")
    return Dated(measured_at=measured_at, direction=direction.name, from_cache=False)


def _dated(entry: Mapping[str, Any]) -> Dated:
    return Dated(measured_at=entry["measured_at"], direction=entry["direction"], from_cache=True)


def _rate(value: Mapping[str, Any]) -> RateMeasurement:
    return RateMeasurement(**{**value, "attempts_bps": tuple(value["attempts_bps"])})


def _queue_unmeasured(direction: Direction) -> str:
    """Why the queue's delay is not measured; empty where it is."""
    drain_s = fill_s(direction)
    if direction.requested.queue_bytes < MIN_QUEUE_PACKETS * PACKET_BYTES:
        return f"it holds fewer than {MIN_QUEUE_PACKETS} full packets, and what is let in varies by some of them"
    if drain_s < MIN_FILL_S:
        return f"it drains within {format_time(round(drain_s, 6))}, which cannot be distinguished from a late wake-up"
    if drain_s > MAX_FILL_S:
        return f"filling it at {format_rate(direction.rate_bps)} takes more than {format_time(MAX_FILL_S)}"
    return ""


def calibrate(
    deployment: Deployment,
    *,
    mode: Mode = Mode.CLASS,
    cache: CalibrationCache | None = None,
    on_link: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Measure the links, in real time, and say in virtual time what they are. Raises CalibrationError naming each that
    is not what was requested."""
    planned = deployment.planned
    calibration = planned.clock.virtual(_Calibrator(deployment, mode, cache, on_link).calibrate())
    wrong = judge(planned, calibration)
    if wrong:
        raise CalibrationError(
            "links do not do what they say:\n  " + "\n  ".join(wrong) + "\n"
            "if other programs load this machine, stop them; else ask for less than it can carry"
        )
    return calibration
