"""How many bytes each hop must carry in one iteration, and of which nobody can say. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

from testbed.experiment.experiment import Experiment
from testbed.experiment.fusion.base import GRADIENT_ELEMENT_BYTES
from testbed.experiment.topologies.base import participant_names
from testbed.plan.aggregators import AggregatorPlan, shared_hops
from testbed.plan.background import Flow, uncertain_hops
from testbed.plan.paths import Hop, Path
from transports.channels.base import Channel
from transports.channels.framing import STALENESS_BYTES
from transports.collectives.base import Collective, World
from transports.collectives.cost import sent_bytes
from transports.collectives.schedules.segments import parts
from transports.compression.base import Exchange


def asynchronous_traffic(
    names: Sequence[str], num_workers: int, num_elements: int, channel: Channel, mtu: int
) -> dict[tuple[str, str], int]:
    """Wire bytes from participant to participant when each worker pushes and pulls once."""
    traffic = {}
    servers = names[num_workers:]
    for server, (_, count) in zip(servers, parts(num_elements, len(servers)), strict=True):
        shard_bytes = GRADIENT_ELEMENT_BYTES * count + channel.header_bytes
        pulled_bytes = shard_bytes + STALENESS_BYTES + channel.header_bytes
        for worker in names[:num_workers]:
            traffic[worker, server] = channel.wire_bytes(shard_bytes, mtu).forward
            traffic[server, worker] = channel.wire_bytes(pulled_bytes, mtu).forward
    return traffic


def wire_traffic(
    collective: Collective,
    channel: Channel,
    world: World,
    requested_exchanges: Sequence[Exchange],
    aggregators: Sequence[AggregatorPlan],
    mtu: int,
) -> dict[tuple[str, str], int]:
    """Wire bytes from participant to participant, or up a tree of aggregators and back, in one iteration."""
    totals: dict[tuple[str, str], int] = {}
    for exchange in requested_exchanges:
        link_bytes = collective.link_bytes(exchange.operation, exchange.num_elements, exchange.element_bytes)
        if link_bytes is not None:
            for pair in (pair for each in aggregators for pair in each.pairs):
                totals[pair] = totals.get(pair, 0) + link_bytes
        for pair, num_bytes, _ in _streams(collective, channel, world, exchange):
            totals[pair] = totals.get(pair, 0) + channel.wire_bytes(num_bytes, mtu).forward
    return totals


def split_traffic(
    collective: Collective, channel: Channel, world: World, requested_exchanges: Sequence[Exchange], mtu: int
) -> dict[tuple[str, str], int]:
    """By how much that may be more: a message that finds its connection at rest ends with a segment of its own, where
    one that follows another shares a segment with it."""
    totals: dict[tuple[str, str], int] = {}
    for exchange in requested_exchanges:
        for pair, num_bytes, num_messages in _streams(collective, channel, world, exchange):
            each = channel.wire_bytes(-(-num_bytes // max(1, num_messages)), mtu).forward
            more = num_messages * each - channel.wire_bytes(num_bytes, mtu).forward
            totals[pair] = totals.get(pair, 0) + max(0, more)
    return totals


def _streams(
    collective: Collective, channel: Channel, world: World, exchange: Exchange
) -> Iterator[tuple[tuple[str, str], int, int]]:
    """Of each pair of participants what one sends the other in an exchange: the pair, bytes with the channel's headers,
    and messages; none where the collective counts by link."""
    operation, count, element_bytes, _ = exchange
    if collective.link_bytes(operation, count, element_bytes) is not None:
        return
    names = participant_names(world.num_workers, world.num_servers)
    for (sender, receiver), traffic in sent_bytes(collective, operation, world, count, element_bytes).items():
        num_bytes = traffic.payload_bytes + traffic.num_messages * channel.header_bytes
        yield (names[sender], names[receiver]), num_bytes, traffic.num_messages


def unknown_hops(
    experiment: Experiment,
    world: World,
    all_paths: Mapping[Hop, Path],
    traffic: Mapping[Hop, int],
    background: Sequence[Flow],
    aggregators: Sequence[AggregatorPlan],
) -> set[Hop]:
    """The hops that nobody knows the bytes of, whatever paths are taken: of other traffic, of what depends on the
    gradients or the channel, of a stack with rules of its own."""
    found = uncertain_hops(background, all_paths) | shared_hops(aggregators, all_paths)
    if experiment.compression.data_dependent or not experiment.channel.countable:
        found |= {hop for pair in traffic for hop in all_paths[pair].shares}
    if experiment.stack is not None and experiment.stack.schedule is None:  # any worker may send to any other
        workers = participant_names(world.num_workers, 0)
        found |= {hop for pair in permutations(workers, 2) for hop in all_paths[pair].shares}
    return found


def expected_loads(
    all_paths: Mapping[Hop, Path], traffic: Mapping[Hop, int], unknown: set[Hop]
) -> dict[Hop, tuple[int | None, float]]:
    """Expected bytes, None where they depend on hashes, and evenly split bytes of each hop that any pair may take.

    `unknown` are hops that nobody knows the bytes of whatever the workers send.
    """
    certain: dict[Hop, int] = {}
    balanced: dict[Hop, float] = {}
    depends = set(unknown)
    for pair, wire in traffic.items():
        for hop, share in all_paths[pair].shares.items():
            balanced[hop] = balanced.get(hop, 0.0) + wire * float(share)
            certain[hop] = certain.get(hop, 0) + wire
            if share != 1:
                depends.add(hop)
        # Acknowledgements go the other way and are distinguished from data only where their path is certain.
        depends |= {hop for hop, share in all_paths[pair[1], pair[0]].shares.items() if share != 1}
    return {
        hop: (None if hop in depends else certain.get(hop, 0), balanced.get(hop, 0.0)) for hop in {*balanced, *depends}
    }
