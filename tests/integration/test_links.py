"""Real namespaces, real tc: links are what was requested, and when they are not, it is noticed."""

import math
import operator
import os
import signal
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from testbed.calibration.cache import Mode
from testbed.calibration.calibrate import calibrate, delays_of, flow_of, measure_rate, rate_of
from testbed.calibration.delays import one_way_delays_s
from testbed.calibration.queues import measure_queue
from testbed.calibration.streams import receive_rate_bps, streaming
from testbed.deployment.deployment import Deployment, deploy
from testbed.errors import CalibrationError, MissingRequirementError, RunFailedError, SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.experiment.link import BackendName
from testbed.links.htb import goodput_fraction, wire_bytes
from testbed.machine.doctor import missing_for_backend, plan_here, require
from testbed.measure.backlog import BacklogProbe
from testbed.measure.sampler import LinkSample, LinkSampler
from testbed.plan.direction import Direction
from testbed.plan.plan import Plan, make_plan
from testbed.system.kernel import network_namespace
from testbed.system.netlink import LinkMonitor
from testbed.system.processes import ProcessIdentity, processes_of_run
from testbed.system.run_state import RunState, new_run_id
from tests.backends import ABSENT, HERE
from tests.measuring import standing

pytestmark = pytest.mark.privileged


@contextmanager
def deployed(tmp_path: Path, planned: Callable[[Experiment], Plan] = make_plan, **keys: Any) -> Iterator[Deployment]:
    plan = planned(validate({"name": "t", "workers": 2, **keys}))
    state = RunState.create(new_run_id())
    try:
        with deploy(plan, state, log_directory=tmp_path) as deployment:
            yield deployment
        assert processes_of_run(state.run_id) == []
    finally:
        state.remove()


@pytest.mark.parametrize("rate", ["10mbit", "100mbit", "1gbit"])
def test_goodput_is_within_one_percent_of_what_was_requested(tmp_path: Path, rate: str) -> None:
    with deployed(tmp_path, link={"rate": rate}) as deployment:
        for direction in deployment.plan.directions[:2]:
            requested_bps = direction.rate_bps * goodput_fraction()
            assert rate_of(deployment, direction).goodput_bps == pytest.approx(requested_bps, rel=0.01)


def test_everything_reads_back_and_calibrates(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        assert deployment.differences() == []
        calibration = calibrate(deployment)
        assert len(calibration.links) == len(deployment.plan.directions)
        assert {measurement.congestion for measurement in calibration.links} == {"cubic"}
        assert {measurement.rate_of for measurement in calibration.links} == {"w0 -> s0", "s0 -> w1"}
        assert [(each.num_directions, each.queue is not None) for each in calibration.classes] == [(2, True)] * 2


@pytest.mark.parametrize("link", [{"rate": "10mbit", "queue": "1MB"}, {"rate": "100mbit", "queue": "20MB"}])
def test_a_long_queue_is_full_when_its_delay_is_taken(tmp_path: Path, link: dict[str, str]) -> None:
    """The second was called an eighth too short when it was filled at more than calls could send."""
    with deployed(tmp_path, link=link) as deployment:
        found = measure_queue(deployment, deployment.plan.directions[0])
        assert found.num_drops
        assert abs(found.error) < 0.05


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("tc class change dev w0-eth0 parent 1: classid 1:1 htb rate 90mbit ceil 90mbit quantum 60000", "htb rate"),
        ("tc qdisc del dev w0-eth0 root", "root qdisc"),
        ("tc qdisc change dev w0-eth0 parent 1:1 handle 10: bfifo limit 200000", "queue is 200000"),
        ("ip link set w0-eth0 down", "not up"),
        ("ip address add 10.9.9.9/32 dev w0-eth0", "addresses are"),
        ("ip route change default via 10.0.0.1 dev w0-eth0 congctl reno", "congestion control"),
        ("ip route del default", "no default route"),
        ("sysctl -q -w net.ipv6.conf.all.disable_ipv6=0", "disable_ipv6"),
    ],
)
def test_a_setting_that_does_not_hold_is_noticed(tmp_path: Path, argv: str, words: str) -> None:
    with deployed(tmp_path) as deployment:
        deployment.hosts["w0"].execute(argv.split())
        assert any(words in line for line in deployment.differences())


