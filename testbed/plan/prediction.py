"""What an iteration's exchanges take by the cost model, over the links that a plan has. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from typing import Final, NamedTuple

from testbed.experiment.experiment import Experiment
from testbed.experiment.fusion.base import GRADIENT_ELEMENT_BYTES
from testbed.experiment.topologies.base import participant_names
from testbed.links.htb import Shaper
from testbed.plan.bounds import schedule_bound_s, task_bound_s, worker_ends
from testbed.plan.direction import Direction
from testbed.plan.paths import Hop, Path
from transports.collectives.base import Collective, World
from transports.collectives.cost import bound_s
from transports.collectives.costs import Costs
from transports.collectives.network_info import DEFAULT_QUEUE_BYTES
from transports.collectives.timing import IDLE_S, Connections, Exchanged, Links, exchanged
from transports.compression.base import Exchange

_ETHERNET_HEADER_BYTES: Final = 14
_LONGEST_BYTES: Final = 65_536 - 321
"""Payload of a super-frame as the kernel's own limit leaves it: less its longest header (tcp.h, MAX_TCP_HEADER) and one
byte (sock.c, sk_setup_caps)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What theory says of one iteration's all-reduces, in virtual seconds."""

    gradient_bytes: int
    payload_bytes: int
    """What of them each worker hands to the collective; an estimate where it depends on the gradients."""
    bound_s: float
    """The least that any exchange over the workers' own links needs (testbed.plan.bounds)."""
    schedule_bound_s: float
    """What the collective's own bytes need at least on the most loaded link."""
    predicted_s: float
    """One exchange after the other, the first of them on links that were idle."""
    goodput_bps: float
    """Of the slowest direction of a worker's or server's link that carries anything; asynchronously of a shared host's,
    too."""
    latency_s: float
    """One way of an empty packet on the slowest path that carries anything; where an aggregator adds, the one to it."""
    aggregation_bps: float
    """At which a worker's chunks follow each other to an aggregator: the slowest link's rate, or where the direction
    between two switches that is `bottleneck` carries those of several workers, what it leaves each."""
    bottleneck: str | None
    """The direction between two switches, `s0 -> s1`, that needs more time for its bytes than workers' and servers'
    links do: it decides `predicted_s`, and `schedule_bound_s` where its bytes are certain."""
    fitted_at: str | None
    """When the costs of hosts were fitted (ISO 8601); None: they are defaults."""


def path_delay_s(all_paths: Mapping[Hop, Path], traffic: Mapping[Hop, int], delays_s: Mapping[Hop, float]) -> float:
    """One way from worker to worker over the slowest path that carries anything, given each hop's delay."""

    def slowest_s(path: Path) -> float:
        arrival_s = {path.source: 0.0}
        for node, following in path.shares:  # in the order of the stages
            arrival_s[following] = max(arrival_s.get(following, 0.0), arrival_s[node] + delays_s[node, following])
        return arrival_s[path.target]

    return max((slowest_s(all_paths[pair]) for pair in traffic), default=0.0)


def plan_links(
    directions: Sequence[Direction],
    all_paths: Mapping[Hop, Path],
    names: Sequence[str],
    *,
    experiment: Experiment,
    costs: Costs,
    delays_s: Mapping[Hop, float] | None = None,
) -> Links:
    """The plan's links as the cost model takes them, of the experiment's channel; `delays_s` are those measured, by
    direction, instead of those that are requested.

    Of several equal paths each pair takes one, in turn with pairs that are as far apart (exclusive or of their numbers:
    those of one round): as many take each as hashing makes in the mean."""
    number = {direction.hop: index for index, direction in enumerate(directions)}
    requested_s = {each.hop: each.delay_s + (costs.late_s if each.delay_s else 0.0) for each in directions}
    hops_s = requested_s | dict(delays_s or {})
    found: dict[tuple[int, int], tuple[tuple[int, ...], float]] = {}
    turns: defaultdict[tuple[str, int], Iterator[int]] = defaultdict(count)

    def path_of(pair: tuple[int, int]) -> tuple[tuple[int, ...], float]:
        if pair not in found:
            path = all_paths[names[pair[0]], names[pair[1]]]
            apart = pair[0] ^ pair[1]
            hops = _one_of(path, turn=lambda node: next(turns[node, apart]) + apart)
            found[pair] = tuple(number[hop] for hop in hops), sum(hops_s[hop] for hop in hops)
        return found[pair]

    shaped = [direction for direction in directions if not direction.requested.unshaped]
    at_once = [at_once_bytes(experiment, each.shaper, each.gso_max_segments) for each in directions]
    fraction = experiment.channel.goodput_fraction(experiment.mtu)
    return Links(
        s_per_byte=tuple(8 / (direction.rate_bps * fraction * costs.link_share) for direction in directions),
        paths=lambda pair: path_of(pair)[0],
        latency_s=lambda pair: path_of(pair)[1],
        header_bytes=experiment.channel.header_bytes,
        queue_bytes=min((direction.requested.queue_bytes for direction in shaped), default=DEFAULT_QUEUE_BYTES),
        burst_bytes=tuple(each.burst_bytes for each in at_once),
        frame_bytes=tuple(each.frame_bytes for each in at_once),
    )


