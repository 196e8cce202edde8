"""RunSpec -> Plan: everything that can be decided before anything is made. Pure, and printable without root.

Switches route (testbed.plan.addressing) or bridge (testbed.plan.bridging); neighbour entries are static.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from testbed.errors import SpecError, as_spec_errors
from testbed.experiment.clock import SCALE_INVARIANT, TCP_RTO_MIN_S, Clock
from testbed.experiment.delay_backends.base import DelayStage, delay_backends
from testbed.experiment.experiment import Experiment
from testbed.experiment.fusion.base import GRADIENT_ELEMENT_BYTES
from testbed.experiment.host import HostSpec, Limits, resolve_hosts
from testbed.experiment.link import AUTO, MAX_RATE_BPS, MIN_RATE_BPS, BackendName, LinkSpec
from testbed.experiment.storage.base import STORAGE_ENTRY, STORAGE_NODE
from testbed.experiment.topologies.base import END_HOSTS, PARTICIPANTS, participant_names
from testbed.experiment.workloads.base import changed_options
from testbed.links.htb import Shaper, gso_max_segments
from testbed.plan.addressing import Port
from testbed.plan.aggregators import (
    AggregatorPlan,
    aggregated_traffic,
    aggregation_delay_s,
    assignments_of,
    exchange_delay_s,
    plan_aggregators,
)
from testbed.plan.background import Flow, plan_flows
from testbed.plan.buckets import buckets_of, exchanges, exchanges_of_layers, patterns, require_synchronisable
from testbed.plan.direction import Direction
from testbed.plan.forwarding import forwarding
from testbed.plan.graph_traffic import graph_traffic
from testbed.plan.link_configuration import LinkConfig, link_configs
from testbed.plan.machines import Spread
from testbed.plan.nodes import NodePlan, buffer_sysctls, node_plan
from testbed.plan.paths import Hop, Path, next_hops, paths
from testbed.plan.placement import place, racks_of
from testbed.plan.prediction import Prediction, at_once_bytes, exchanged_alone, path_delay_s, predict
from testbed.plan.requested_links import able, requested_over_time, unsupported
from testbed.plan.storage import StoragePlan, plan_storage, storage_incompatibilities
from testbed.plan.traffic import Traffic, asynchronous_traffic, expected_loads, participants_bytes, unknown_hops
from transports.collectives.base import COLLECTIVES, Collective, World
from transports.collectives.costs import DEFAULT_COSTS, Costs
from transports.collectives.network_info import DEFAULT_QUEUE_BYTES, NetworkInfo
from transports.collectives.timing import Links
from transports.compression.base import Exchange, Pattern
from transports.units import format_rate


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Everything decided; in virtual time, but for what the kernel and programs are given (`nodes`)."""

    experiment: Experiment
    clock: Clock
    """How much slower time runs."""
    dilation_reason: str
    """Why, in a sentence; empty where the spec says the factor itself."""
    congestion: str
    delay_backend: BackendName | None
    """None: no link has delay, jitter or loss."""
    nodes: tuple[NodePlan, ...]
    links: tuple[tuple[Port, Port], ...]
    directions: tuple[Direction, ...]
    requested: Mapping[Hop, LinkConfig]
    """Of every direction at the start, with the keys of the spec that request it."""
    all_configured: tuple[LinkConfig, ...]
    """The same, and every configuration that `changes` gives a direction later."""
    buckets: tuple[int, ...]
    """Elements in each bucket, in the order they become ready."""
    aggregators: tuple[AggregatorPlan, ...]
    """What adds gradients beside switches."""
    exchanges: tuple[Exchange, ...]
    """The operations that they request of the collective; an estimate where their size depends on the gradients."""
    patterns: tuple[Pattern, ...]
    """How the payloads of each bucket meet."""
    uncompressed_bytes: int
    """What workers and servers would send in one iteration without compression, on the wire."""
    prediction: Prediction
    costs: Costs
    """What the prediction takes hosts to add to links: the machine's, which in virtual time is k times faster, or is
    not with `host_cost: real`."""
    network_info: NetworkInfo
    """What collectives get to know that choose by it, with hosts that are as fast as this machine, so that dilation
    changes no decision."""
    paths: Mapping[Hop, Path]
    """Of every ordered pair of hosts."""
    collective: Collective
    """The spec's, with what it has left open filled in from the network."""
    propagation_s: float
    """On the slowest path between two participants, as the links are configured."""
    latency_s: float
    """Of an empty message there, as whatever decides by it gets it: with hosts that are as fast as this machine, so
    that dilation changes no decision."""
    world: World
    """The participants of every exchange of gradients."""
    traffic: Mapping[Hop, int]
    """Wire bytes from worker, or server, to worker or server in one iteration."""
    hosts: Mapping[str, HostSpec]
    """Limits and slowdowns, by worker, of those that have any."""
    background: tuple[Flow, ...]
    storage: StoragePlan | None
    """What workers read their training data from; None: data are where they are needed."""
    spread: Spread | None = None
    """Over several machines; None: all is on this one."""

    def host(self, rank: int) -> HostSpec:
        """The settings of the worker's host; none where it is not named."""
        return self.hosts.get(f"w{rank}", HostSpec.model_construct())

    def limits(self, rank: int) -> Limits:
        """What control groups do to the worker, in real time."""
        limits = self.host(rank).limits
        if self.experiment.host_cost == "faster":
            return limits
        cores = 1.0 if limits.cpu_cores is None else limits.cpu_cores
        return replace(limits, cpu_cores=cores / self.clock.dilation)

    @property
    def quotas(self) -> Mapping[str, float]:
        """Of the workers that have a quota of CPU time: cores, in real time."""
        limits = {f"w{rank}": self.limits(rank) for rank in range(self.experiment.workers)}
        return {name: each.cpu_cores for name, each in limits.items() if each.cpu_cores is not None}

    @property
    def quota_cores(self) -> float:
        """Of all workers that have a quota, in cores of real time."""
        return sum(self.quotas.values())

    @property
    def needs_multipath(self) -> bool:
        """Whether any node has several next hops to one destination."""
        return any(len(route.gateways) > 1 for node in self.nodes for route in node.addresses.routes)

    def node(self, name: str) -> NodePlan:
        """The node of that name."""
        return next(node for node in self.nodes if node.name == name)

    @property
    def all_reduces(self) -> tuple[Exchange, ...]:
        """Of the exchanges those that add up; none where all payloads are gathered, or pushed and pulled."""
        return tuple(each for each in self.exchanges if each.operation == "all_reduce")

    @property
    def chosen(self) -> tuple[Collective, ...]:
        """What does each all-reduce: the collective, or the one that it picks for so many bytes, which compression has
        made fewer than the bucket's."""
        return tuple(
            self.collective.chosen(self.world, each.num_elements, element_bytes=each.element_bytes)
            for each in self.all_reduces
        )

    def collective_of(self, rank: int) -> Collective:
        """The collective as the worker gets it: with its own aggregator."""
        return self.collective.with_assignment(assignments_of(self.aggregators, rank))

    @property
    def participants(self) -> tuple[str, ...]:
        """The nodes of workers, by rank, and of servers."""
        return tuple(node.name for node in self.nodes if node.role in PARTICIPANTS)

    @property
    def sent_bytes(self) -> int:
        """What workers and servers send in one iteration, on the wire."""
        return participants_bytes(self.traffic, self.participants)

    def host_addresses(self) -> dict[str, str]:
        """The host of each address."""
        ends = {node.name for node in self.nodes if node.role in END_HOSTS}
        return {first.address: first.node for first, _ in self.links if first.node in ends}

    def host_names(self) -> dict[str, str]:
        """The address of each host, by the name that it has and that every host knows."""
        return {node: address for address, node in self.host_addresses().items()}

    def worker_port(self, rank: int) -> Port:
        """The worker's end of its link."""
        return self.port_of(f"w{rank}")

    def port_of(self, host: str) -> Port:
        """The end of its link of a worker or server."""
        return next(a for a, _ in self.links if a.node == host)

    def changed(self, direction: Direction, requested: LinkConfig) -> Direction:
        """The direction once it is configured so. Raises SpecError when what makes its delay cannot do it, and for a
        rate that would really be too low."""
        spec, stage, real = requested.spec, direction.delay_stage, _really(requested, self.clock)
        most_bps = self.requested[direction.hop].spec.rate_bps
        if self.spread is not None and self.spread.crosses(direction.hop) and spec.rate_bps > most_bps:
            raise SpecError(
                f"{direction.name}: the link is between two machines, whose network was measured for "
                f"{format_rate(most_bps)} here; allowed: at most that"
            )
        if stage is None and spec.needs_delay_stage:
            raise SpecError(
                f"{direction.name}: the run began without a delay line on this link, so it cannot have delay, jitter "
                "or loss now; ask for some with `link`, `links` or `changes` in the spec"
            )
        if spec.ecn_bytes is not None and all(each.spec.ecn_bytes is None for each in self.all_configured):
            raise SpecError(
                f"{direction.name}: the run began without ECN, so no connection asks for marks now; ask for some with "
                "`link`, `links` or `changes` in the spec"
            )
        if stage is not None:
            wrong = unsupported(
                [real],
                stage.backend,
                superframes=self.experiment.packet_bytes > self.experiment.mtu,
                bridged=not self.experiment.switch.routes,
            )
            if wrong:
                raise SpecError("\n".join(wrong))
            then = delay_backends()[stage.backend].stage(
                spec,
                interface=stage.interface,
                index=next(index for index, each in enumerate(self.directions) if each.hop == direction.hop),
                seed=self.experiment.seed,
            )
            stage = then.following(stage)
        shaper = direction.shaper
        if shaper is not None:
            shaper = _shaper(shaper.interface, spec, self.clock, self.delay_backend)
        return replace(direction, requested=spec, shaper=shaper, delay_stage=stage)

    @property
    def dilation_text(self) -> str:
        """How much slower time runs, and why that was chosen; empty where it is not dilated and nobody requested it."""
        if self.dilation_reason:
            return self.dilation_reason
        return "" if self.clock.dilation == 1 else f"time runs {self.clock.dilation:g} times slower, as the spec says"

    def real(self) -> "Plan":
        """The same as the machine is to do it: links and background flows are configured in real time, and a clock
        that changes nothing. Nobody who is given this one needs to know of dilation."""
        directions = self.clock.real(self.directions)
        return replace(self, clock=Clock(), directions=directions, background=self.clock.real(self.background))

    @property
    def warnings(self) -> list[str]:
        """What a reader should know of numbers in dilated time."""
        if self.clock.dilation == 1 or self.experiment.channel.counts_itself or self.congestion in SCALE_INVARIANT:
            return []
        warning = (
            f"TCP {self.congestion} goes by a clock that cannot be dilated: after a loss or at the start of a "
            f"connection its window follows other curves in virtual time; {', '.join(sorted(SCALE_INVARIANT))} do not"
        )
        return [warning]

    @property
    def watched(self) -> bool:
        """Whether a Prometheus of the run's own scrapes it."""
        return self.experiment.metrics.prometheus is not None

    @property
    def decided(self) -> dict[str, Any]:
        """What a spec may leave to the machine, as it is here: on another machine, or on this one after `testbed fit`,
        `testbed doctor` or a kernel module, the same spec may be another run. Plain data, for the record."""
        collectives = self.experiment.workload.collectives(self.collective)
        return {
            "delay_backend": self.delay_backend,
            "dilation": self.clock.dilation,
            "buckets": list(self.buckets),
            "collectives": {
                str(number): COLLECTIVES.dump(each.with_network_info(self.network_info))
                for number, each in enumerate(collectives)
            },
        }

    @property
    def goes_by_costs(self) -> bool:
        """Whether something of it was decided by what hosts add to links, as far as that was fitted on this machine."""
        experiment = self.experiment
        collectives = experiment.workload.collectives(experiment.collective)
        return experiment.fusion.goes_by_costs or any(each.goes_by_hosts for each in collectives)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the record and for `testbed plan --json`."""
        quotas = self.quotas
        return {
            "spec": self.experiment.dump(),
            "spec_sha256": self.experiment.sha256(),
            "dilation": self.clock.dilation,
            "dilation_reason": self.dilation_reason,
            "warnings": self.warnings,
            "congestion": self.congestion,
            "delay_backend": self.delay_backend,
            "nodes": [asdict(node) for node in self.nodes],
            "paths": [
                {"from": path.source, "to": path.target, "path": path.text, "bytes": self.traffic.get(pair, 0)}
                for pair, path in self.paths.items()
            ],
            "directions": [direction.to_json() for direction in self.directions],
            "processes": [
                {
                    "name": name,
                    "host": name,
                    "entry": f"testbed.worker.{'agent' if name[0] == 'w' else 'parameter_server'}:main",
                    **({} if name not in quotas else {"cpu_cores": quotas[name]}),
                }
                for name in self.participants
            ]
            + ([{"name": "prometheus", "host": "root", "program": "prometheus"}] if self.watched else [])
            + [
                {"name": f"background-{flow.index}-{role}", "host": port.node, "program": "traffic"}
                for flow in self.background
                for role, port in (("sink", flow.target), ("source", flow.source))
            ]
            + ([{"name": STORAGE_NODE, "host": STORAGE_NODE, "entry": STORAGE_ENTRY}] if self.storage else [])
            + [
                {"name": f"aggregator-{each.name}", "host": each.name, "entry": "testbed.worker.aggregator:main"}
                for each in self.aggregators
            ]
            + [
                {
                    "name": f"tenant-{each.name}-{tenant.job.number}",
                    "host": host,
                    "entry": "testbed.worker.tenant:main",
                }
                for each in self.aggregators
                for tenant in each.tenants
                for host in tenant.hosts
            ],
            "hosts": {
                worker: spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
                for worker, spec in self.hosts.items()
            },
            "background": [flow.to_json() for flow in self.background],
            "storage": None if self.storage is None else self.storage.to_json(),
            **({} if self.spread is None else {"spread": self.spread.to_json()}),
            "buckets": list(self.buckets),
            "exchanges": [exchange._asdict() for exchange in self.exchanges],
            "patterns": list(self.patterns),
            "uncompressed_bytes": self.uncompressed_bytes,
            "collective": COLLECTIVES.dump(self.collective),
            "chosen": [collective.kind for collective in self.chosen],
            "prediction": asdict(self.prediction),
        }


@as_spec_errors()
def make_plan(
    experiment: Experiment,
    *,
    works: Callable[[BackendName], bool] = lambda _: True,
    costs: Costs = DEFAULT_COSTS,
    num_cores: int | None = None,
    chosen_dilation: tuple[float, str] | None = None,
) -> Plan:
    """Decide everything; `works` says whether this machine has a backend, for `link.backend: auto`, `costs` what its
    hosts add to links, in real time, `num_cores` what choices take hosts to share where no costs were fitted (None:
    each has a core of its own), and `chosen_dilation` what `dilation: auto` is here, and why.

    Raises SpecError for combinations that cannot be right.
    """
    clock, dilation_reason = _clock(experiment, chosen_dilation)
    incompatibilities = [*experiment.workload.incompatibilities(experiment), *storage_incompatibilities(experiment)]
    if incompatibilities:
        raise SpecError("\n".join(incompatibilities))
    if experiment.host_cost == "real" and (refused := _unsharable(experiment)):
        raise SpecError("\n".join(refused))
    exchanged_with = _exchanged_with(experiment)
    network = place(experiment)
    intra_host = experiment.workers_per_host.intra_host
    requested = link_configs(
        network, experiment.link, intra_host, experiment.links, packet_bytes=experiment.packet_bytes
    )
    all_configured = requested_over_time(
        list(requested.values()), experiment.changes, packet_bytes=experiment.packet_bytes
    )
    really = [_really(each, clock) for each in all_configured]
    with _said_to_be_real(clock):
        delay_backend = _delay_backend(experiment, really, works)
    staged = {each.hop for each in all_configured if each.spec.needs_delay_stage}
    hops = next_hops(network)
    links, addresses = forwarding(experiment.switch, network, hops)
    all_paths = paths(hops)
    aggregators = plan_aggregators(experiment, network, links)
    adding = [each for each in aggregators if each.collective == experiment.collective]
    channel = experiment.channel
    costs = costs.of_channel(channel.kind)
    delays_s = {hop: each.spec.delay_s for hop, each in requested.items()}
    besides = {node.name for node in network.nodes if node.role in ("traffic", "storage")}
    between = {pair: 0 for pair in all_paths if besides.isdisjoint(pair)}
    propagation_s = path_delay_s(all_paths, between, delays_s)
    latency_s = propagation_s + costs.host_latency_s
    least_rates_bps = _least_rates_bps(all_configured)
    shaped = {hop: each.spec for hop, each in requested.items() if not each.spec.unshaped and besides.isdisjoint(hop)}
    rate_bps = min((spec.rate_bps for spec in shaped.values()), default=MAX_RATE_BPS)
    fraction = channel.goodput_fraction(experiment.mtu)
    goodput_bps = rate_bps * fraction * costs.link_share
    queue_bytes = min((spec.queue_bytes for spec in shaped.values()), default=DEFAULT_QUEUE_BYTES)
    slowest = next((hop for hop, spec in shaped.items() if spec.rate_bps == rate_bps), None)
    shaper = _shaper("", shaped[slowest], clock, delay_backend) if slowest is not None else None
    least_bps = rate_bps if slowest is None else least_rates_bps[slowest]
    burst_bytes, frame_bytes = at_once_bytes(
        experiment, shaper, gso_max_segments(experiment.packet_bytes, experiment.mtu, least_bps)
    )
    at_once = {"burst_bytes": round(burst_bytes), "frame_bytes": frame_bytes}
    network_info = NetworkInfo(
        latency_s=latency_s,
        rate_bps=goodput_bps,
        queue_bytes=queue_bytes,
        # What was fitted knows of the cores.
        costs=costs if costs.fitted_at else replace(costs, num_cores=num_cores),
        **at_once,
    )
    collective = exchanged_with.with_network_info(
        network_info, tensors=tuple(prod(shape) for shape in experiment.workload.gradient_shapes())
    )
    world = collective.world(experiment.workers, racks=racks_of(network, experiment.workers))
    moved = Traffic(collective, channel, world, experiment.mtu)
    idle_hops = {hop for each in aggregators for hop in each.idle_hops}
    participants = participant_names(world.num_workers, world.num_servers)

    def all_reduce_s(num_elements: int) -> float:
        """On a star of the slowest link, or what shared links need for the bytes, if that is longer."""
        exchange = Exchange("all_reduce", num_elements, GRADIENT_ELEMENT_BYTES)
        links = Links.star(
            world.size,
            rate_bps=goodput_bps,
            latency_s=propagation_s,
            header_bytes=channel.header_bytes,
            queue_bytes=queue_bytes,
            **at_once,
        )
        alone_s = exchanged_alone(
            collective,
            world,
            exchange,
            links,
            costs,
            latency_s=aggregation_delay_s(all_paths, adding, delays_s),
            rate_bps=rate_bps,
            quiet_s=0.0,
        ).end_s
        shared_s = (
            balanced_bytes * 8 / requested[hop].spec.rate_bps
            for hop, (_, balanced_bytes) in expected_loads(all_paths, moved.wire([exchange], adding), set()).items()
            if hop not in idle_hops and set(participants).isdisjoint(hop)
        )
        return max([alone_s, *shared_s])

    buckets = buckets_of(experiment, all_reduce_s)
    require_synchronisable(experiment)
    requested_exchanges: tuple[Exchange, ...] = ()
    split: Mapping[Hop, int] = {}
    if not experiment.synchronisation.in_step:
        traffic = asynchronous_traffic(participants, world.num_workers, sum(buckets), channel, experiment.mtu)
    elif (graph := experiment.workload.graph()) is not None:
        traffic, split = graph_traffic(graph, collective, channel, world.racks, experiment.mtu)
    else:
        requested_exchanges = exchanges(experiment, buckets)
        traffic = moved.wire(requested_exchanges, adding)
        if experiment.fusion.joins_ready:
            split = moved.beyond(traffic, exchanges_of_layers(experiment), adding)
        else:
            split = moved.split(requested_exchanges, experiment.stack.more_message_bytes if experiment.stack else 0)
    ports = {first.node: first for first, _ in links if first.node in hops}
    background = plan_flows(experiment.background, ports, all_paths)
    storage = plan_storage(experiment, ports, all_paths, {hop: each.spec.rate_bps for hop, each in requested.items()})
    unknown = unknown_hops(experiment, world, all_paths, traffic, background, aggregators)
    loads = expected_loads(all_paths, traffic, unknown)
    loads |= dict.fromkeys(idle_hops, (0, 0.0))
    splits = expected_loads(all_paths, split, unknown)
    ends = [pair for first, second in links for pair in ((first, second), (second, first))]
    directions = tuple(
        _direction(
            requested[sender.node, receiver.node],
            sender,
            receiver,
            index,
            delay_backend,
            staged=(sender.node, receiver.node) in staged,
            least_bps=least_rates_bps[sender.node, receiver.node],
            loads=loads,
            splits=splits,
            storage=storage,
            experiment=experiment,
            clock=clock,
        )
        for index, (sender, receiver) in enumerate(ends)
    )
    real_directions = clock.real(directions)
    longest_delays_s = _longest_delays_s(all_configured)
    slowest_s = max(
        path_delay_s(all_paths, traffic, longest_delays_s),
        aggregation_delay_s(all_paths, adding, longest_delays_s),
        0.0 if storage is None else path_delay_s(all_paths, storage.pairs, longest_delays_s),
    )
    longest_s = exchange_delay_s(
        all_paths, traffic, adding, {direction.hop: direction.delay_s for direction in directions}
    )
    congestion = channel.congestion_control or "cubic"
    # With a share of its own, each host has a core of its own in virtual time.
    virtual_costs = replace(costs, num_cores=None) if experiment.host_cost == "real" else clock.virtual(costs)
    return Plan(
        experiment=experiment,
        clock=clock,
        dilation_reason=dilation_reason,
        congestion=congestion,
        delay_backend=delay_backend,
        nodes=tuple(
            node_plan(
                node,
                [port for ends in links for port in ends if port.node == node.name],
                addresses[node.name],
                real_directions,
                congestion=congestion,
                rto_min_ms=None if clock.dilation == 1 else round(1e3 * clock.real_s(TCP_RTO_MIN_S)),
                seed=experiment.seed,
                mtu=experiment.mtu,
                marks=any(each.spec.ecn_bytes is not None for each in all_configured),
                num_subflows=max((each.num_subflows for each in experiment.workload.channels(channel)), default=1),
                buffer_sysctls=buffer_sysctls(all_configured, slowest_s),
            )
            for node in network.nodes
        ),
        links=links,
        directions=directions,
        requested=requested,
        all_configured=tuple(all_configured),
        buckets=buckets,
        aggregators=aggregators,
        exchanges=requested_exchanges,
        patterns=patterns(experiment, buckets),
        uncompressed_bytes=participants_bytes(
            moved.wire([Exchange("all_reduce", count, GRADIENT_ELEMENT_BYTES) for count in buckets], adding),
            participants,
        ),
        prediction=predict(
            experiment,
            collective,
            buckets,
            requested_exchanges,
            directions,
            world,
            all_paths=all_paths,
            latency_s=longest_s,
            costs=virtual_costs,
            aggregated=aggregated_traffic(adding, traffic),
        ),
        costs=virtual_costs,
        network_info=network_info,
        paths=all_paths,
        collective=collective,
        propagation_s=propagation_s,
        latency_s=latency_s,
        world=world,
        traffic=traffic,
        hosts=resolve_hosts(experiment.hosts, [f"w{rank}" for rank in range(experiment.workers)]),
        background=background,
        storage=storage,
    )


def _clock(experiment: Experiment, chosen: tuple[float, str] | None) -> tuple[Clock, str]:
    """And why, where the spec leaves it open. Raises SpecError for what cannot be dilated."""
    if experiment.dilation != "auto":
        clock, reason = Clock(float(experiment.dilation)), ""
    elif chosen is None:
        raise SpecError("dilation: auto is decided by what a machine carries, and nobody has said what that is")
    else:
        clock, reason = Clock(chosen[0]), chosen[1]
    if clock.dilation != 1 and (undilatable := experiment.undilatable()):
        raise SpecError("\n".join(undilatable))
    return clock, reason


def _unsharable(experiment: Experiment) -> list[str]:
    """Why `host_cost: real` cannot be had, each with the fix."""
    found = [f"host_cost: real is for what can be run in slower time: {line}" for line in experiment.undilatable()]
    if experiment.collective.num_servers:
        found.append(
            f"host_cost: real holds workers to their share of CPU time, and collective {experiment.collective.kind} "
            "has servers, which nothing holds; allowed: a collective without servers, or host_cost: faster"
        )
    return found


def _really(requested: LinkConfig, clock: Clock) -> LinkConfig:
    """The same in real time, as the kernel gets it. Raises SpecError for what would be too slow to be configured."""
    real = LinkConfig(link=requested.link, hop=requested.hop, spec=clock.real(requested.spec), keys=requested.keys)
    if real.spec.rate_bps < MIN_RATE_BPS:
        raise SpecError(
            f"{requested.key('rate')}: {' -> '.join(requested.hop)} has {format_rate(requested.spec.rate_bps)}, which "
            f"would really be {real.spec.rate_bps / 1e6:.3g}mbit at dilation {clock.dilation:g}; allowed: "
            f"{format_rate(MIN_RATE_BPS)} or more, so at most dilation {requested.spec.rate_bps / MIN_RATE_BPS:g}"
        )
    return real


@contextmanager
def _said_to_be_real(clock: Clock) -> Iterator[None]:
    """Whatever is refused for what a link really is says so."""
    try:
        yield
    except SpecError as error:
        real = f" (real time, at dilation {clock.dilation:g})" if clock.dilation != 1 else ""
        raise SpecError("\n".join(f"{line}{real}" for line in str(error).splitlines())) from None


def _shaper(interface: str, spec: LinkSpec, clock: Clock, backend: BackendName | None) -> Shaper | None:
    """The shaper of a direction with that configuration; None where what delays its packets shapes it, too."""
    if backend and delay_backends()[backend].shapes:
        return None
    return Shaper.of(
        interface=interface,
        rate_bps=spec.rate_bps,
        queue_bytes=spec.queue_bytes,
        real_bps=clock.real_bps(spec.rate_bps),
    )


def _exchanged_with(experiment: Experiment) -> Collective:
    """The spec's collective, or a baseline library's own; for a stack that chooses by rules of its own the ring, whose
    bytes on a worker's link no all-reduce of long buffers undercuts. Raises SpecError for what a stack would ignore."""
    stack = experiment.stack
    if stack is None:
        return experiment.collective
    standard = Experiment(name="standard")
    if experiment.collective != standard.collective:
        raise SpecError(
            f"stack: {stack.kind} is a baseline library with algorithms of its own and has no use for collective "
            f"{experiment.collective.kind}; leave one of the two out (collective: ring is the same as none)"
        )
    if experiment.channel.kind != standard.channel.kind:
        raise SpecError(
            f"stack: {stack.kind} is a baseline library over TCP and has no use for channel {experiment.channel.kind}; "
            "leave one of the two out (of channel tcp, `congestion` is for every stack)"
        )
    ignored = [name for name in changed_options(experiment.channel, standard.channel) if name != "congestion"]
    if ignored:
        raise SpecError(
            f"channel.{ignored[0]}: stack {stack.kind} opens its own connections and has no use for it; leave it "
            "out (of channel tcp, `congestion` is for every stack)"
        )
    if stack.enters_namespaces and not experiment.runtime.enters_hosts:
        raise SpecError(
            f"stack: {stack.kind} starts its ranks in the network namespaces of the hosts, and runtime "
            f"{experiment.runtime.kind} has processes that see their own alone; allowed: runtime namespace"
        )
    return stack.schedule or experiment.collective


