"""What calibration finds, and when a link is what it says.

Types and judgement alone: :mod:`testbed.calibration.calibrate` measures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from testbed.calibration.cache import Mode
from testbed.calibration.losses import LossMeasurement
from testbed.calibration.queues import PACKET_BYTES, QueueMeasurement
from testbed.experiment.link import MTU
from testbed.links.htb import Shaper, goodput_fraction, gso_max_segments
from testbed.plan.direction import Direction
from testbed.plan.plan import Plan
from transports.units import format_size, format_time

RATE_TOLERANCE: Final = 0.01
"""Of TCP goodput against rate x 1448/1514, either way; HTB itself errs by less than 0.1 %."""
DELAY_TOLERANCE: Final = 0.05
DELAY_FLOOR_S: Final = 300e-6
"""A wake-up of the delay line and the serialisation of a small packet; more on a busy machine, hence the attempts."""
QUEUE_TOLERANCE: Final = 0.05
QUEUE_TOLERANCE_PACKETS: Final = 3
"""What a full queue drops at its end finds no place by up to a packet, and what is let in between two rounds of sending
finds it two or three packets short of full."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RateMeasurement:
    """TCP goodput at the receiver after slow start."""

    goodput_bps: float
    congestion: str
    """What the kernel used on the measuring stream."""
    attempts_bps: tuple[float, ...]
    """The goodput of every attempt: one where the first held, else `goodput_bps` is the median of the last five."""
    mtu: int = MTU

    @property
    def rate_bps(self) -> float:
        """The goodput as line rate: times 1514/1448 at MTU 1500."""
        return self.goodput_bps / goodput_fraction(self.mtu)