class AtOnce(NamedTuple):
    """What a direction lets go at once, as payload."""

    burst_bytes: float
    """After a pause, whatever the rate."""
    frame_bytes: int
    """In one super-frame, which is sent whole."""


def at_once_bytes(experiment: Experiment, shaper: Shaper | None, max_segments: int | None) -> AtOnce:
    """Of a direction with that shaper, whose super-frames have so many segments; None: as many as the kernel makes."""
    fraction = experiment.channel.goodput_fraction(experiment.mtu)
    segment_bytes = fraction * (experiment.mtu + _ETHERNET_HEADER_BYTES)
    num_segments = int(_LONGEST_BYTES / segment_bytes) if max_segments is None else max_segments
    return AtOnce(
        burst_bytes=fraction * shaper.burst_bytes if shaper is not None else 0.0,
        frame_bytes=round(segment_bytes * num_segments),
    )


def _one_of(path: Path, *, turn: Callable[[str], int]) -> list[Hop]:
    """The hops of one of the equal paths; `turn` numbers those that come to a node at which they part."""
    hops: list[Hop] = []
    node = path.source
    while node != path.target:
        nexts = [following for source, following in path.shares if source == node]
        following = nexts[turn(node) % len(nexts)] if len(nexts) > 1 else nexts[0]
        hops.append((node, following))
        node = following
    return hops


def predict(
    experiment: Experiment,
    collective: Collective,
    buckets: Sequence[int],
    exchanges: Sequence[Exchange],
    directions: Sequence[Direction],
    world: World,
    *,
    all_paths: Mapping[Hop, Path],
    latency_s: float,
    costs: Costs,
    aggregated: Mapping[Hop, int],
    delays_s: Mapping[Hop, float] | None = None,
) -> Prediction:
    """The exchanges of one iteration, one after the other, each by the cost model on the links on its path; or what the
    most loaded link that workers share (between switches, of a host) needs for its bytes, if that is longer.

    `latency_s` is that of the :class:`Prediction`; exchanges that no aggregator adds take the latencies of their paths.
    `aggregated` are the bytes on the wire of each pair's stream up and down a tree of aggregators.
    """
    fraction = experiment.channel.goodput_fraction(experiment.mtu)
    names = participant_names(world.num_workers, world.num_servers)
    participants = set(names)
    trunks = [direction for direction in directions if participants.isdisjoint(direction.hop)]
    own = [direction for direction in directions if not participants.isdisjoint(direction.hop)]
    alone = [direction for direction in own if not direction.requested.unshaped]
    of_hosts = [direction for direction in trunks if any(node.startswith("h") for node in direction.hop)]
    if not alone:
        # Workers that share a host: its link is the first that takes time.
        own = of_hosts
        ends = World(num_workers=experiment.workers_per_host.num_hosts(experiment.workers))
    else:
        own, ends = alone, world
    used = [direction for direction in own if direction.balanced_bytes > 0] or own
    goodput_bps = min(direction.rate_bps for direction in used) * fraction
    streams = _stream_bytes(all_paths, aggregated)

    def busy_s(direction: Direction) -> float:
        return max(direction.balanced_s, streams.get(direction.hop, 0) * 8 / direction.rate_bps)

    busiest = max(trunks, key=busy_s, default=None)
    busiest_s = busy_s(busiest) if busiest is not None else 0.0
    alone_s = max((direction.balanced_s for direction in alone), default=0.0)
    decides = busiest_s > alone_s
    if not experiment.synchronisation.in_step:
        # Between a worker that shares a host and any server lies the host's link.
        goodput_bps = min([goodput_bps, *(direction.rate_bps * fraction for direction in of_hosts)])
        size_bytes = sum(buckets) * GRADIENT_ELEMENT_BYTES
        least_s = _push_pull_s(size_bytes, [*used, *of_hosts], frozenset(names[world.num_workers :]), fraction)
        # All together they share links, servers' at least. Workers that compute meanwhile seldom push all at once, and
        # then take less.
        predicted_s = max(least_s + 2 * (latency_s + costs.host_latency_s), alone_s, busiest_s)
        return Prediction(
            gradient_bytes=size_bytes,
            payload_bytes=size_bytes,
            bound_s=least_s,
            schedule_bound_s=least_s,
            predicted_s=predicted_s,
            goodput_bps=goodput_bps,
            latency_s=latency_s,
            aggregation_bps=goodput_bps / fraction,
            bottleneck=busiest.name if busiest is not None and decides and busiest_s == predicted_s else None,
            fitted_at=costs.fitted_at,
        )
    links = plan_links(
        directions,
        all_paths,
        names,
        experiment=experiment,
        costs=costs,
        delays_s=delays_s,
    )
    aggregation_bps = goodput_bps / fraction
    if decides and busiest_s:
        # A worker's chunks go on as fast as those of all that share a link with it.
        own_bytes = max(
            direction.balanced_bytes for direction in directions if not participants.isdisjoint(direction.hop)
        )
        aggregation_bps = min(aggregation_bps, 8 * own_bytes / busiest_s)

    @cache
    def lasts_s(exchange: Exchange, quiet_s: float) -> float:
        return exchanged_alone(
            collective, world, exchange, links, costs, latency_s=latency_s, rate_bps=aggregation_bps, quiet_s=quiet_s
        ).end_s

    modelled_s = sum(lasts_s(exchange, 0.0 if number else IDLE_S) for number, exchange in enumerate(exchanges))
    estimate_s = {direction.name: _any_s(direction, ends, exchanges, fraction) for direction in used}
    return Prediction(
        gradient_bytes=sum(buckets) * GRADIENT_ELEMENT_BYTES,
        payload_bytes=sum(exchange.payload_bytes(experiment.workers) for exchange in exchanges),
        bound_s=task_bound_s(exchanges, worker_ends(directions, world.num_workers, fraction)),
        schedule_bound_s=schedule_bound_s(used, trunks, estimate_s),
        predicted_s=max(modelled_s, busiest_s),
        goodput_bps=goodput_bps,
        latency_s=latency_s,
        aggregation_bps=aggregation_bps,
        bottleneck=busiest.name if busiest is not None and decides else None,
        fitted_at=costs.fitted_at,
    )


