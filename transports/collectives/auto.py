"""Auto: for each size, the collective that costs least by prediction.

The LogGP model (Alexandrov et al., "LogGP: incorporating long messages into the LogP model", SPAA 1995) of each
candidate's own schedule: rounds x latency + messages x overhead + bytes / rate, where rounds are the messages that wait
for each other, messages are those of the busiest participant, and bytes what crosses the busiest link in one direction.
To it comes what slow start costs: a connection that has been idle begins with ten segments (RFC 6928) and doubles them
every round trip (RFC 5681, 3.1 and 4.1), and a schedule that turns from one peer to another begins again each time.
Senders abreast whose round is more than the path and a queue hold overflow it together (incast): each but one of them
then takes a round trip to repair that.

Every participant computes the same from the same options, so nobody has to be asked. What is left open (`latency`,
`rate`) is filled in by whoever knows the links: `testbed plan` does, and prints the choice.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, Self

from pydantic import Field, field_validator

from transports.collectives.base import COLLECTIVES, Collective, Operation, Step, World
from transports.collectives.cost import alpha_beta_time_s, sent_bytes
from transports.collectives.schedules.defaults import schedule
from transports.units import Rate, Time

NEAR: Final = 1.05
"""The first candidate within so much of the least cost is taken: the model is not better than that, and those named
first are kinder to links that several pairs share."""
DEFAULT_LATENCY_S: Final = 100e-6
DEFAULT_RATE_BPS: Final = 1e9
NUM_CHOICES: Final = 4096
INITIAL_WINDOW_BYTES: Final = 10 * 1448
QUEUE_BYTES: Final = 1_000_000
"""What the port of a switch is taken to hold."""
_ALL_REDUCE: Final = "all_reduce"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shape:
    """What a candidate's all-reduce is made of, whatever the size."""

    num_rounds: float
    num_messages: int
    num_peers: int
    """To whom the busiest participant sends."""
    share: float
    """Of the buffer: what the busiest link carries in one direction."""

    def cost_s(self, size_bytes: int, *, latency_s: float, overhead_s: float, rate_bps: float) -> float:
        """Of a buffer of that size."""
        bytes_per_s, round_trip_s = rate_bps / 8, 2 * latency_s
        abreast = min(max(1.0, self.num_messages / self.num_rounds), self.num_peers)
        num_turns = 1.0 if abreast == self.num_peers else self.num_messages / abreast
        carried_bytes = self.share * size_bytes
        slow_start_s = slow_start_cost_s(
            carried_bytes / num_turns,
            window_bytes=abreast * INITIAL_WINDOW_BYTES,
            round_trip_s=round_trip_s,
            bytes_per_s=bytes_per_s,
        )
        overflows = carried_bytes / self.num_rounds > bytes_per_s * round_trip_s + QUEUE_BYTES
        return (
            self.num_rounds * latency_s
            + self.num_messages * overhead_s
            + carried_bytes / bytes_per_s
            + num_turns * slow_start_s
            + overflows * self.num_rounds * (abreast - 1) * round_trip_s
        )


def slow_start_cost_s(num_bytes: float, *, window_bytes: float, round_trip_s: float, bytes_per_s: float) -> float:
    """How much longer so many bytes take than at the link's rate, if a window leaves in the first round trip and twice
    as much in every further one: after each window but the last the link idles until the round trip is over. Without
    losses and delayed acknowledgements."""
    lost_s = 0.0
    while num_bytes > window_bytes and window_bytes < bytes_per_s * round_trip_s:
        lost_s += round_trip_s - window_bytes / bytes_per_s
        num_bytes -= window_bytes
        window_bytes *= 2
    return lost_s


@COLLECTIVES.register
class Auto(Collective):
    """Picks one of the candidates for each size, the same on every rank."""

    operations: ClassVar[frozenset[Operation]] = frozenset((_ALL_REDUCE,))

    candidates: tuple[str, ...] = ("ring", "halving_doubling", "recursive_doubling", "all_to_all")
    """Kinds to choose from, those to prefer when costs are nearly equal first."""
    latency_s: Time | None = Field(None, alias="latency", ge=0, le=100)
    """From participant to participant, of an empty message; open: that of the links, else 100us."""
    overhead_s: Time = Field(50e-6, alias="overhead", ge=0, le=1)
    """Of a participant for each message that it sends and receives."""
    rate_bps: Rate | None = Field(None, alias="rate", gt=0)
    """Payload that a participant's link carries in each direction; open: that of the links, else 1gbit."""

    @field_validator("candidates")
    @classmethod
    def _known(cls, candidates: tuple[str, ...]) -> tuple[str, ...]:
        allowed = [kind for kind in COLLECTIVES.kinds() if kind != "auto"]
        if not candidates or not set(candidates) <= set(allowed):
            raise ValueError(f"candidates are one or more of {', '.join(allowed)}")
        if served := [kind for kind in candidates if COLLECTIVES.parse(kind).num_servers]:
            raise ValueError(f"{served[0]} needs servers of its own, which stand there or do not, whatever the size")
        return candidates

    def informed(
        self,
        *,
        latency_s: float,
        rate_bps: float,
        tensors: tuple[int, ...] = (),  # noqa: ARG002 (it takes buffers whole)
    ) -> Self:
        """See :class:`Collective`."""
        update = {
            "latency_s": latency_s if self.latency_s is None else self.latency_s,
            "rate_bps": rate_bps if self.rate_bps is None else self.rate_bps,
        }
        return self.model_copy(update=update)

    def chosen(self, world: World, num_elements: int, *, element_bytes: int) -> Collective:
        """See :class:`Collective`."""
        return _choose(self, world, num_elements * element_bytes)

    def cost_s(self, kind: str, world: World, size_bytes: int) -> float:
        """What an all-reduce of that size is said to cost with a candidate."""
        return _shape(kind, world).cost_s(
            size_bytes,
            latency_s=DEFAULT_LATENCY_S if self.latency_s is None else self.latency_s,
            overhead_s=self.overhead_s,
            rate_bps=DEFAULT_RATE_BPS if self.rate_bps is None else self.rate_bps,
        )

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


@lru_cache(maxsize=NUM_CHOICES)
def _choose(auto: Auto, world: World, size_bytes: int) -> Collective:
    costs_s = {kind: auto.cost_s(kind, world, size_bytes) for kind in auto.candidates}
    least_s = min(costs_s.values())
    return COLLECTIVES.parse(next(kind for kind, cost_s in costs_s.items() if cost_s <= NEAR * least_s))


@lru_cache(maxsize=NUM_CHOICES)
def _shape(kind: str, world: World) -> _Shape:
    collective = COLLECTIVES.parse(kind)
    num_elements = 16 * world.num_workers  # so few that every message travels whole
    counts = sent_bytes(collective, _ALL_REDUCE, world, num_elements, 1)
    sent, received, messages = ([0] * world.size for _ in range(3))
    for (sender, receiver), count in counts.items():
        sent[sender] += count.payload_bytes
        received[receiver] += count.payload_bytes
        messages[sender] += count.num_messages
    return _Shape(
        num_rounds=alpha_beta_time_s(collective, _ALL_REDUCE, world, num_elements, 1, alpha_s=1.0, beta_s_per_byte=0.0),
        num_messages=max(messages),
        num_peers=max(Counter(sender for sender, _ in counts).values()),
        share=max(*sent, *received) / num_elements,
    )
