"""Trees of aggregators at any scale: which links every gradient crosses once up and once down. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from testbed.errors import SpecError
from testbed.plan.aggregation_tree import PLACES
from testbed.theory.simulation.network import SimulatedNetwork
from transports.collectives.in_network import InNetwork, following_s


class Stream(NamedTuple):
    """One sum, as every link of a tree carries it."""

    wire_bytes: float
    latency_s: float
    """From the last byte's leaving a worker to its sum's arrival."""
    limit_bps: float
    """What the slots let through: so many frames in a round trip."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregationTree:
    """The links between one job's workers and the root of its aggregation."""

    root: str
    links: tuple[int, ...]
    """All that carry its chunks, in both directions; one that carries them for several children is named for each."""
    round_trip_s: float
    """From the farthest worker to the root and back: propagation."""
    forwarding_s_per_bit: float
    """What storing and forwarding adds for each bit of a frame, on the farthest worker's round trip, beside the
    one link whose rate decides."""
    round_trip_s_per_bit: float
    """The same with that link: the serialisation of a bit over the whole round trip."""

    def stream(self, collective: InNetwork, num_elements: int, *, num_slots: int) -> Stream:
        """Of that many floats: the first frame is stored and forwarded at every hop, and the others follow it."""
        frame_bits = 8 * collective.frame_bytes
        round_trip_s = self.round_trip_s + frame_bits * self.round_trip_s_per_bit
        frame_s = frame_bits * (self.round_trip_s_per_bit - self.forwarding_s_per_bit)
        num_chunks = collective.num_chunks(num_elements)
        others_s = following_s(num_chunks, num_slots=num_slots, frame_s=frame_s, round_trip_s=round_trip_s)
        return Stream(
            wire_bytes=float(collective.wire_bytes(num_elements)),
            latency_s=self.round_trip_s + frame_bits * self.forwarding_s_per_bit,
            limit_bps=max(num_slots * frame_bits / round_trip_s, num_chunks * frame_bits / (others_s + frame_s)),
        )


def aggregation_tree(network: SimulatedNetwork, workers: Sequence[str], at: str | None) -> AggregationTree:
    """The tree for these workers where `collective.at` asks for it, as :func:`testbed.plan.aggregation_tree.tree_of`
    makes it: each switch aggregates for those below it (`tree`), each that has workers does (`leaf`), or one switch for
    all. What each adds goes up once, and the sum comes down once to each. Raises SpecError for a place that the network
    does not have."""
    leaves = Counter(network.leaf_of(worker) for worker in workers)
    root = _root(network, leaves, at)
    adding = {root, *(leaves if at == "leaf" else network.switches if at == "tree" else ())}
    links: list[int] = []
    climbs: list[tuple[float, int, list[int]]] = []
    above: dict[str, str] = {}
    for worker in workers:
        climb: list[int] = []
        descent: list[int] = []
        node = worker
        while node != root:
            if node not in above:
                above[node] = next(
                    end for end in (network.hops[link][1] for link in network.path(node, root)) if end in adding
                )
                links += (*network.path(node, above[node]), *network.path(above[node], node))
            climb += network.path(node, above[node])
            descent += network.path(above[node], node)
            node = above[node]
        climbs.append((round(float(sum(network.delays_s[[*climb, *descent]])), 12), len(climb), climb))
    round_trip_s, _, farthest = max(climbs, key=lambda each: each[:2])
    per_bit = sum(1 / network.rates_bps[link] for link in farthest)
    slowest = max(1 / network.rates_bps[link] for link in farthest)
    return AggregationTree(
        root=root,
        links=tuple(links),
        round_trip_s=round_trip_s,
        forwarding_s_per_bit=float(2 * per_bit - slowest),
        round_trip_s_per_bit=float(2 * per_bit),
    )


def _root(network: SimulatedNetwork, leaves: Mapping[str, int], at: str | None) -> str:
    if at is not None and at in network.switches:
        return at
    if at is not None and at not in PLACES:
        raise SpecError(f"collective.at: {at!r} is no switch of the topology; allowed: one, or {', '.join(PLACES)}")
    above = [switch for switch in network.switches if switch not in set(leaves)]
    if at in ("spine", "tree") and not above:
        raise SpecError(f"collective.at: {at} needs a switch without workers, and all have some; allowed: leaf")
    if at == "spine" or (at == "tree" and len(leaves) > 1):
        return network.nearest(above, leaves)
    return network.nearest(network.switches if at is None else list(leaves), leaves)
