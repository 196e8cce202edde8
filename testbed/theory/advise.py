"""Which change is enough? What brings a training's scaling factor to a target, and at which price.

The model is that of `what_if.py`, but for what is joined and for delays: buckets are those that an engine makes of what
is ready, and are exchanged one after the other while backward goes on, over links that a transport fills to a stated
share, and delays are hidden as far as a collective's schedule does it (`even_exchanges.py`). Every number is a
prediction: costs per message, codecs, stragglers, losses and windows are not in it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Final, Literal, NamedTuple

from switch_agg.job import MAX_WORKERS
from switch_agg.wire import MAX_SLOTS
from testbed.errors import SpecError
from testbed.theory.buckets import ByTime, exposed_s, joined_in_turn
from testbed.theory.even_exchanges import EVEN_EXCHANGES, BetweenWorkers
from testbed.theory.what_if import smallest_factor
from testbed.traces.table import LayerTable
from transports.collectives.in_network import InNetwork, following_s
from transports.collectives.timing import IDLE_S

ETHERNET_BPS: Final = tuple(rate * 1e9 for rate in (1, 10, 25, 40, 50, 100, 200, 400, 800))
"""Rates that links can be bought with."""
CYCLES_S: Final = (1e-3, 5e-3, 20e-3, inf)
"""Of fusion, among which advice chooses those that are longer than today's: messages cost nothing in this model, so
what it says of smaller buckets is not to be had for nothing."""

TOLERANCE: Final = 0.02
"""By how much an emulation may miss the target: a change is as little as reaches it, and predictions are off by 2 % in
the mean (docs/predictions.md), so that without a tolerance half of all right advice would miss."""
_AGGREGATOR: Final = InNetwork()
"""A switch that aggregates, whose chunks and slots these are."""

ChangeName = Literal["fusion", "collective", "transport", "aggregation", "links", "compression", "batch", "interval"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A training on a network."""

    table: LayerTable
    num_workers: int
    rate_bps: float
    """Of each worker's link, full duplex."""
    latency_s: float = 0.0
    """One way from worker to worker."""
    efficiency: float = 1.0
    """The share of a link's rate that reaches the application while a bucket is exchanged: headers and transport."""
    fusion: ByTime = field(default_factory=ByTime)
    collective: BetweenWorkers | Literal["in_network"] = "ring"
    """How gradients are added up."""
    compression_ratio: float = 1.0
    batch_factor: float = 1.0
    """How many times as large as the trace's the batch of a worker is."""
    interval: int = 1
    """Iterations from one synchronisation to the next; above 1 all parameters are averaged at once, after the last."""

    @property
    def aggregated(self) -> bool:
        """Whether a switch adds up."""
        return self.collective == "in_network"

    def exchange_s(self, size_bytes: int) -> float:
        """The time of one all-reduce among two or more."""
        rate_bps, ratio = self.rate_bps * self.efficiency, self.compression_ratio
        if self.collective == "in_network":
            payload_bytes = _AGGREGATOR.payload_bytes(1)
            framed_bps = self.rate_bps * min(self.efficiency, payload_bytes / _AGGREGATOR.frame_bytes)
            chunk_s = 8 * payload_bytes / framed_bps
            # The switch is on the way from worker to worker.
            return (
                self.latency_s
                + chunk_s
                + following_s(
                    ceil(size_bytes / ratio / payload_bytes),
                    num_slots=self.num_slots,
                    frame_s=chunk_s,
                    round_trip_s=self._aggregator_round_trip_s,
                )
            )
        exchange_s = EVEN_EXCHANGES[self.collective]
        return exchange_s(self.num_workers, size_bytes / ratio, rate_bps=rate_bps, latency_s=self.latency_s)

    @property
    def num_slots(self) -> int:
        """Of a switch that aggregates: as many as keep a link full, where a switch can have so many."""
        frames = self.rate_bps * self._aggregator_round_trip_s / (8 * _AGGREGATOR.frame_bytes)
        return max(_AGGREGATOR.num_slots, 1 << (ceil(min(frames, MAX_SLOTS)) - 1).bit_length())

    @property
    def gathered_ratio(self) -> float:
        """The ratio that payloads which do not add up need for as few bytes on a link as `compression_ratio` leaves of
        an all-reduce: N - 1 of them cross each link, where workers among themselves carry 2 (N - 1)/N of one and an
        aggregator one."""
        return self.compression_ratio * (self.num_workers - 1 if self.aggregated else self.num_workers / 2)

    @property
    def compute_s(self) -> float:
        """Computing of an iteration; the optimizer's step is as long for every batch."""
        return self._computed.compute_s

    @property
    def alone_s(self) -> float:
        """An iteration of a worker without communication. Its input is read and copied while the batch before is
        computed with, as in a replay; what takes longer decides."""
        return max(self.compute_s, self._computed.input_and_copy_s)

    @property
    def scaling_factor(self) -> float:
        """An iteration alone over one with what it waits for the network."""
        if self.num_workers == 1:
            return 1.0
        if self.interval > 1:
            alone_s = self.interval * self.alone_s
            return alone_s / (alone_s + self._lengthened_s(self.exchange_s(self.table.size_bytes)))
        computed = self._computed
        # Each says to all others what it has, and before an aggregator gets anything all settle what that is.
        agreement_s = self.latency_s * (2 if self.aggregated else 1)
        exchanges = joined_in_turn(computed.gradients(), self.fusion, self.exchange_s, agreement_s=agreement_s)
        waiting_s = exposed_s(exchanges, computed.backward_s)
        return self.alone_s / (self.alone_s + self._lengthened_s(waiting_s))

    @property
    def iteration_s(self) -> float:
        """The mean over iterations."""
        return self.alone_s / self.scaling_factor

    def _lengthened_s(self, exposed_s: float) -> float:
        """By what an iteration is longer than alone whose computing waits so long: input is read meanwhile, too."""
        return max(0.0, self.compute_s + exposed_s - self.alone_s)

    def interval_for(self, target: float) -> int:
        """The least number of iterations from one synchronisation to the next, above 1, that reaches the target."""
        lengthened_s = self._lengthened_s(self.exchange_s(self.table.size_bytes))
        return max(2, ceil(target / (1 - target) * lengthened_s / self.alone_s - 1e-9))

    @property
    def rests(self) -> bool:
        """Whether connections idle so long between iterations that TCP begins with a half of their windows or less."""
        computed = self._computed
        first_s = min((ready_s for ready_s, _ in computed.gradients()), default=0.0)
        return self.alone_s - computed.backward_s + first_s > IDLE_S + 2 * self.latency_s

    @property
    def _aggregator_round_trip_s(self) -> float:
        """From a worker to the switch and back, which is as far as to another worker."""
        return self.latency_s + 2 * 8 * _AGGREGATOR.frame_bytes / self.rate_bps

    @property
    def _computed(self) -> LayerTable:
        return self.table.lengthened(self.batch_factor)


