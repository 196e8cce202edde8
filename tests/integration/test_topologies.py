"""Every topology for real: each worker reaches each other over the planned number of links, and every link measures."""

import itertools
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.calibration.calibrate import calibrate
from testbed.deployment.deployment import Deployment, deploy
from testbed.experiment.delay_backends.base import delay_backends
from testbed.experiment.experiment import validate
from testbed.links.htb import CLASS_HANDLE
from testbed.machine.doctor import missing_for_backend
from testbed.measure.sampler import LinkSampler
from testbed.plan.plan import make_plan
from testbed.system.kernel import has_sysctl
from testbed.system.run_state import RunState, new_run_id
from tests.threads import groups, run_threads
from transports.channels._tcp.mesh import connect_mesh
from transports.group import Group

pytestmark = pytest.mark.privileged

LEAF_SPINE = {"kind": "leaf_spine", "leaves": 2, "spines": 2, "oversubscription": 2}
TOPOLOGIES: list[Any] = [
    {"kind": "dumbbell", "bottleneck": 0.5},
    LEAF_SPINE,
    {"kind": "fat_tree", "k": 4},
    pytest.param({"kind": "ring", "switches": 5}, marks=pytest.mark.slow),
    {"kind": "torus", "dims": [2, 3]},
    pytest.param({"kind": "torus", "dims": [2, 2, 2]}, marks=pytest.mark.slow),
    {
        "kind": "file",
        "switches": {"s0": 3, "s3": 1, "s4": 0},
        "links": [{"between": ["s0", "s4"]}, {"between": ["s3", "s4"]}],
    },
]
HASH_POLICY = "net.ipv4.fib_multipath_hash_policy"
HASH_SEED = "net.ipv4.fib_multipath_hash_seed"
NUM_FLOWS = 16
"""Per pair: enough that a broken one of two equal paths would be met."""
NUM_BYTES = 100_000
"""From worker to worker: less than a socket's buffer holds, so that all may send before any receives."""
LARGE_WINDOW = 4 << 20
"""Of a stream that only links are to limit: the kernel chooses a smaller one while the cores are busy."""
TTL = 64
IP_RECVTTL = 12
"""linux/in.h; Python has no name for it."""
TWO_PATHS = "nexthop via 10.0.0.17 dev s0-eth2 {} nexthop via 10.0.0.21 dev s0-eth3"


@contextmanager
def deployed(tmp_path: Path, **keys: Any) -> Iterator[Deployment]:
    plan = make_plan(validate({"name": "t", "workers": 4, **keys}))
    state = RunState.create(new_run_id())
    try:
        with deploy(plan, state, log_directory=tmp_path) as deployment:
            yield deployment
    finally:
        state.remove()


def udp_socket(deployment: Deployment, rank: int, stack: ExitStack) -> socket.socket:
    port = deployment.plan.port_of(f"w{rank}")
    with deployment.hosts[port.node].entered():
        made = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    made.bind((port.address, 0))
    made.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
    made.settimeout(10)
    return made


def num_switches(taker: socket.socket) -> int:
    """Take one datagram: how many switches it crossed."""
    _, ancillary, _, _ = taker.recvmsg(64, 64)
    ((_, kind, data),) = ancillary
    assert kind == socket.IP_TTL
    return TTL - int.from_bytes(data, "little")


def echo_everywhere(deployment: Deployment) -> None:
    paths = deployment.plan.paths
    for here, there in itertools.combinations(range(deployment.plan.experiment.workers), 2):
        with ExitStack() as stack:
            echo = udp_socket(deployment, there, stack)
            for _ in range(NUM_FLOWS):
                caller = udp_socket(deployment, here, stack)
                caller.sendto(b"call", echo.getsockname())
                assert num_switches(echo) == len(paths[f"w{here}", f"w{there}"].stages) - 2
                echo.sendto(b"answer", caller.getsockname())
                assert num_switches(caller) == len(paths[f"w{there}", f"w{here}"].stages) - 2


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology["kind"])
def test_every_worker_reaches_every_other_and_every_link_is_what_was_requested(
    tmp_path: Path, topology: dict[str, Any]
) -> None:
    with deployed(tmp_path, topology=topology, placement="spread") as deployment:
        echo_everywhere(deployment)
        assert len(calibrate(deployment).links) == len(deployment.plan.directions)
        assert deployment.differences() == []


