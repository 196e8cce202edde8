"""Auto: for each size, the collective that costs least by the cost model (`timing.py`).

Every participant computes the same from the same options, so nothing is negotiated. What is left open (`latency`,
`rate`, ...) is filled in by whoever knows the links: `testbed plan` does, and prints the choice.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar, Final, Self

from pydantic import Field, field_validator

from transports.collectives.base import COLLECTIVES, Collective, Operation, Segmented, Step, World
from transports.collectives.cost import sent_bytes
from transports.collectives.costs import DEFAULT_COSTS
from transports.collectives.network_info import DEFAULT_QUEUE_BYTES, NetworkInfo
from transports.collectives.schedules.defaults import schedule
from transports.collectives.timing import PACKET_BYTES, Links, exchange_s
from transports.units import Rate, Size, Time

NEAR: Final = 1.05
"""The first candidate within so much of the least cost is taken: the model is not better than that, and those named
first are kinder to links that several pairs share."""
DEFAULT_LATENCY_S: Final = 100e-6
DEFAULT_RATE_BPS: Final = 1e9
NUM_CHOICES: Final = 4096
NUM_PRICED_SEGMENTS: Final = 128
"""Of a buffer, at most: one that is cut into more of them (from 64 MiB with the default) is priced as if it were cut
into so many, since the rate decides then, and looking at thousands of messages takes seconds."""
_ALL_REDUCE: Final = "all_reduce"


@COLLECTIVES.register
class Auto(Collective):
    """Picks one of the candidates for each size, the same on every rank."""

    operations: ClassVar[frozenset[Operation]] = frozenset((_ALL_REDUCE,))

    candidates: tuple[str, ...] = ("ring", "halving_doubling", "recursive_doubling", "all_to_all")
    """Kinds to choose from, those to prefer when costs are nearly equal first."""
    latency_s: Time | None = Field(None, alias="latency", ge=0, le=100)
    """From participant to participant, of an empty message; open: that of the links, else 100us."""
    overhead_s: Time | None = Field(None, alias="overhead", ge=0, le=1)
    """Of a participant for each message that it sends, and for each that it receives; open: as fitted, else 25us."""
    copy_bps: Rate | None = Field(None, alias="copying", gt=0)
    """How fast a participant sends, and receives, on links that are faster; open: as fitted, else 8gbit."""
    cores: int | None = Field(None, ge=1)
    """Which all participants share; open: as fitted, else each has its own."""
    addition_bps: Rate | None = Field(None, alias="addition", gt=0)
    """How fast a participant adds what came to what is there; open: as fitted, else 80gbit."""
    shaper_late_s: Time | None = Field(None, alias="shaper_late", ge=0, le=1)
    """By how much a link's shaper is late that a packet waits for; open: as fitted, else 50us."""
    rate_bps: Rate | None = Field(None, alias="rate", gt=0)
    """Payload that a participant's link carries in each direction; open: that of the links, else 1gbit."""
    queue_bytes: Size | None = Field(None, alias="queue", gt=0)
    """What the port of a switch holds; open: that of the links, else 1MB."""
    burst_bytes: Size | None = Field(None, alias="burst", ge=0)
    """Payload that a link lets pass at once after rest; open: that of the links, else none."""
    frame_bytes: Size | None = Field(None, alias="frame", gt=0)
    """Payload of the longest packet that a link lets pass whole; open: that of the links, else 1448B."""

    @field_validator("candidates")
    @classmethod
    def _known(cls, candidates: tuple[str, ...]) -> tuple[str, ...]:
        allowed = [kind for kind in COLLECTIVES.kinds() if kind != "auto"]
        if not candidates or not set(candidates) <= set(allowed):
            raise ValueError(f"candidates are one or more of {', '.join(allowed)}")
        if served := [kind for kind in candidates if COLLECTIVES.parse(kind).num_servers]:
            raise ValueError(f"{served[0]} needs servers of its own, which stand there or do not, whatever the size")
        if aggregated := [kind for kind in candidates if COLLECTIVES.parse(kind).aggregation is not None]:
            # A run makes none for `auto`, and no group joins one by it: what ran would be a ring.
            raise ValueError(f"{aggregated[0]} needs an aggregator, which stands there or does not, whatever the size")
        return candidates

    def with_network_info(self, info: NetworkInfo, *, tensors: tuple[int, ...] = ()) -> Self:  # noqa: ARG002 (it takes buffers whole)
        """See :class:`Collective`."""
        costs = info.costs
        known = {
            "latency_s": info.latency_s,
            "rate_bps": info.rate_bps,
            "queue_bytes": round(info.queue_bytes),
            "burst_bytes": info.burst_bytes,
            "frame_bytes": info.frame_bytes,
            "overhead_s": costs.message_s,
            "copy_bps": 8 / costs.copy_s_per_byte if costs.copy_s_per_byte else None,
            "cores": costs.num_cores,
            "addition_bps": 8 / costs.addition_s_per_byte if costs.addition_s_per_byte else None,
            "shaper_late_s": costs.shaper_late_s,
        }
        open_ones = {name: value for name, value in known.items() if getattr(self, name) is None}
        return self.model_copy(update=open_ones)

    @property
    def goes_by_hosts(self) -> bool:
        """See :class:`Collective`."""
        return True

    def chosen(self, world: World, num_elements: int, *, element_bytes: int) -> Collective:
        """See :class:`Collective`."""
        return _choose(self, world, num_elements * element_bytes)

    @property
    def way(self) -> NetworkInfo:
        """Latency and rate, known or not."""
        return NetworkInfo(
            latency_s=DEFAULT_LATENCY_S if self.latency_s is None else self.latency_s,
            rate_bps=DEFAULT_RATE_BPS if self.rate_bps is None else self.rate_bps,
        )

    def candidate(self, kind: str) -> Collective:
        """The one of that kind, with what is known of the links."""
        return COLLECTIVES.parse(kind).with_network_info(self.way)

    def cost_s(self, kind: str, world: World, size_bytes: int) -> float:
        """What an all-reduce of that size is said to cost with a candidate."""
        way = self.way
        links = Links.star(
            world.size,
            rate_bps=way.rate_bps,
            latency_s=way.latency_s,
            queue_bytes=DEFAULT_QUEUE_BYTES if self.queue_bytes is None else self.queue_bytes,
            burst_bytes=self.burst_bytes or 0,
            frame_bytes=PACKET_BYTES if self.frame_bytes is None else self.frame_bytes,
        )
        addition_s_per_byte = DEFAULT_COSTS.addition_s_per_byte if self.addition_bps is None else 8 / self.addition_bps
        copy_s_per_byte = DEFAULT_COSTS.copy_s_per_byte if self.copy_bps is None else 8 / self.copy_bps
        costs = replace(
            DEFAULT_COSTS,
            num_cores=self.cores,
            copy_s_per_byte=copy_s_per_byte,
            host_latency_s=0.0,  # the latency has it
            message_s=DEFAULT_COSTS.message_s if self.overhead_s is None else self.overhead_s,
            addition_s_per_byte=addition_s_per_byte,
            shaper_late_s=DEFAULT_COSTS.shaper_late_s if self.shaper_late_s is None else self.shaper_late_s,
        )
        return exchange_s(_priced(self.candidate(kind), size_bytes), _ALL_REDUCE, world, size_bytes, 1, links, costs)

    def schedule(
        self,
        operation: Operation,
        world: World,
        participant: int,
        num_elements: int,
        *,
        element_bytes: int,
        root: int = 0,
    ) -> Sequence[Step]:
        """See :class:`Collective`."""
        chosen = self.chosen(world, num_elements, element_bytes=element_bytes)
        return schedule(chosen, operation, world, participant, num_elements, element_bytes=element_bytes, root=root)