@pytest.mark.slow
def test_a_link_of_another_rate_fails_calibration(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        deployment.hosts["w1"].execute(
            [
                "tc",
                "class",
                "change",
                "dev",
                "w1-eth0",
                "parent",
                "1:",
                "classid",
                "1:1",
                "htb",
                "rate",
                "110mbit",
                "ceil",
                "110mbit",
                "quantum",
                "60000",
            ]
        )
        with pytest.raises(CalibrationError, match=r"w1 -> s0: measured 1[01]\d\.\d+ Mbit/s, requested 100"):
            calibrate(deployment, mode=Mode.FULL)


def test_an_unshaped_link_fails_calibration(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        deployment.hosts["s0"].execute(["tc", "qdisc", "del", "dev", "s0-eth0", "root"])
        with pytest.raises(CalibrationError, match="s0 -> w0"):
            calibrate(deployment)


def test_a_command_the_kernel_refuses_ends_the_deployment_and_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(MissingRequirementError, match="Unknown tcp congestion algorithm"),
        deployed(tmp_path, channel={"kind": "tcp", "congestion": "nonesuch"}),
    ):
        raise AssertionError("deployed with a congestion control that does not exist")


def test_a_plan_the_machine_cannot_run_is_refused_with_the_fix(tmp_path: Path) -> None:
    plan = make_plan(validate({"name": "t", "channel": {"kind": "tcp", "congestion": "nonesuch"}}))
    with pytest.raises(MissingRequirementError, match="modprobe tcp_nonesuch"):
        require(plan)


@pytest.mark.parametrize("backend", ABSENT)
def test_a_named_backend_that_is_not_here_is_refused_with_one_that_works(backend: BackendName) -> None:
    link = {"rate": "100mbit", "delay": "20ms", "backend": backend}
    with pytest.raises(MissingRequirementError, match=f"delay by {backend} does not work here") as raised:
        require(make_plan(validate({"name": "t", "link": link})))
    assert any(f"--set link.backend={other}" in str(raised.value) for other in HERE)


@pytest.mark.parametrize("backend", HERE)
def test_a_named_backend_delays(tmp_path: Path, backend: BackendName) -> None:
    link = {"rate": "100mbit", "delay": "20ms", "backend": backend}
    with deployed(tmp_path, link=link) as deployment:
        for measured in calibrate(deployment).links:
            assert measured.delay_s == pytest.approx(0.02, rel=0.05)


def test_what_nfqueue_has_not_got_is_had_from_a_backend_that_has_and_works_here(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"name": "t", "packet_mode": "mtu"}
    with pytest.raises(SpecError, match=r"link\.duplicate: nfqueue .* can$"):
        plan_here(validate({**keys, "link": {"duplicate": "1%", "backend": "nfqueue"}}))
    plan = plan_here(validate({**keys, "link": {"duplicate": "1%"}}))
    assert plan.delay_backend is not None
    if missing_for_backend(plan.delay_backend):
        with pytest.raises(MissingRequirementError, match=r"nfqueue works here, but link\.duplicate"):
            require(plan)
    else:
        require(plan)


def test_ipv6_is_off_and_neighbours_are_static(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        state = deployment.read_back()
        for node in state.values():
            assert all(address["family"] == "inet" for link in node["addresses"] for address in link["addr_info"])
            assert {neighbour["state"][0] for neighbour in node["neighbours"]} <= {"PERMANENT"}
        assert deployment.hosts["w0"].execute(["cat", "/proc/net/if_inet6"]).strip() in {"", _loopback_only()}


def _loopback_only() -> str:
    return "00000000000000000000000000000001 01 80 10 80       lo"


def test_nothing_of_a_node_is_seen_in_the_root_namespace(tmp_path: Path) -> None:
    with LinkMonitor() as monitor:
        before = set(monitor.interfaces())
        with deployed(tmp_path):
            assert set(monitor.interfaces()) == before


def test_class_counters_see_every_header_and_the_sampler_reads_them(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        seen: list[LinkSample] = []
        with LinkSampler(deployment, interval_s=0.05, on_sample=seen.extend) as sampler:
            before = {sample.port: sample for sample in sampler.sample()}
            direction = deployment.plan.directions[0]
            rate_of(deployment, direction)
            after = {sample.port: sample for sample in sampler.sample()}
            sampler.check()
        port = direction.sender.interface
        counted = after[port].class_bytes - before[port].class_bytes
        interface = after[port].interface_bytes - before[port].interface_bytes
        packets = after[port].class_packets - before[port].class_packets
        # Super-frames: the interface misses their inner headers, the class does not.
        assert interface < counted
        assert counted / packets > 1000
        assert len(seen) >= len(deployment.plan.directions)
        assert after[port].rate_bps == 100e6


def test_a_sampler_says_when_a_shaper_has_gone(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment, LinkSampler(deployment, interval_s=9, on_sample=lambda _: None) as sampler:
        deployment.hosts["w0"].execute(["tc", "qdisc", "del", "dev", "w0-eth0", "root"])
        with pytest.raises(MissingRequirementError, match="w0-eth0"):
            sampler.sample()


def test_a_link_sends_at_its_rate_while_packets_wait_and_the_sampler_sees_it(tmp_path: Path) -> None:
    with deployed(tmp_path) as deployment:
        direction = deployment.plan.directions[0]
        probes: list[BacklogProbe] = []
        with (
            LinkSampler(deployment, interval_s=0.05, on_sample=lambda _: None, on_probe=probes.append) as sampler,
            streaming(deployment, [flow_of(direction)], timeout_s=10) as (stream,),
        ):
            receive_rate_bps(stream.taken, warm_up_s=0.1, window_s=1.5)
            sampler.check()
    mine = [probe for probe in probes if probe.node == direction.sender.node]
    assert len(mine) >= 3
    sent, due = sum(probe.sent_bytes for probe in mine), sum(probe.due_bytes for probe in mine)
    # Each may be out by a super-frame.
    experiment = deployment.plan.experiment
    chance = 3 * wire_bytes(experiment.packet_bytes, experiment.mtu) * math.sqrt(len(mine) / 6)
    assert abs(sent - due) <= chance + 0.03 * due


def delayed(tmp_path: Path, delay: str, *, rate: str = "100mbit", **more: str) -> AbstractContextManager[Deployment]:
    """Two workers behind links with that delay, by the backend that `auto` finds here."""
    return deployed(tmp_path, plan_here, link={"rate": rate, "delay": delay, **more})


def late_s(deployment: Deployment, direction: Direction) -> float:
    """The median of five measurements of the direction's delay, beyond what was requested."""
    measured_s = [delays_of(deployment, [direction])[0].delay_s for _ in range(5)]
    assert min(measured_s) >= direction.delay_s
    return statistics.median(measured_s) - direction.delay_s


@pytest.mark.parametrize("delay", ["200us", "1ms", "20ms"])
def test_delay_is_what_was_requested_in_each_direction(tmp_path: Path, delay: str) -> None:
    with delayed(tmp_path, delay) as deployment:
        for direction in deployment.plan.directions[:2]:
            limit_s = max(0.03 * direction.delay_s, 100e-6)
            # Waking up on a busy machine takes its time, and it is never too early.
            assert standing(partial(late_s, deployment, direction), partial(operator.gt, limit_s)) < limit_s


@pytest.mark.parametrize("rate", ["100mbit", "1gbit"])
def test_rate_holds_through_a_delay(tmp_path: Path, rate: str) -> None:
    with delayed(tmp_path, "1ms", rate=rate) as deployment:
        direction = deployment.plan.directions[0]
        requested_bps = direction.rate_bps * goodput_fraction()
        assert rate_of(deployment, direction).goodput_bps == pytest.approx(requested_bps, rel=0.01)


def test_a_stream_has_time_to_fill_a_link_whose_delay_is_on_the_way_back(tmp_path: Path) -> None:
    """It takes 0.3 s; what was measured from 0.1 s on was two thirds of the rate."""
    links = {"s0->w0": {"delay": "40ms"}}
    with deployed(tmp_path, plan_here, link={"rate": "500mbit", "queue": "5MB"}, links=links) as deployment:
        direction = deployment.plan.directions[0]
        assert rate_of(deployment, direction).rate_bps == pytest.approx(direction.rate_bps, rel=0.01)


def test_a_round_trip_takes_at_least_the_sum_of_the_delays_on_its_path(tmp_path: Path) -> None:
    with delayed(tmp_path, "2ms") as deployment, ExitStack() as stack:
        sockets = []
        for rank in range(2):
            with deployment.hosts[f"w{rank}"].entered():
                sockets.append(stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
            sockets[rank].bind((deployment.plan.port_of(f"w{rank}").address, 0))
            sockets[rank].settimeout(5)
        for _ in range(20):
            begun_s = time.monotonic()
            sockets[0].sendto(b"there", sockets[1].getsockname())
            sockets[1].recv(64)
            sockets[1].sendto(b"back", sockets[0].getsockname())
            sockets[0].recv(64)
            assert time.monotonic() - begun_s >= 4 * 2e-3


@pytest.mark.parametrize(
    "chances",
    # With both a window has 6 MB, which last for half a second at the higher rate.
    [{"loss": "1%"}, {"duplicate": "5%"}, {"loss": "1%", "duplicate": "5%", "rate": "100mbit"}],
)
def test_a_link_that_loses_or_doubles_packets_is_not_taken_for_a_faster_one(
    tmp_path: Path, chances: dict[str, str]
) -> None:
    """What waits behind a gap comes out of the socket at once when the gap is closed: a window that began meanwhile had
    2 % more in it than the link carries. Copies, made behind the shaper, were counted as segments: 5 % more; how many
    there are in a window differs by up to a hundredth, and once in a while by more."""
    keys = {"link": {"rate": "20mbit", "delay": "5ms", **chances}, "packet_mode": "mtu"}
    with deployed(tmp_path, plan_here, channel={"kind": "tcp", "congestion": "bbr"}, **keys) as deployment:
        for direction in [*deployment.plan.directions] * 3:
            goodput_bps, congestion = measure_rate(deployment, direction)
            assert congestion == "bbr"
            most = 1.02 if "duplicate" in chances else 1.01
            assert 0.9 <= goodput_bps / (direction.rate_bps * goodput_fraction()) <= most


def test_loss_is_of_packets_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    def arrived() -> list[int]:
        with (
            deployed(tmp_path, link={"loss": "5%", "backend": "nfqueue"}) as deployment,
            deployment.hosts["s0"].entered(),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as target,
        ):
            direction = deployment.plan.directions[0]
            target.bind((direction.receiver.address, 0))
            target.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            with (
                deployment.hosts["w0"].entered(),
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source,
            ):
                for number in range(2000):
                    source.sendto(number.to_bytes(4), target.getsockname())
            deadline_s = time.monotonic() + 20
            while (counters := deployment.delay_counters()[direction.link, "w0"]).num_packets < 2000:
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
            target.settimeout(10)
            numbers = [int.from_bytes(target.recv(64)) for _ in range(2000 - counters.num_lost)]
            target.settimeout(0.2)
            with pytest.raises(TimeoutError):
                target.recv(64)
            assert counters.num_packets == 2000
            return numbers

    first = arrived()
    assert 1850 < len(first) < 1950  # 5 standard deviations
    assert arrived() == first


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("iptables -t mangle -F PREROUTING", "firewall rules are absent"),
        ("iptables -t mangle -I PREROUTING -i w0-eth0 -j ACCEPT", "-j ACCEPT"),
    ],
)
def test_a_way_past_the_delay_is_noticed(tmp_path: Path, argv: str, words: str) -> None:
    with deployed(tmp_path, link={"delay": "1ms", "backend": "nfqueue"}) as deployment:
        assert deployment.differences() == []
        deployment.hosts["w0"].execute(argv.split())
        assert any(words in line for line in deployment.differences())


def test_without_its_daemon_a_link_carries_nothing_and_it_is_said(tmp_path: Path) -> None:
    with deployed(tmp_path, link={"delay": "1ms", "backend": "nfqueue"}) as deployment:
        direction = deployment.plan.directions[1]
        assert min(one_way_delays_s(deployment, [direction], num_packets=5)[0]) > 1e-3
        assert deployment.delay_counters()[direction.link, "s0"].num_packets > 0
        deployment.check()
        pids = deployment.hosts["w0"].execute(["pgrep", "-f", "delay-w0"]).split()
        (victim,) = (
            pid for pid in map(int, pids) if network_namespace(pid) == network_namespace(deployment.hosts["w0"].pid)
        )
        os.kill(victim, signal.SIGKILL)
        deadline_s = time.monotonic() + 10
        while ProcessIdentity.of(victim) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        with pytest.raises(RunFailedError, match="delay daemon of w0 was killed by signal 9"):
            calibrate(deployment)
        assert any("nobody serves queue" in line for line in deployment.differences())
