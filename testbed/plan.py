"""RunSpec -> Plan: everything that can be decided before anything is made. Pure, and printable without root.

Every port is a subnet of its own (a routed switch, see testbed.addresses); neighbour entries are static.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from testbed.addresses import Port, Route, ports_of, routes_of
from testbed.errors import SpecError
from testbed.links.delay import BACKENDS, DelayStage, refusals
from testbed.links.spec import MAX_RATE_BPS, MIN_RATE_BPS, BackendName, LinkSpec
from testbed.links.tc import MTU, Shaper
from testbed.routing import Hop, NextHops, Path, next_hops, paths
from testbed.spec.experiment import Experiment
from testbed.topologies.base import Edge, Network, Node
from transports.channels.base import Channel
from transports.collectives.base import Collective, World
from transports.collectives.cost import alpha_beta_time_s, bound_s, sent_bytes
from transports.units import format_rate

GRADIENT_ELEMENT_BYTES: Final = 4
"""Gradients are float32."""
HOST_LATENCY_S: Final = 50e-6
"""What a message costs beside propagation on one machine: two system calls and two wake-ups. The alpha of the
prediction before anything is measured; a run replaces it by its calibration."""

DEFAULT_BUFFER_BYTES: Final = 4 * 2**20
"""The smaller of the kernel's usual limits of tcp_rmem (6 MiB) and tcp_wmem (4 MiB)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Direction:
    """One direction of a link: what is asked, how it is done, what it must carry in one iteration."""

    link: str
    sender: Port
    receiver: Port
    rate_bps: float
    delay_s: float
    loss: float
    shaper: Shaper
    delay_stage: DelayStage | None
    expected_bytes: int | None
    """Per iteration, Ethernet, IP, TCP and frame headers included, acknowledgements not. None: flows that could take
    another of several equal paths may or may not pass here."""
    balanced_bytes: float
    """The same if every switch split what it forwards evenly over equal paths."""

    @property
    def hop(self) -> Hop:
        """Sending and receiving node."""
        return self.sender.node, self.receiver.node

    @property
    def balanced_s(self) -> float:
        """How long the link is busy with them."""
        return self.balanced_bytes * 8 / self.rate_bps


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlan:
    """One network namespace and the commands that set it up, in this order."""

    name: str
    role: str
    sysctls: dict[str, str]
    sysctls_if_known: dict[str, str]
    """Set where the kernel has them."""
    ip_commands: tuple[str, ...]
    tc_commands: tuple[str, ...]
    firewall_rules: tuple[str, ...]
    """Lines for the mangle table of `iptables-restore`."""
    daemon_arguments: tuple[str, ...]
    """One for each port whose delay line the node's delay daemon serves; none: no daemon."""
    routes: tuple[Route, ...]
    """What the routing table holds after the commands, and nothing else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What theory says of one iteration's all-reduces, in virtual seconds."""

    gradient_bytes: int
    bound_s: float
    alpha_beta_s: float
    goodput_bps: float
    bottleneck: str | None
    """The direction between two switches, `s0 -> s1`, that needs more time for its bytes than the workers' links do:
    it decides `alpha_beta_s`, and `bound_s` where its bytes are certain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Everything decided."""

    experiment: Experiment
    congestion: str
    delay_backend: BackendName | None
    """None: no link asks for delay, jitter or loss."""
    nodes: tuple[NodePlan, ...]
    links: tuple[tuple[Port, Port], ...]
    directions: tuple[Direction, ...]
    buckets: tuple[int, ...]
    """Elements in each bucket, in the order they become ready."""
    prediction: Prediction
    paths: Mapping[Hop, Path]
    """Of every ordered pair of workers."""
    traffic: Mapping[Hop, int]
    """Wire bytes from worker to worker in one iteration."""

    @property
    def needs_multipath(self) -> bool:
        """Whether any node has several next hops to one destination."""
        return any(len(route.gateways) > 1 for node in self.nodes for route in node.routes)

    def node(self, name: str) -> NodePlan:
        """The node of that name."""
        return next(node for node in self.nodes if node.name == name)

    def worker_port(self, rank: int) -> Port:
        """The worker's end of its link."""
        return next(a for a, _ in self.links if a.node == f"w{rank}")

    def to_json(self) -> dict[str, Any]:
        """Plain data for the record and for `testbed plan --json`."""
        return {
            "spec": self.experiment.dump(),
            "spec_sha256": self.experiment.sha256(),
            "congestion": self.congestion,
            "delay_backend": self.delay_backend,
            "nodes": [asdict(node) for node in self.nodes],
            "paths": [
                {"from": path.source, "to": path.target, "path": path.text, "bytes": self.traffic.get(pair, 0)}
                for pair, path in self.paths.items()
            ],
            "directions": [asdict(direction) for direction in self.directions],
            "processes": [
                {"name": f"w{rank}", "host": f"w{rank}", "entry": "testbed.control.agent:main"}
                for rank in range(self.experiment.workers)
            ],
            "buckets": list(self.buckets),
            "prediction": asdict(self.prediction),
        }


