"""RunSpec -> Plan: everything that can be decided before anything is made. Pure, and printable without root.

Addresses: link i is 10.x.y.0/30 with the node nearer to the worker at .2 and the switch at .1, so every port is a
subnet of its own (a routed switch). MAC addresses follow from the link's number; neighbour entries are static.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from testbed.errors import SpecError
from testbed.links.delay import BACKENDS, DelayStage, refusals
from testbed.links.spec import BackendName
from testbed.links.tc import MTU, Shaper
from testbed.spec.experiment import Experiment
from testbed.topologies.base import Network
from transports.channels.base import Channel
from transports.collectives.base import Collective, World
from transports.collectives.cost import alpha_beta_time_s, bound_s, sent_bytes

GRADIENT_ELEMENT_BYTES: Final = 4
"""Gradients are float32."""
HOST_LATENCY_S: Final = 50e-6
"""What a message costs beside propagation on one machine: two system calls and two wake-ups. The alpha of the
prediction before anything is measured; a run replaces it by its calibration."""

DEFAULT_BUFFER_BYTES: Final = 4 * 2**20
"""The smaller of the kernel's usual limits of tcp_rmem (6 MiB) and tcp_wmem (4 MiB)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """One end of a link."""

    node: str
    interface: str
    address: str
    mac: str


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
    expected_bytes: int
    """Per iteration, Ethernet, IP, TCP and frame headers included, acknowledgements not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlan:
    """One network namespace and the commands that set it up, in this order."""

    name: str
    role: str
    sysctls: dict[str, str]
    ip_commands: tuple[str, ...]
    tc_commands: tuple[str, ...]
    firewall_rules: tuple[str, ...]
    """Lines for the mangle table of `iptables-restore`."""
    daemon_arguments: tuple[str, ...]
    """One for each port whose delay line the node's delay daemon serves; none: no daemon."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What theory says of one iteration's all-reduces, in virtual seconds."""

    gradient_bytes: int
    bound_s: float
    alpha_beta_s: float
    goodput_bps: float


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
    network = experiment.topology.network(experiment.workers)
    links = _ports(network)
    collective, channel = experiment.collective, experiment.channel
    if "all_reduce" not in collective.operations:
        raise SpecError(f"collective: {collective.kind} cannot all_reduce, which training needs")
    buckets = fuse(experiment.workload.parameter_counts(), experiment.fusion.bucket_bytes)
    traffic = _traffic(collective, channel, experiment.workers, buckets)
    directions = tuple(
        direction
        for index, (first, second) in enumerate(links)
        for direction in (
            _direction(experiment, first, second, 2 * index, delay_backend, traffic),
            _direction(experiment, second, first, 2 * index + 1, delay_backend, traffic),
        )
    )
    congestion = channel.congestion_control or "cubic"
    return Plan(
        experiment=experiment,
        congestion=congestion,
        delay_backend=delay_backend,
        nodes=tuple(
            _node(node.name, node.role, links, directions, congestion, _buffer_sysctls(experiment))
            for node in network.nodes
        ),
        links=links,
        directions=directions,
        buckets=buckets,
        prediction=predict(experiment, buckets, alpha_s=path_delay_s(experiment) + HOST_LATENCY_S),
    )


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


def path_delay_s(experiment: Experiment) -> float:
    """Propagation from worker to worker, one way."""
    return 2 * experiment.link.delay_s


def predict(experiment: Experiment, buckets: Sequence[int], *, alpha_s: float) -> Prediction:
    """The all-reduces of one iteration, one bucket after the other."""
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
    return Prediction(
        gradient_bytes=gradient_bytes,
        bound_s=bound_s(
            "all_reduce", num_workers=experiment.workers, size_bytes=gradient_bytes, goodput_bps=goodput_bps
        ),
        alpha_beta_s=alpha_beta_s,
        goodput_bps=goodput_bps,
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


def _buffer_sysctls(experiment: Experiment) -> dict[str, str]:
    """Socket buffers that let one TCP connection fill the longest path; the kernel's own limits where they do.

    A buffer holds twice the window, because the kernel reckons with its own overhead (tcp(7), tcp_adv_win_scale); half
    as much again is for the queues.
    """
    window_bytes = 2 * path_delay_s(experiment) * experiment.link.rate_bps / 8 + experiment.link.queue_bytes
    limit_bytes = int(3 * window_bytes)
    if experiment.link.delay_s == 0 or limit_bytes <= DEFAULT_BUFFER_BYTES:
        return {}
    # The kernel keeps them in a signed int.
    limit_bytes = min(limit_bytes, 2**31 - 1)
    return {"net.ipv4.tcp_rmem": f"4096 131072 {limit_bytes}", "net.ipv4.tcp_wmem": f"4096 16384 {limit_bytes}"}


def _ports(network: Network) -> tuple[tuple[Port, Port], ...]:
    num_ports = dict.fromkeys((node.name for node in network.nodes), 0)

    def port(node: str, link: int, last: int) -> Port:
        interface = f"{node}-eth{num_ports[node]}"
        num_ports[node] += 1
        return Port(
            node=node,
            interface=interface,
            address=f"10.{link >> 14}.{(link >> 6) & 255}.{(link & 63) * 4 + last}",
            mac=f"02:00:00:{link >> 8:02x}:{link & 255:02x}:{last:02x}",
        )

    return tuple((port(edge.first, index, 2), port(edge.second, index, 1)) for index, edge in enumerate(network.edges))


def _subnet(port: Port) -> str:
    """The /30 of a link."""
    network, _, last = port.address.rpartition(".")
    return f"{network}.{int(last) & ~3}/30"


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


def _direction(
    experiment: Experiment,
    sender: Port,
    receiver: Port,
    index: int,
    backend: BackendName | None,
    traffic: dict[tuple[str, str], int],
) -> Direction:
    link = experiment.link
    uplink = sender.node.startswith("w")
    # In a star a worker's uplink carries what it sends and its downlink what it receives.
    expected = sum(
        wire for (source, sink), wire in traffic.items() if (source if uplink else sink) in {sender.node, receiver.node}
    )
    return Direction(
        link=f"{sender.node}-{receiver.node}" if uplink else f"{receiver.node}-{sender.node}",
        sender=sender,
        receiver=receiver,
        rate_bps=link.rate_bps,
        delay_s=link.delay_s,
        loss=link.loss,
        shaper=Shaper(interface=sender.interface, rate_bps=link.rate_bps, queue_bytes=link.queue_bytes),
        delay_stage=BACKENDS[backend].stage(link, interface=receiver.interface, index=index, seed=experiment.seed)
        if backend
        else None,
        expected_bytes=expected,
    )


def _node(
    name: str,
    role: str,
    links: tuple[tuple[Port, Port], ...],
    directions: tuple[Direction, ...],
    congestion: str,
    buffer_sysctls: dict[str, str],
) -> NodePlan:
    ip_commands = ["link set lo up"]
    tc_commands: list[str] = []
    firewall_rules: list[str] = []
    daemon_arguments: list[str] = []
    for first, second in links:
        for own, other in ((first, second), (second, first)):
            if own.node != name:
                continue
            ip_commands += [
                f"link set dev {own.interface} mtu {MTU}",
                f"address add {own.address}/30 dev {own.interface}",
                f"link set dev {own.interface} up",
                f"neighbour replace {other.address} lladdr {other.mac} dev {own.interface} nud permanent",
            ]
            # congctl on the routes: the namespace's sysctl is refused by the kernel for controls that are not on the
            # machine's allowed list, and a per-socket option would not reach the baselines.
            ip_commands.append(
                f"route replace {_subnet(own)} dev {own.interface} proto kernel scope link src {own.address} "
                f"congctl {congestion}"
            )
            if role == "worker":
                ip_commands.append(f"route add default via {other.address} dev {own.interface} congctl {congestion}")
    for direction in directions:
        if direction.sender.node == name:
            tc_commands += direction.shaper.commands()
        if direction.receiver.node == name and direction.delay_stage:
            ip_commands += direction.delay_stage.ip_commands()
            tc_commands += direction.delay_stage.tc_commands()
            firewall_rules += direction.delay_stage.firewall_rules()
            daemon_arguments += direction.delay_stage.daemon_arguments()
    sysctls = {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"}
    sysctls["net.ipv4.ip_forward"] = "1" if role == "switch" else "0"
    return NodePlan(
        name=name,
        role=role,
        sysctls=sysctls | buffer_sysctls,
        ip_commands=tuple(ip_commands),
        tc_commands=tuple(tc_commands),
        firewall_rules=tuple(firewall_rules),
        daemon_arguments=tuple(daemon_arguments),
    )