class Change(NamedTuple):
    """One thing that may be changed, and what it brings."""

    name: ChangeName
    setting: Setting
    """With that change and no other."""
    sufficient: bool
    """Whether it reaches the target; if not, `setting` is the best that this change alone can do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """What to do."""

    today: Setting
    target: float
    changes: tuple[Change, ...]
    """In the order of :data:`PREFERENCE`; those that would bring nothing are left out."""

    @property
    def sufficient(self) -> bool:
        """Whether nothing needs to change."""
        return self.today.scaling_factor >= self.target

    @property
    def recommended(self) -> Change | None:
        """The first change that is sufficient; None where none is needed, or none is enough."""
        return next((change for change in self.changes if change.sufficient), None)

    @property
    def chosen(self) -> Setting | None:
        """What to have: the recommended change, or today's setting where that is enough; None where nothing is."""
        if self.sufficient:
            return self.today
        return None if self.recommended is None else self.recommended.setting

    @property
    def best(self) -> Change | None:
        """What brings most, sufficient or not."""
        return max(self.changes, key=lambda change: change.setting.scaling_factor, default=None)

    @property
    def least_rate_bps(self) -> float | None:
        """The slowest links with which the target is reached and nothing else changes; None if none are fast enough."""
        slowest_bps = min(_SLOWEST_BPS, self.today.rate_bps)
        factor = smallest_factor(
            lambda factor: replace(self.today, rate_bps=slowest_bps * factor).scaling_factor,
            self.target,
            most=_FASTEST_BPS / slowest_bps,
        )
        return None if factor is None else slowest_bps * factor


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """What became of an advice in emulation."""

    predicted: float
    """The scaling factor that was promised."""
    target: float
    measured: float | None
    """The scaling factor of the emulation, in dilated time; None: `missing` says why."""
    missing: str | None
    outcome: str
    """Of the run: `valid`, `degraded`, `invalid` or `failed`."""
    reasons: tuple[str, ...]
    dilation: float
    record: str | None
    """Its directory."""

    @property
    def error(self) -> float | None:
        """How much better the advice was than what came of it, in scaling factors."""
        return None if self.measured is None else self.predicted - self.measured

    @property
    def reached(self) -> bool:
        """Whether the emulation meets the target, but for :data:`TOLERANCE`."""
        return self.measured is not None and self.measured >= self.target - TOLERANCE


_SLOWEST_BPS: Final = 1e7
"""Where the search for slow links begins."""
_FASTEST_BPS: Final = 1e13
"""Where it ends, whatever today's rate is."""
_MAX_WAIT: Final = 1e12
"""How many times as long as computing the exchange of all gradients may take: beyond it a price is no number."""