def make_plan(experiment: Experiment, *, auto_backend: BackendName = "netem") -> Plan:
    """Decide everything; `auto_backend` is what `link.backend: auto` stands for on this machine.

    Raises SpecError for combinations that cannot be right.
    """
    delay_backend = _delay_backend(experiment, auto_backend)
    network = place(experiment)
    links = ports_of(network)
    hops = next_hops(network)
    ways = paths(hops)
    collective, channel = experiment.collective, experiment.channel
    if "all_reduce" not in collective.operations:
        raise SpecError(f"collective: {collective.kind} cannot all_reduce, which training needs")
    buckets = fuse(experiment.workload.parameter_counts(), experiment.fusion.bucket_bytes)
    traffic = _traffic(collective, channel, experiment.workers, buckets)
    loads = _loads(ways, traffic)
    directions = tuple(
        direction
        for index, (edge, (first, second)) in enumerate(zip(network.edges, links, strict=True))
        for direction in (
            _direction(edge, _link(experiment, edge), first, second, 2 * index, delay_backend, loads, experiment.seed),
            _direction(
                edge, _link(experiment, edge), second, first, 2 * index + 1, delay_backend, loads, experiment.seed
            ),
        )
    )
    delays_s = {direction.hop: direction.delay_s for direction in directions}
    longest_s = path_delay_s(ways, traffic, delays_s)
    buffers = _buffer_sysctls(experiment.link, longest_s)
    congestion = channel.congestion_control or "cubic"
    return Plan(
        experiment=experiment,
        congestion=congestion,
        delay_backend=delay_backend,
        nodes=tuple(
            _node(node, links, directions, hops, congestion, experiment.seed, buffers) for node in network.nodes
        ),
        links=links,
        directions=directions,
        buckets=buckets,
        prediction=predict(experiment, buckets, directions, alpha_s=longest_s + HOST_LATENCY_S),
        paths=ways,
        traffic=traffic,
    )


def place(experiment: Experiment) -> Network:
    """The topology with the workers where the placement puts them. Raises SpecError when there are too few places."""
    topology, num_workers = experiment.topology, experiment.workers
    fabric = topology.fabric(num_workers)
    if len(fabric.places) < num_workers:
        raise SpecError(
            f"workers: {num_workers} do not fit the {len(fabric.places)} places of topology {topology.kind}; allowed: "
            f"at most {len(fabric.places)}, or {topology.larger}"
        )
    return fabric.network(experiment.placement.attach(fabric.places, num_workers, seed=experiment.seed))


def fuse(parameter_counts: Sequence[int], bucket_bytes: int) -> tuple[int, ...]:
    """Elements per bucket as DistributedDataParallel forms them: last parameter first, a bucket closes when it has
    reached the limit (torch's `_compute_bucket_assignment_by_size`)."""
    buckets: list[int] = []
    filled = 0
    for count in reversed(parameter_counts):
        filled += count
        if filled * GRADIENT_ELEMENT_BYTES >= bucket_bytes:
            buckets.append(filled)
            filled = 0
    return tuple([*buckets, filled] if filled else buckets)


def path_delay_s(ways: Mapping[Hop, Path], traffic: Mapping[Hop, int], delays_s: Mapping[Hop, float]) -> float:
    """One way from worker to worker over the slowest path that carries anything, given each hop's delay."""

    def slowest_s(path: Path) -> float:
        arrival_s = {path.source: 0.0}
        for node, following in path.shares:  # in the order of the stages
            arrival_s[following] = max(arrival_s.get(following, 0.0), arrival_s[node] + delays_s[node, following])
        return arrival_s[path.target]

    return max((slowest_s(ways[pair]) for pair in traffic), default=0.0)