@pytest.mark.parametrize("intra_host", ["unshaped", {"rate": "500mbit"}])
def test_workers_of_one_host_share_its_link(tmp_path: Path, intra_host: Any) -> None:
    sharing = {"count": 2, "link": intra_host}
    with deployed(tmp_path, workers_per_host=sharing) as deployment:
        echo_everywhere(deployment)
        measured = {(each.sender, each.receiver): each.rate_bps for each in calibrate(deployment).links}
        assert len(measured) == 2 * (4 + 2)
        assert (measured["w0", "h0"] > 505e6) == (intra_host == "unshaped")
        assert deployment.differences() == []
        with LinkSampler(deployment, interval_s=9, on_sample=lambda _: None) as sampler:
            assert all(sample.class_bytes > 0 for sample in sampler.sample())


@pytest.mark.parametrize(
    "topology", ["star", pytest.param({"kind": "dumbbell", "bottleneck": 0.5}, marks=pytest.mark.slow)]
)
def test_bridged_switches_forward_and_every_link_is_what_was_requested(tmp_path: Path, topology: Any) -> None:
    with deployed(tmp_path, topology=topology, placement="spread", switch="bridged") as deployment:
        for rank in range(4):
            with ExitStack() as stack:
                echo = udp_socket(deployment, rank, stack)
                caller = udp_socket(deployment, (rank + 1) % 4, stack)
                caller.sendto(b"call", echo.getsockname())
                assert num_switches(echo) == 0  # of those that routing would count
        assert len(calibrate(deployment).links) == len(deployment.plan.directions)
        assert deployment.differences() == []


def waiting_bytes(deployment: Deployment) -> int:
    """The most that a TCP stream from w0 to w1 keeps waiting before the slow port of the switch."""
    addresses = [deployment.plan.worker_port(rank).address for rank in range(2)]
    with ExitStack() as stack:
        with deployment.hosts["w1"].entered():
            listener = stack.enter_context(socket.create_server((addresses[1], 0)))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LARGE_WINDOW)
        with deployment.hosts["w0"].entered():
            sender = stack.enter_context(socket.create_connection(listener.getsockname(), timeout=10))
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGE_WINDOW)
        # cubic ends slow start where round trips become longer (HyStart), sooner on a busy machine.
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        receiver = stack.enter_context(listener.accept()[0])
        sender.setblocking(False)
        receiver.setblocking(False)
        sampler = stack.enter_context(LinkSampler(deployment, interval_s=9, on_sample=lambda _: None))
        most, deadline_s = 0, time.monotonic() + 1.5
        while time.monotonic() < deadline_s:
            with suppress(BlockingIOError):
                sender.send(bytes(1 << 20))
            with suppress(BlockingIOError):
                receiver.recv(1 << 20)
            most = max(most, *(sample.backlog_bytes for sample in sampler.sample() if sample.node == "s0"))
        return most


def test_the_senders_limits_reach_through_a_bridge_and_not_through_a_router(tmp_path: Path) -> None:
    waiting = {}
    for switch in ("routed", "bridged"):
        slow = {"s0->w1": {"rate": "50mbit"}}
        with deployed(tmp_path, workers=2, switch=switch, link={"rate": "1gbit"}, links=slow) as deployment:
            waiting[switch] = waiting_bytes(deployment)
    assert waiting["bridged"] < waiting["routed"] / 2


def test_a_delay_behind_a_bridge_is_there(tmp_path: Path) -> None:
    backend = next(
        name for name, each in delay_backends().items() if each.sees_frames and not missing_for_backend(name)
    )
    link = {"delay": "2ms", "backend": backend}
    with deployed(tmp_path, workers=2, switch="bridged", link=link) as deployment:
        assert all(measured.delay_s >= 2e-3 for measured in calibrate(deployment).links)


@pytest.mark.parametrize(
    ("node", "argv", "words"),
    [
        ("s0", "bridge fdb del 02:00:00:00:00:02 dev s0-eth0 master", "02:00:00:00:00:02 to s0-eth0 is absent"),
        ("s0", "ip link set dev s0-eth1 type bridge_slave flood on", "s0-eth1: flood is True"),
        ("s0", "ip link set dev s0-eth1 nomaster", "s0-eth1: its bridge is absent"),
        ("s0", "ip address add 10.9.9.9/32 dev s0-eth1", "s0-eth1: addresses are"),
        ("w0", "ip neighbour del 10.0.0.2 dev w0-eth0", "neighbour 10.0.0.2"),
    ],
)
def test_a_bridge_that_does_not_hold_is_noticed(tmp_path: Path, node: str, argv: str, words: str) -> None:
    with deployed(tmp_path, switch="bridged") as deployment:
        deployment.hosts[node].execute(argv.split())
        assert any(words in line for line in deployment.differences())


def class_packets(deployment: Deployment, node: str, interface: str) -> int:
    with deployment.monitor(node) as monitor:
        classes = monitor.htb_classes(monitor.interfaces()[interface])
    return next(item.num_packets for item in classes if item.handle == CLASS_HANDLE)


