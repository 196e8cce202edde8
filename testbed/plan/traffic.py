"""How many bytes each hop must carry in one iteration, and of which nobody can say. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

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


def participants_bytes(traffic: Mapping[Hop, int], participants: Sequence[str]) -> int:
    """What workers and servers send of it. What aggregators send is what these have sent, summed, and a program of the
    kernel's sends it over no link of its own."""
    return sum(num_bytes for (sender, _), num_bytes in traffic.items() if sender in participants)


def split_bytes(num_bytes: int, num_messages: int, channel: Channel, mtu: int) -> int:
    """By how much more than one stream of these bytes so many messages may be on the wire: one that finds its
    connection at rest ends with a segment of its own, where one that follows another shares a segment with it."""
    each_bytes = channel.wire_bytes(-(-num_bytes // max(1, num_messages)), mtu).forward
    return max(0, num_messages * each_bytes - channel.wire_bytes(num_bytes, mtu).forward)


class _Stream(NamedTuple):
    """What one participant sends another in an exchange."""

    pair: tuple[str, str]
    num_bytes: int
    """With the channel's headers."""
    num_messages: int


class Traffic:
    """What exchanges put on the wire. Schedules of large models take long to expand, so that of each exchange is
    expanded once."""

    def __init__(self, collective: Collective, channel: Channel, world: World, mtu: int) -> None:
        self._collective = collective
        self._channel = channel
        self._world = world
        self._mtu = mtu
        self._found: dict[Exchange, Sequence[_Stream]] = {}

    def wire(self, exchanges: Sequence[Exchange], aggregators: Sequence[AggregatorPlan]) -> dict[tuple[str, str], int]:
        """Wire bytes from participant to participant, or up a tree of aggregators and back, in one iteration."""
        totals: dict[tuple[str, str], int] = {}
        for exchange in exchanges:
            link_bytes = exchange.link_bytes(self._collective)
            if link_bytes is not None:
                for pair in (pair for each in aggregators for pair in each.pairs):
                    totals[pair] = totals.get(pair, 0) + link_bytes
            for stream in self._streams(exchange):
                wire_bytes = self._channel.wire_bytes(stream.num_bytes, self._mtu).forward
                totals[stream.pair] = totals.get(stream.pair, 0) + wire_bytes
        return totals

    def split(self, exchanges: Sequence[Exchange], more_message_bytes: int = 0) -> dict[tuple[str, str], int]:
        """By how much that may be more: by messages that share no segment, and by what a stack may add to each."""
        totals: dict[tuple[str, str], int] = {}
        for exchange in exchanges:
            for pair, num_bytes, num_messages in self._streams(exchange):
                more = split_bytes(num_bytes, num_messages, self._channel, self._mtu)
                totals[pair] = totals.get(pair, 0) + more + num_messages * more_message_bytes
        return totals

    def beyond(
        self, traffic: Mapping[Hop, int], exchanges: Sequence[Exchange], aggregators: Sequence[AggregatorPlan]
    ) -> dict[tuple[str, str], int]:
        """By how much these may be more than that traffic."""
        split = self.split(exchanges)
        wire = self.wire(exchanges, aggregators)
        return {pair: max(0, wire[pair] - traffic.get(pair, 0)) + split.get(pair, 0) for pair in wire}

    def _streams(self, exchange: Exchange) -> Sequence[_Stream]:
        """Of each pair of participants; none where the collective counts by link."""
        if exchange not in self._found:
            counted = exchange.link_bytes(self._collective) is not None
            self._found[exchange] = () if counted else tuple(self._expanded(exchange))
        return self._found[exchange]

    def _expanded(self, exchange: Exchange) -> Iterator[_Stream]:
        operation, count, element_bytes = exchange.operation, exchange.num_elements, exchange.element_bytes
        names = participant_names(self._world.num_workers, self._world.num_servers)
        counts = sent_bytes(self._collective, operation, self._world, count, element_bytes)
        for (sender, receiver), traffic in counts.items():
            num_bytes = traffic.payload_bytes + traffic.num_messages * self._channel.header_bytes
            yield _Stream((names[sender], names[receiver]), num_bytes, traffic.num_messages)


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