def predict(
    experiment: Experiment, buckets: Sequence[int], directions: Sequence[Direction], *, alpha_s: float
) -> Prediction:
    """The all-reduces of one iteration, one bucket after the other, on the workers' links; or what the most loaded
    link between switches needs for its bytes, if that is longer."""
    goodput_bps = experiment.link.rate_bps * experiment.channel.goodput_fraction(MTU)
    world = World(num_workers=experiment.workers)
    alpha_beta_s = sum(
        alpha_beta_time_s(
            experiment.collective,
            "all_reduce",
            world,
            count,
            GRADIENT_ELEMENT_BYTES,
            alpha_s=alpha_s,
            beta_s_per_byte=8 / goodput_bps,
            gamma_s_per_byte=0.0,
        )
        for count in buckets
    )
    gradient_bytes = sum(buckets) * GRADIENT_ELEMENT_BYTES
    least_s = bound_s("all_reduce", num_workers=experiment.workers, size_bytes=gradient_bytes, goodput_bps=goodput_bps)
    workers = {f"w{rank}" for rank in range(experiment.workers)}
    trunks = [direction for direction in directions if workers.isdisjoint(direction.hop)]
    busiest = max(trunks, key=lambda direction: direction.balanced_s, default=None)
    certain_s = max((trunk.balanced_s for trunk in trunks if trunk.expected_bytes is not None), default=0.0)
    decides = busiest is not None and busiest.balanced_s > alpha_beta_s
    return Prediction(
        gradient_bytes=gradient_bytes,
        bound_s=max(least_s, certain_s),
        alpha_beta_s=busiest.balanced_s if busiest is not None and decides else alpha_beta_s,
        goodput_bps=goodput_bps,
        bottleneck=" -> ".join(busiest.hop) if busiest is not None and decides else None,
    )


def _delay_backend(experiment: Experiment, auto_backend: BackendName) -> BackendName | None:
    link = experiment.link
    if not link.needs_delay_stage:
        return None
    backend = auto_backend if link.backend == "auto" else link.backend
    wrong = refusals(link, backend)
    if wrong:
        raise SpecError("\n".join(wrong))
    return backend


def _buffer_sysctls(link: LinkSpec, path_s: float) -> dict[str, str]:
    """Socket buffers that let one TCP connection fill the longest path; the kernel's own limits where they do.

    A buffer holds twice the window, because the kernel reckons with its own overhead (tcp(7), tcp_adv_win_scale); half
    as much again is for the queues.
    """
    window_bytes = 2 * path_s * link.rate_bps / 8 + link.queue_bytes
    limit_bytes = int(3 * window_bytes)
    if link.delay_s == 0 or limit_bytes <= DEFAULT_BUFFER_BYTES:
        return {}
    # The kernel keeps them in a signed int.
    limit_bytes = min(limit_bytes, 2**31 - 1)
    return {"net.ipv4.tcp_rmem": f"4096 131072 {limit_bytes}", "net.ipv4.tcp_wmem": f"4096 16384 {limit_bytes}"}


def _traffic(
    collective: Collective, channel: Channel, num_workers: int, buckets: Sequence[int]
) -> dict[tuple[str, str], int]:
    """Wire bytes from worker to worker in one iteration."""
    totals: dict[tuple[str, str], int] = {}
    for count in buckets:
        counts = sent_bytes(collective, "all_reduce", World(num_workers=num_workers), count, GRADIENT_ELEMENT_BYTES)
        for (sender, receiver), traffic in counts.items():
            wire = channel.wire_bytes(traffic.payload_bytes + traffic.num_messages * channel.header_bytes, MTU).forward
            key = (f"w{sender}", f"w{receiver}")
            totals[key] = totals.get(key, 0) + wire
    return totals


def _loads(ways: Mapping[Hop, Path], traffic: Mapping[Hop, int]) -> dict[Hop, tuple[int | None, float]]:
    """Expected bytes, None where they depend on hashes, and evenly split bytes of each hop that any pair may take."""
    certain: dict[Hop, int] = {}
    balanced: dict[Hop, float] = {}
    depends: set[Hop] = set()
    for pair, wire in traffic.items():
        for hop, share in ways[pair].shares.items():
            balanced[hop] = balanced.get(hop, 0.0) + wire * float(share)
            certain[hop] = certain.get(hop, 0) + wire
            if share != 1:
                depends.add(hop)
        # Acknowledgements go the other way and are told from data only where their path is certain.
        depends |= {hop for hop, share in ways[pair[1], pair[0]].shares.items() if share != 1}
    return {
        hop: (None if hop in depends else certain.get(hop, 0), balanced.get(hop, 0.0)) for hop in {*balanced, *depends}
    }