def _delay_backend(
    experiment: Experiment, requested: Iterable[LinkConfig], works: Callable[[BackendName], bool]
) -> BackendName | None:
    """The one that makes the delays of all links; None where none is requested. Raises SpecError when none can."""
    superframes, bridged = experiment.packet_bytes > experiment.mtu, not experiment.switch.routes
    unshapely = [each for each in requested if each.spec.needs_delay_stage or each.spec.ecn_bytes is not None]
    if experiment.link.backend != AUTO and delay_backends()[experiment.link.backend].shapes:
        unshapely = list(requested)  # it makes rate and queue as well
    if not unshapely:
        return None
    if experiment.link.backend != AUTO:
        backend = experiment.link.backend
    else:
        candidates = able(unshapely, superframes=superframes, bridged=bridged)
        if not candidates:
            lines = ["no backend does all that the links ask"]
            for name in delay_backends():
                lines += unsupported(unshapely, name, superframes=superframes, bridged=bridged)
            raise SpecError("\n".join(lines))
        backend = next((name for name in candidates if works(name)), candidates[0])
    wrong = unsupported(unshapely, backend, superframes=superframes, bridged=bridged)
    if wrong:
        raise SpecError("\n".join(wrong))
    return backend


def _longest_delays_s(requested: Iterable[LinkConfig]) -> dict[Hop, float]:
    """Of each hop, in the course of the run."""
    found: dict[Hop, float] = {}
    for each in requested:
        found[each.hop] = max(found.get(each.hop, 0.0), each.spec.delay_s)
    return found


