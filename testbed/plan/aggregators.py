"""Which switches add gradients, and for whom. Pure.

An aggregator is a node of its own (`a0`) beside its switch, on a link as fast as the machine. With the data plane
`reference` a process there adds. With `ebpf` a program at the switch's end of that link does, and nothing but the
workers' joining and leaving crosses the link. Several make a tree: each adds what is directly below it, and the sums go
up to the root.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from switch_agg.job import MAX_WORKERS, Job
from switch_agg.payload import PAYLOADS
from switch_agg.wire import MAX_SLOTS, SIZES, frame_bytes
from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment
from testbed.experiment.topologies.base import Network
from testbed.plan.addressing import Port
from testbed.plan.aggregation_tree import Branch, tree_of
from testbed.plan.paths import Hop, Path
from testbed.plan.prediction import path_delay_s
from transports.collectives.base import AggregatorAssignment
from transports.collectives.in_network import InNetwork
from transports.units import format_size

ETHERNET_BYTES = 14


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantPlan:
    """Another job at an aggregator."""

    job: Job
    hosts: tuple[str, ...]
    """Its workers' nodes."""
    size_bytes: int
    """Of each of its reductions."""

    @property
    def text(self) -> str:
        """`job 1 of x0, x1: 1MiB at a time in slots 128 to 191`."""
        slots = f"slots {self.job.first_slot} to {self.job.first_slot + self.job.num_slots - 1}"
        return f"job {self.job.number} of {', '.join(self.hosts)}: {format_size(self.size_bytes)} at a time in {slots}"


@dataclass(frozen=True, kw_only=True, slots=True)
class AggregatorPlan:
    """One aggregator."""

    collective: InNetwork
    port: Port
    """Its own end of its link."""
    switch_port: Port
    children: tuple[str, ...]
    """What it adds, by name: workers, and aggregators below it."""
    workers: tuple[str, ...]
    """Their addresses."""
    parent: Port | None = None
    """Of the aggregator above."""
    parent_index: int = 0
    """Its own number among the children of that."""
    tenants: tuple[TenantPlan, ...] = ()
    """Other jobs that it serves."""

    @property
    def name(self) -> str:
        """`a0`."""
        return self.port.node

    @property
    def title(self) -> str:
        """`aggregator a0 at s0 (ebpf)`."""
        return f"aggregator {self.name} at {self.switch_port.node} ({self.collective.dataplane})"

    @property
    def job(self) -> Job:
        """The experiment's."""
        parent = None if self.parent is None else self.parent.address
        return self.collective.job(self.workers, parent=parent, parent_index=self.parent_index)

    @property
    def text(self) -> str:
        """`aggregator a1 at s0 (ebpf) adds w0, w1 for a0`."""
        above = "" if self.parent is None else f" for {self.parent.node}"
        payload = "" if self.collective.payload == "int32" else f" in {self.collective.payload}"
        return f"{self.title} adds {', '.join(self.children)}{payload}{above}"

    @property
    def pairs(self) -> tuple[Hop, ...]:
        """Who sends each chunk once to whom: its children to it, and it to them."""
        return tuple(pair for child in self.children for pair in ((child, self.name), (self.name, child)))

    @property
    def idle_hops(self) -> tuple[Hop, ...]:
        """Those that no gradient crosses although paths lead over them: the program takes packets off before."""
        if not self.collective.plane.in_kernel:
            return ()
        return (self.port.node, self.switch_port.node), (self.switch_port.node, self.port.node)


def used_collectives(experiment: Experiment) -> list[InNetwork]:
    """Those that need an aggregator. Raises SpecError for one that cannot be had here."""
    if experiment.stack is not None:
        return []
    used = dict.fromkeys(experiment.workload.collectives(experiment.collective))
    found = [each.aggregation for each in used if each.aggregation is not None]
    for collective in found:
        _require_possible(experiment, collective)
    return found