def advise(today: Setting, target: float, *, max_efficiency: float) -> Advice:
    """Each change by itself, as little of it as reaches the target; none where nothing needs to change.
    `max_efficiency` is the share of a link that headers leave. Raises SpecError for a trace that computes nothing, and
    for links that carry next to nothing."""
    if not today.table.compute_s:
        raise SpecError(
            "the trace says no times, so no computing whose share of an iteration could be the scaling factor; "
            "allowed: layers that take some time, forward or backward"
        )
    if today.exchange_s(today.table.size_bytes) > _MAX_WAIT * today.compute_s:
        raise SpecError(
            f"on such links the gradients take over {_MAX_WAIT:g} times as long as computing, which no change makes up "
            "for; allowed: a higher rate, or a lower latency"
        )
    if today.scaling_factor >= target:
        return Advice(today=today, target=target, changes=())
    found = [change for each in PREFERENCE.values() for change in each(today, target, max_efficiency)]
    better = [change for change in found if change.setting.scaling_factor > today.scaling_factor]
    return Advice(today=today, target=target, changes=tuple(better))


def _fusion(today: Setting, target: float, _: float) -> Iterator[Change]:
    cycles_s = [cycle_s for cycle_s in CYCLES_S if cycle_s > today.fusion.cycle_s]
    if cycles_s:
        coarser = [replace(today, fusion=replace(today.fusion, cycle_s=cycle_s)) for cycle_s in cycles_s]
        yield _change("fusion", max(coarser, key=_scaling_factor), target)


def _collective(today: Setting, target: float, _: float) -> Iterator[Change]:
    # Windows are small after a rest, and halving_doubling has one for each round, where the ring's grow all the while.
    if today.collective == "ring" and not today.rests:
        yield _change("collective", replace(today, collective="halving_doubling"), target)


def _transport(today: Setting, target: float, max_efficiency: float) -> Iterator[Change]:
    if today.efficiency >= max_efficiency:
        return
    factor = smallest_factor(
        lambda factor: replace(today, efficiency=min(today.efficiency * factor, max_efficiency)).scaling_factor,
        target,
        most=max_efficiency / today.efficiency,
    )
    efficiency = max_efficiency if factor is None else min(today.efficiency * factor, max_efficiency)
    yield _change("transport", replace(today, efficiency=efficiency), target)


def _aggregation(today: Setting, target: float, _: float) -> Iterator[Change]:
    if not today.aggregated and 1 < today.num_workers <= MAX_WORKERS:
        yield _change("aggregation", replace(today, collective="in_network"), target)


def _links(today: Setting, target: float, _: float) -> Iterator[Change]:
    faster = [replace(today, rate_bps=rate_bps) for rate_bps in ETHERNET_BPS if rate_bps > today.rate_bps]
    if faster:
        enough = next((setting for setting in faster if setting.scaling_factor >= target), None)
        yield _change("links", enough or max(faster, key=_scaling_factor), target)


def _compression(today: Setting, target: float, _: float) -> Iterator[Change]:
    yield _by_factor(
        "compression", lambda factor: replace(today, compression_ratio=today.compression_ratio * factor), target
    )


def _batch(today: Setting, target: float, _: float) -> Iterator[Change]:
    yield _by_factor("batch", lambda factor: replace(today, batch_factor=today.batch_factor * factor), target)


def _interval(today: Setting, target: float, _: float) -> Iterator[Change]:
    if today.exchange_s(today.table.size_bytes) == 0.0 or target >= 1.0:
        return
    interval = today.interval_for(target)
    if interval > today.interval:
        yield _change("interval", replace(today, interval=interval), target)


_LARGE: Final = 1000.0
"""The factor that stands for the best there is, where none suffices."""


def _by_factor(name: ChangeName, at: Callable[[float], Setting], target: float) -> Change:
    factor = smallest_factor(lambda factor: at(factor).scaling_factor, target)
    return _change(name, at(_LARGE if factor is None else factor), target)


def _scaling_factor(setting: Setting) -> float:
    return setting.scaling_factor


def _change(name: ChangeName, setting: Setting, target: float) -> Change:
    return Change(name, setting, setting.scaling_factor >= target)


PREFERENCE: Final[dict[ChangeName, Callable[[Setting, float, float], Iterator[Change]]]] = {
    "fusion": _fusion,
    "collective": _collective,
    "transport": _transport,
    "aggregation": _aggregation,
    "links": _links,
    "compression": _compression,
    "batch": _batch,
    "interval": _interval,
}
"""What is recommended first: what costs nothing, then software, then hardware that leaves the training as it is, then
what changes gradients, and last what changes the training."""


def curve(setting: Setting, rates_bps: Sequence[float]) -> list[float]:
    """The scaling factor at each rate of links."""
    return [replace(setting, rate_bps=rate_bps).scaling_factor for rate_bps in rates_bps]