def _least_rates_bps(requested: Iterable[LinkConfig]) -> dict[Hop, float]:
    """Of each hop, in the course of the run."""
    found: dict[Hop, float] = {}
    for each in requested:
        found[each.hop] = min(found.get(each.hop, each.spec.rate_bps), each.spec.rate_bps)
    return found


def _direction(
    requested: LinkConfig,
    sender: Port,
    receiver: Port,
    index: int,
    backend: BackendName | None,
    *,
    staged: bool,
    least_bps: float,
    loads: Mapping[Hop, tuple[int | None, float]],
    splits: Mapping[Hop, tuple[int | None, float]],
    storage: StoragePlan | None,
    experiment: Experiment,
    clock: Clock,
) -> Direction:
    expected, balanced = loads.get(requested.hop, (0, 0.0))
    spec = requested.spec
    stage: DelayStage | None = None
    if backend and (staged or delay_backends()[backend].shapes):
        stage = delay_backends()[backend].stage(spec, interface=receiver.interface, index=index, seed=experiment.seed)
    return Direction(
        link=requested.link,
        sender=sender,
        receiver=receiver,
        requested=spec,
        gso_max_segments=gso_max_segments(experiment.packet_bytes, experiment.mtu, least_bps),
        shaper=_shaper(sender.interface, spec, clock, backend),
        delay_stage=stage,
        expected_bytes=expected,
        split_bytes=splits.get(requested.hop, (0, 0.0))[0] or 0,
        balanced_bytes=balanced,
        input_bytes=0 if storage is None else storage.batch.wire_bytes.get(requested.hop, 0),
    )