def _always(turn: int, _: str) -> int:
    return turn


def _push_pull_s(
    size_bytes: int, directions: Sequence[Direction], servers: frozenset[str], goodput_fraction: float
) -> float:
    """The least that a push and the pull after it take one worker by itself, over the slowest link of any: the whole
    over its own, and over each server's link that server's share of it, all at once."""

    def crossing_s(direction: Direction) -> float:
        share = 1 if servers.isdisjoint(direction.hop) else 1 / len(servers)
        return 8 * share * size_bytes / (direction.rate_bps * goodput_fraction)

    return 2 * max(map(crossing_s, directions))


def _stream_bytes(all_paths: Mapping[Hop, Path], aggregated: Mapping[Hop, int]) -> dict[Hop, int]:
    """Of each hop. A stream is one flow, which a switch does not split over equal paths: each takes one of them,
    neighbours different ones."""
    found: dict[Hop, int] = {}
    for number, (pair, num_bytes) in enumerate(aggregated.items()):
        turn = number // 2  # up and down in turn
        for hop in _one_of(all_paths[pair], turn=partial(_always, turn)):
            found[hop] = found.get(hop, 0) + num_bytes
    return found


def exchanged_alone(
    collective: Collective,
    world: World,
    exchange: Exchange,
    links: Links,
    costs: Costs,
    *,
    latency_s: float,
    rate_bps: float,
    quiet_s: float,
    connections: Connections | None = None,
    begins_s: Sequence[float] = (),
) -> Exchanged:
    """One exchange by itself, nothing having been sent for `quiet_s` before, by those connections (see
    `timing.exchanged`); an aggregator's is that far away, on links of that rate. The workers begin then; empty: all at
    0."""
    begins_s = begins_s or [0.0] * world.num_workers
    if exchange.sums_floats:
        own_s = collective.exchange_s(
            exchange.operation,
            exchange.num_elements,
            exchange.element_bytes,
            rate_bps=rate_bps,
            alpha_s=latency_s + costs.host_latency_s,
        )
        if own_s is not None:
            return Exchanged([max(begins_s) + own_s] * len(begins_s), connections)
    return exchanged(
        collective,
        exchange.operation,
        world,
        exchange.num_elements,
        exchange.element_bytes,
        links,
        costs,
        begins_s=[*begins_s, *[0.0] * world.num_servers],
        quiet_s=quiet_s,
        connections=connections,
    )


def _any_s(direction: Direction, world: World, exchanges: Sequence[Exchange], goodput_fraction: float) -> float:
    """What this direction of a worker's or server's link would need for the bytes that these operations must move
    through some such link, whatever the collective."""
    goodput_bps = direction.rate_bps * goodput_fraction
    return sum(
        bound_s(
            exchange.operation,
            world=world,
            size_bytes=exchange.num_elements * exchange.element_bytes,
            goodput_bps=goodput_bps,
        )
        for exchange in exchanges
    )