def test_flows_spread_over_equal_paths(tmp_path: Path) -> None:
    with deployed(tmp_path, topology=LEAF_SPINE) as deployment:
        uplinks = [direction for direction in deployment.plan.directions if direction.sender.node == "s0"][2:]
        assert [direction.receiver.node for direction in uplinks] == ["s2", "s3"]
        echo_everywhere(deployment)
        sent = [class_packets(deployment, "s0", direction.sender.interface) for direction in uplinks]
        # Four pairs of workers cross, each with its flows.
        assert sum(sent) == 4 * NUM_FLOWS
        assert min(sent) > 0


def chosen(deployment: Deployment) -> list[str]:
    """The uplink of s0 that each of some flows from w0 to w2 takes."""
    source, target = (deployment.plan.port_of(f"w{rank}").address for rank in (0, 2))
    flow = ["ip", "-j", "route", "get", target, "from", source, "iif", "s0-eth0", "ipproto", "tcp", "dport", "2000"]
    return [
        json.loads(deployment.hosts["s0"].execute([*flow, "sport", str(1000 + number)]))[0]["dev"]
        for number in range(24)
    ]


def test_the_same_seed_sends_the_same_flows_the_same_way(tmp_path: Path) -> None:
    chosen_paths = []
    for seed in (1, 1, 2):
        with deployed(tmp_path, topology=LEAF_SPINE, seed=seed) as deployment:
            chosen_paths.append(chosen(deployment))
    assert set(chosen_paths[0]) == {"s0-eth2", "s0-eth3"}
    if has_sysctl(HASH_SEED):  # without, hashes begin with a number drawn at boot
        assert chosen_paths[0] == chosen_paths[1]
        assert chosen_paths[0] != chosen_paths[2]


def carried(deployment: Deployment) -> dict[tuple[str, str], int]:
    """The bytes of each direction after every two workers have sent each other the same over TCP."""
    hosts, plan = deployment.hosts, deployment.plan
    members = [replace(each, name="g", address=plan.port_of(f"w{each.rank}").address) for each in groups(4)]

    def life(member: Group) -> None:
        with hosts[f"w{member.rank}"].entered():
            mesh = connect_mesh(member, lambda _: None)
        for connection in mesh.sockets.values():
            connection.settimeout(None)
            connection.sendall(bytes(NUM_BYTES))
        for connection in mesh.sockets.values():
            assert len(connection.recv(NUM_BYTES, socket.MSG_WAITALL)) == NUM_BYTES
        mesh.close()

    assert run_threads(life, members) == [None] * 4
    with LinkSampler(deployment, interval_s=9, on_sample=lambda _: None) as sampler:
        return {(sample.link, sample.node): sample.class_bytes for sample in sampler.sample()}


def test_a_run_that_is_repeated_puts_the_same_bytes_on_the_same_links(tmp_path: Path) -> None:
    def once() -> dict[tuple[str, str], int]:
        with deployed(tmp_path, topology=LEAF_SPINE, placement="spread", link={"rate": "1gbit"}) as deployment:
            return carried(deployment)

    first, again = once(), once()
    assert set(again) == set(first)
    if has_sysctl(HASH_SEED):  # without, hashes begin with a number drawn at boot
        # What another path would move is ten times what acknowledgements and closing segments differ by.
        assert all(abs(again[hop] - first[hop]) < NUM_BYTES / 2 for hop in first)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("ip route del 10.0.0.8/30", "s0: no route to 10.0.0.8/30"),
        ("ip route replace 10.0.0.8/30 via 10.0.0.17 dev s0-eth2 congctl cubic", "s0: route to 10.0.0.8/30 is by"),
        ("ip route add 10.9.0.0/16 via 10.0.0.17 congctl cubic", "a route to 10.9.0.0/16 that nobody requested"),
        (
            f"ip route replace 10.0.0.8/30 congctl reno {TWO_PATHS.format('')}",
            "congestion control on the route to 10.0.0.8/30",
        ),
        (
            f"ip route replace 10.0.0.8/30 congctl cubic {TWO_PATHS.format('weight 9')}",
            "s0: route to 10.0.0.8/30 is by",
        ),
        (f"sysctl -q -w {HASH_POLICY}=0", HASH_POLICY),
        *([(f"sysctl -q -w {HASH_SEED}=5", HASH_SEED)] if has_sysctl(HASH_SEED) else []),
    ],
)
def test_a_route_that_does_not_hold_is_noticed(tmp_path: Path, argv: str, words: str) -> None:
    with deployed(tmp_path, topology=LEAF_SPINE) as deployment:
        deployment.hosts["s0"].execute(argv.split())
        assert any(words in line for line in deployment.differences())