def _priced(candidate: Collective, size_bytes: int) -> Collective:
    if isinstance(candidate, Segmented):
        segment_bytes = max(candidate.segment_bytes, size_bytes // NUM_PRICED_SEGMENTS)
        return candidate.model_copy(update={"segment_bytes": segment_bytes})
    return candidate


def _least_s(auto: Auto, kind: str, world: World, size_bytes: int) -> float:
    """What an all-reduce of that size costs with a candidate at least: what the busiest participant sends, less what a
    link lets pass at once. Segments do not change it."""
    candidate = COLLECTIVES.parse(kind)
    if isinstance(candidate, Segmented):
        candidate = candidate.model_copy(update={"segment_bytes": max(candidate.segment_bytes, size_bytes)})
    sent = [0] * world.size
    for (participant, _), count in sent_bytes(candidate, _ALL_REDUCE, world, size_bytes, 1).items():
        sent[participant] += count.payload_bytes
    at_once = (auto.burst_bytes or 0) + (PACKET_BYTES if auto.frame_bytes is None else auto.frame_bytes)
    return (max(sent) - at_once) * 8 / auto.way.rate_bps


@lru_cache(maxsize=NUM_CHOICES)
def _choose(auto: Auto, world: World, size_bytes: int) -> Collective:
    costs_s: dict[str, float] = {}
    for kind in auto.candidates:
        # To price one takes up to seconds among many; of large buffers most cannot be the cheapest.
        if not costs_s or _least_s(auto, kind, world, size_bytes) <= NEAR * min(costs_s.values()):
            costs_s[kind] = auto.cost_s(kind, world, size_bytes)
    least_s = min(costs_s.values())
    return auto.candidate(next(kind for kind, cost_s in costs_s.items() if cost_s <= NEAR * least_s))