class DelayMeasurement(NamedTuple):
    """The one-way delay of one direction."""

    delay_s: float
    attempts_s: tuple[float, ...]
    """The median delay of every attempt: one where the first held, else `delay_s` is the median of the last five."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dated:
    """When a quantity of a class was measured, on which direction, and whether that was before this run."""

    measured_at: str
    direction: str
    from_cache: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One direction of one link."""

    link: str
    sender: str
    receiver: str
    link_class: str
    delay_s: float
    """One way, median; always measured here and now."""
    delay_attempts_s: tuple[float, ...]
    goodput_bps: float
    """Of the direction itself, or of the one that stood for its class: see `rate_of`."""
    rate_bps: float
    rate_of: str
    """The direction whose rate was measured: `w0 -> s0`."""
    congestion: str
    rate_attempts_bps: tuple[float, ...]
    rate_from_cache: bool = False
    """Whether it was measured before this run, on a link of the same class: also where that had this one's name."""

    @classmethod
    def of(
        cls, direction: Direction, link_class: str, delay: DelayMeasurement, rate: RateMeasurement, dated: Dated
    ) -> "Measurement":
        """Of a direction whose rate is the one that was measured when and where `dated` says."""
        return cls(
            link=direction.link,
            sender=direction.sender.node,
            receiver=direction.receiver.node,
            link_class=link_class,
            delay_s=delay.delay_s,
            delay_attempts_s=delay.attempts_s,
            goodput_bps=rate.goodput_bps,
            rate_bps=rate.rate_bps,
            rate_of=dated.direction,
            congestion=rate.congestion,
            rate_attempts_bps=rate.attempts_bps,
            rate_from_cache=dated.from_cache,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassMeasurement:
    """One class of links."""

    link_class: str
    num_directions: int
    rate: RateMeasurement
    rate_dated: Dated
    loss: LossMeasurement | None
    """None: no loss was requested."""
    loss_dated: Dated | None
    queue: QueueMeasurement | None
    queue_dated: Dated | None
    not_measured: Mapping[str, str]
    """Why not, by quantity."""
    attempts: Mapping[str, tuple[float, ...]]
    """Of `loss` and `queue`, where measured now, by attempt: share lost; relative error of a full queue's delay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Everything measured before a run."""

    mode: Mode
    links: Sequence[Measurement] = ()
    classes: Sequence[ClassMeasurement] = ()

    def to_json(self) -> dict[str, Any]:
        """The calibration as JSON, for the record."""
        return {
            "mode": str(self.mode),
            "links": [asdict(measured) for measured in self.links],
            "classes": [asdict(measured) for measured in self.classes],
        }


def link_class(plan: Plan, direction: Direction) -> str:
    """What decides how a direction behaves, as one line: kinds of nodes, settings, what a packet is, the delay on the
    way back where that is another, backend, and what makes switches and hosts."""
    roles = [plan.node(name).role for name in direction.hop]
    settings = direction.requested.model_dump_json(by_alias=True, exclude={"backend"})
    backend = plan.delay_backend if direction.delay_stage else None
    mtu = "" if plan.experiment.mtu == MTU else f", MTU {plan.experiment.mtu}"
    packets = f"packets of {plan.experiment.packet_bytes} B{mtu}"
    packets += _of_another_rate(plan, direction)
    packets += ", between machines" if plan.spread is not None and plan.spread.crosses(direction.hop) else ""
    back_s = next(each.delay_s for each in plan.directions if each.hop == direction.hop[::-1])
    back = "" if back_s == direction.delay_s else f"{format_time(back_s)} back, "
    made = f"delay by {backend or 'nothing'}, {plan.experiment.switch.kind}, {plan.experiment.runtime.kind}"
    return f"{roles[0]} -> {roles[1]} {settings} {back}{packets}, {plan.congestion}, {made}"


def _of_another_rate(plan: Plan, direction: Direction) -> str:
    """A link that stands for a faster one has that one's bursts and super-frames, and is a class of its own."""
    rate_bps, shaper, found = direction.rate_bps, direction.shaper, ""
    if shaper is not None:
        usual = Shaper.of(interface=shaper.interface, rate_bps=rate_bps, queue_bytes=shaper.queue_bytes)
        found += f", bursts of {shaper.burst_bytes} B" if shaper != usual else ""
    segments = gso_max_segments(plan.experiment.packet_bytes, plan.experiment.mtu, rate_bps)
    if direction.gso_max_segments != segments:
        found += f", super-frames of {direction.gso_max_segments or 'any number of'} packets"
    return found


def rate_holds(goodput_bps: float, requested_bps: float) -> bool:
    """Whether a goodput is what was requested, in bit/s both, within RATE_TOLERANCE."""
    return abs(goodput_bps / requested_bps - 1) <= RATE_TOLERANCE


def delay_holds(direction: Direction, delay_s: float, *, floor_s: float = DELAY_FLOOR_S) -> bool:
    """Whether a median one-way delay is what the direction is configured to; a jitter widens that, and what this
    machine needs at least (`floor_s`, in the time that both are in)."""
    over_s, slack_s = delay_s - direction.delay_s, direction.requested.jitter_s
    under_s = DELAY_TOLERANCE * direction.delay_s + slack_s
    return -under_s <= over_s <= max(floor_s, DELAY_TOLERANCE * direction.delay_s) + slack_s


def loss_holds(loss: LossMeasurement) -> bool:
    """Whether the loss that was requested is within the interval around the one that was counted."""
    return loss.holds


def queue_holds(queue: QueueMeasurement) -> bool:
    """A queue that was never full says nothing."""
    return queue.num_drops == 0 or abs(queue.error) <= _queue_tolerance(queue)


def _queue_tolerance(queue: QueueMeasurement) -> float:
    return max(QUEUE_TOLERANCE, QUEUE_TOLERANCE_PACKETS * PACKET_BYTES / queue.queue_bytes)


def judge(plan: Plan, calibration: Calibration) -> list[str]:
    """What is wrong with the links, one line each; empty when all is as requested. Both in virtual time, in which a
    wake-up of this machine is the shorter the slower time runs."""
    found: list[str] = []
    floor_s = plan.clock.virtual_s(DELAY_FLOOR_S)
    requested = {direction.hop: direction for direction in plan.directions}
    for measured in calibration.links:
        direction = requested[measured.sender, measured.receiver]
        name = f"{measured.sender} -> {measured.receiver}"
        error = 0.0 if direction.requested.unshaped else measured.rate_bps / direction.rate_bps - 1
        # What chance does to packets keeps a TCP stream from filling the link; only an excess is then a fault of it.
        if measured.rate_of == name and (
            error > RATE_TOLERANCE or (error < -RATE_TOLERANCE and not direction.requested.draws)
        ):
            found.append(
                f"{name}: measured {measured.rate_bps / 1e6:.2f} Mbit/s, requested {direction.rate_bps / 1e6:.2f} "
                f"({error:+.1%}; allowed {-RATE_TOLERANCE:+.0%} to {RATE_TOLERANCE:+.0%})"
                + (_queue_hint(direction, requested[direction.hop[::-1]].delay_s) if error < 0 else "")
            )
        if not delay_holds(direction, measured.delay_s, floor_s=floor_s):
            found.append(
                f"{name}: measured a delay of {measured.delay_s * 1e6:.0f} us, requested {direction.delay_s * 1e6:.0f}"
            )
        if measured.congestion != plan.congestion:
            found.append(f"{name}: TCP used {measured.congestion}, requested {plan.congestion}")
    for measured_class in calibration.classes:
        loss, queue = measured_class.loss, measured_class.queue
        if loss is not None and measured_class.loss_dated and not loss_holds(loss):
            found.append(
                f"{measured_class.loss_dated.direction}: lost {loss.num_lost} of {loss.num_packets} packets, "
                f"{loss.low:.3%} to {loss.high:.3%}, requested {loss.requested:.3%}"
            )
        if queue is not None and measured_class.queue_dated and not queue_holds(queue):
            found.append(
                f"{measured_class.queue_dated.direction}: a full queue delays by {1e3 * queue.added_s:.3f} ms, "
                f"{format_size(queue.queue_bytes)} at the rate are {1e3 * queue.expected_s:.3f} ms "
                f"({queue.error:+.1%}; allowed {_queue_tolerance(queue):.0%})"
            )
    return found


def _queue_hint(direction: Direction, back_s: float) -> str:
    """One TCP stream fills a link through a loss only if the queue holds what a round trip, which takes `back_s` on the
    way back, has under way."""
    under_way_bytes = direction.rate_bps / 8 * (direction.delay_s + back_s)
    queue_bytes = direction.requested.queue_bytes
    if queue_bytes >= under_way_bytes:
        return ""
    return (
        f"; a round trip has {format_size(int(under_way_bytes))} under way and the queue holds only "
        f"{format_size(queue_bytes)}: raise link.queue"
    )