def _link(experiment: Experiment, edge: Edge) -> LinkSpec:
    """What is asked of an edge. Raises SpecError when its share of the rate is none that a link can have."""
    asked = experiment.link
    link = asked.model_copy(update={"rate_bps": asked.rate_bps * edge.rate_factor})
    if not MIN_RATE_BPS <= link.rate_bps <= MAX_RATE_BPS:
        raise SpecError(
            f"topology: the link {edge.name} would have {format_rate(link.rate_bps)}, {edge.rate_factor:g} x "
            f"{format_rate(asked.rate_bps)}; allowed: {format_rate(MIN_RATE_BPS)} to {format_rate(MAX_RATE_BPS)}"
        )
    return link


def _direction(
    edge: Edge,
    link: LinkSpec,
    sender: Port,
    receiver: Port,
    index: int,
    backend: BackendName | None,
    loads: Mapping[Hop, tuple[int | None, float]],
    seed: int,
) -> Direction:
    expected, balanced = loads.get((sender.node, receiver.node), (0, 0.0))
    return Direction(
        link=edge.name,
        sender=sender,
        receiver=receiver,
        rate_bps=link.rate_bps,
        delay_s=link.delay_s,
        loss=link.loss,
        shaper=Shaper(interface=sender.interface, rate_bps=link.rate_bps, queue_bytes=link.queue_bytes),
        delay_stage=BACKENDS[backend].stage(link, interface=receiver.interface, index=index, seed=seed)
        if backend
        else None,
        expected_bytes=expected,
        balanced_bytes=balanced,
    )


def _node(
    node: Node,
    links: Sequence[tuple[Port, Port]],
    directions: Sequence[Direction],
    hops: NextHops,
    congestion: str,
    seed: int,
    buffer_sysctls: dict[str, str],
) -> NodePlan:
    routes = routes_of(node.name, links, hops)
    ip_commands = ["link set lo up"]
    tc_commands: list[str] = []
    firewall_rules: list[str] = []
    daemon_arguments: list[str] = []
    for link in links:
        for own, other in (link, link[::-1]):
            if own.node == node.name:
                ip_commands += [
                    f"link set dev {own.interface} mtu {MTU}",
                    f"address add {own.address}/30 dev {own.interface}",
                    f"link set dev {own.interface} up",
                    f"neighbour replace {other.address} lladdr {other.mac} dev {own.interface} nud permanent",
                ]
    ip_commands += [route.command(congestion) for route in routes]
    for direction in directions:
        if direction.sender.node == node.name:
            tc_commands += direction.shaper.commands()
        if direction.receiver.node == node.name and direction.delay_stage:
            ip_commands += direction.delay_stage.ip_commands()
            tc_commands += direction.delay_stage.tc_commands()
            firewall_rules += direction.delay_stage.firewall_rules()
            daemon_arguments += direction.delay_stage.daemon_arguments()
    sysctls = {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"}
    sysctls["net.ipv4.ip_forward"] = "1" if node.role == "switch" else "0"
    sysctls_if_known: dict[str, str] = {}
    if any(len(route.gateways) > 1 for route in routes):
        sysctls["net.ipv4.fib_multipath_hash_policy"] = "1"  # addresses and ports
        sysctls_if_known["net.ipv4.fib_multipath_hash_seed"] = str(_hash_seed(node.name, seed))
    return NodePlan(
        name=node.name,
        role=node.role,
        sysctls=sysctls | buffer_sysctls,
        sysctls_if_known=sysctls_if_known,
        ip_commands=tuple(ip_commands),
        tc_commands=tuple(tc_commands),
        firewall_rules=tuple(firewall_rules),
        daemon_arguments=tuple(daemon_arguments),
        routes=routes,
    )


def _hash_seed(name: str, seed: int) -> int:
    """Of each switch its own: with one seed for all, the flows that a switch receives were chosen by the very bit by
    which it chooses, and it would send them all the same way. 0 means a random seed to the kernel."""
    return zlib.crc32(f"{seed} {name}".encode()) or 1