def _require_possible(experiment: Experiment, collective: InNetwork) -> None:
    if collective.aggregator is not None or collective.aggregator_index is not None:
        raise SpecError("collective.aggregator: a run makes its own; leave it out, and say `at: s0` where it is to be")
    if collective.frame_bytes > experiment.mtu + ETHERNET_BYTES:
        fitting = max(each for each in SIZES.values() if frame_bytes(each) <= experiment.mtu + ETHERNET_BYTES)
        raise SpecError(
            f"collective.num_elements: a frame of {collective.num_elements} elements has {collective.frame_bytes} "
            f"bytes, and links carry packets of {experiment.mtu}; allowed: at most {fitting}, "
            "or a larger `mtu`"
        )
    lanes = PAYLOADS[collective.payload].lanes
    plane = collective.plane
    if plane.max_values is not None and collective.num_values > plane.max_values:
        raise SpecError(
            f"collective.num_elements: the data plane {plane.kind} adds at most {plane.max_values // lanes} elements "
            f"of {collective.payload} at a time; allowed: at most {plane.max_values // lanes}, or dataplane: reference"
        )
    if collective.payload != "int32" and collective.tenants:
        raise SpecError(
            f"collective.payload: other jobs check that their sums are exact, and {collective.payload} rounds; leave "
            "collective.tenants out, or say payload: int32"
        )
    if collective.partial_after_s is not None and not plane.has_clock:
        raise SpecError(
            f"collective.partial_after: the data plane {collective.dataplane} has no clock; say dataplane: reference"
        )
    if reason := experiment.workload.unsupported_aggregation(collective):
        raise SpecError(f"collective.{reason}")
    if experiment.workers > MAX_WORKERS:
        raise SpecError(
            f"workers: a switch aggregates for at most {MAX_WORKERS} workers, not {experiment.workers}; use fewer, or "
            "a ring"
        )
    if not experiment.switch.routes:
        raise SpecError("switch: in_network needs switches that route to the aggregator; allowed: routed")


def attached_aggregators(experiment: Experiment, network: Network) -> dict[str, str]:
    """The switch of each aggregator. Raises SpecError when there is no such switch."""
    return {place.name: place.switch for place in _places(experiment, network)}


def plan_aggregators(
    experiment: Experiment, network: Network, links: Sequence[tuple[Port, Port]]
) -> tuple[AggregatorPlan, ...]:
    """Those of :func:`attached_aggregators`, once there are addresses; each root comes before what is below it."""
    ends: Mapping[str, tuple[Port, Port]] = {first.node: (first, second) for first, second in links}
    return tuple(
        AggregatorPlan(
            collective=place.collective,
            port=ends[place.name][0],
            switch_port=ends[place.name][1],
            children=place.children,
            workers=tuple(ends[child][0].address for child in place.children),
            parent=None if place.parent is None else ends[place.parent.name][0],
            parent_index=0 if place.parent is None else place.parent.children.index(place.name),
            tenants=_tenants(place.collective, ends, [node.name for node in network.nodes if node.role == "traffic"]),
        )
        for place in _places(experiment, network)
    )


def _tenants(
    collective: InNetwork, ends: Mapping[str, tuple[Port, Port]], traffic_hosts: Sequence[str]
) -> tuple[TenantPlan, ...]:
    """With the slots behind the experiment's, one quota after the other."""
    found: list[TenantPlan] = []
    first_slot, taken = collective.num_slots, set[str]()
    for index, requested in enumerate(collective.tenants):
        path = f"collective.tenants.{index}"
        for host in requested.workers:
            if host not in traffic_hosts:
                there = ", ".join(traffic_hosts) or "none yet: say `hosts: {x0: {at: s0}}`"
                raise SpecError(f"{path}.workers: {host!r} is no host for background traffic; there are {there}")
            if host in taken:
                raise SpecError(f"{path}.workers: {host} has a place in a job already")
            taken.add(host)
        if first_slot + requested.num_slots > MAX_SLOTS:
            raise SpecError(f"{path}.num_slots: a switch has {MAX_SLOTS} slots, and {first_slot} are taken")
        job = Job(
            number=index + 1,
            workers=tuple(ends[host][0].address for host in requested.workers),
            num_elements=collective.num_elements,
            first_slot=first_slot,
            num_slots=requested.num_slots,
        )
        found.append(TenantPlan(job=job, hosts=requested.workers, size_bytes=requested.size_bytes))
        first_slot += requested.num_slots
    return tuple(found)


def shared_hops(aggregators: Sequence[AggregatorPlan], all_paths: Mapping[Hop, Path]) -> set[Hop]:
    """The hops on which other jobs put bytes, nobody knows how many."""
    pairs = [
        pair
        for each in aggregators
        for tenant in each.tenants
        for host in tenant.hosts
        for pair in ((host, each.name), (each.name, host))
    ]
    return {hop for pair in pairs for hop in all_paths[pair].shares}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    name: str
    switch: str
    collective: InNetwork
    children: tuple[str, ...]
    parent: "_Place | None"


def _places(experiment: Experiment, network: Network) -> list[_Place]:
    """Numbered from the root down, one collective after the other."""
    found: list[_Place] = []
    for collective in used_collectives(experiment):
        root = tree_of(network, experiment.workers, collective.at)
        if collective.partial_after_s is not None and any(isinstance(child, Branch) for child in root.children):
            raise SpecError(
                "collective.partial_after: in a tree nobody knows how many workers a partial sum stands for; leave it "
                f"out, or let one switch aggregate: at: {root.switch}"
            )
        if collective.payload != "int32" and any(isinstance(child, Branch) for child in root.children):
            raise SpecError(
                f"collective.payload: a tree would round sums of {collective.payload} at each level; say payload: "
                f"int32, or let one switch aggregate: at: {root.switch}"
            )
        if collective.tenants and any(isinstance(child, Branch) for child in root.children):
            raise SpecError(
                f"collective.tenants: jobs share one switch, not a tree; leave them out, or say at: {root.switch}"
            )
        waiting: deque[tuple[Branch, _Place | None]] = deque([(root, None)])
        while waiting:
            branch, parent = waiting.popleft()
            numbers = count(len(found) + 1 + len(waiting))
            place = _Place(
                name=f"a{len(found)}",
                switch=branch.switch,
                collective=collective,
                children=tuple(
                    f"a{next(numbers)}" if isinstance(child, Branch) else child for child in branch.children
                ),
                parent=parent,
            )
            found.append(place)
            waiting += [(child, place) for child in branch.children if isinstance(child, Branch)]
    return found


def assignments_of(aggregators: Sequence[AggregatorPlan], rank: int) -> dict[str, AggregatorAssignment]:
    """The worker's aggregator and its number there, by `InNetwork.identity`."""
    return {
        each.collective.identity: (each.port.address, each.children.index(f"w{rank}"))
        for each in aggregators
        if f"w{rank}" in each.children
    }


def workers_below(aggregators: Sequence[AggregatorPlan], aggregator: AggregatorPlan) -> tuple[int, ...]:
    """The ranks whose contributions are in its sums."""
    by_name = {each.name: each for each in aggregators}
    found: list[int] = []
    for child in aggregator.children:
        found += workers_below(aggregators, by_name[child]) if child in by_name else [int(child.removeprefix("w"))]
    return tuple(found)


def aggregated_traffic(aggregators: Sequence[AggregatorPlan], traffic: Mapping[Hop, int]) -> dict[Hop, int]:
    """What of it goes up and down trees, by pair."""
    pairs = [pair for each in aggregators for pair in each.pairs]
    return {pair: traffic[pair] for pair in pairs if pair in traffic}


def exchange_delay_s(
    all_paths: Mapping[Hop, Path],
    traffic: Mapping[Hop, int],
    aggregators: Sequence[AggregatorPlan],
    delays_s: Mapping[Hop, float],
) -> float:
    """One way of a message over the slowest path that carries anything, given each hop's delay; where aggregators add
    any of it, the one to them, however far workers who agree on buckets are from each other."""
    adding = [each for each in aggregators if not traffic.keys().isdisjoint(each.pairs)]
    return aggregation_delay_s(all_paths, adding, delays_s) if adding else path_delay_s(all_paths, traffic, delays_s)


def aggregation_delay_s(
    all_paths: Mapping[Hop, Path], aggregators: Sequence[AggregatorPlan], delays_s: Mapping[Hop, float]
) -> float:
    """Half a round trip between the farthest worker and the aggregator that has all sums, up and down a whole tree
    where there is one, given each hop's delay; 0 without aggregators."""
    by_name = {each.name: each for each in aggregators}

    def below_s(aggregator: AggregatorPlan) -> float:
        return max(
            sum(
                path_delay_s(all_paths, {hop: 0}, delays_s)
                for hop in ((child, aggregator.name), (aggregator.name, child))
            )
            / 2
            + (below_s(by_name[child]) if child in by_name else 0.0)
            for child in aggregator.children
        )

    return max((below_s(each) for each in aggregators if each.parent is None), default=0.0)
