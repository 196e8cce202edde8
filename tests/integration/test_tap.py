"""Links made of TAP devices and a relay, for real: rate, delay, loss, queue, marks, and what if the relay ends."""

import os
import signal
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.calibration.calibrate import calibrate, measure_rate
from testbed.calibration.delays import one_way_delays_s
from testbed.deployment.deployment import Deployment, deploy
from testbed.errors import MissingRequirementError, RunFailedError
from testbed.experiment.delay_backends.base import RelayCounters
from testbed.experiment.delay_backends.tap import TapStage
from testbed.experiment.experiment import validate
from testbed.links.htb import goodput_fraction
from testbed.machine.doctor import missing_for_backend
from testbed.measure.sampler import LinkSampler
from testbed.plan.direction import Direction
from testbed.plan.plan import make_plan
from testbed.system.processes import processes_of_run
from testbed.system.run_state import RunState, new_run_id
from tests.measuring import standing

pytestmark = pytest.mark.privileged


@contextmanager
def deployed(
    tmp_path: Path, link: dict[str, Any], *, state: RunState | None = None, **keys: Any
) -> Iterator[Deployment]:
    plan = make_plan(validate({"name": "t", "workers": 2, "link": {"backend": "tap", **link}, **keys}))
    state = state or RunState.create(new_run_id())
    try:
        with deploy(plan, state, log_directory=tmp_path) as deployment:
            yield deployment
        assert processes_of_run(state.run_id) == []
    finally:
        state.remove()


@contextmanager
def udp(deployment: Deployment, direction: Direction) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket that sends over the direction and one that hears it."""
    with ExitStack() as stack:
        with deployment.hosts[direction.receiver.node].entered():
            target = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with deployment.hosts[direction.sender.node].entered():
            source = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        target.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        target.bind((direction.receiver.address, 0))
        target.settimeout(1.0)
        source.connect(target.getsockname())
        yield source, target


def heard(target: socket.socket) -> list[int]:
    """The numbers of the packets that arrive until a second is silent."""
    numbers = []
    try:
        while True:
            numbers.append(int.from_bytes(target.recv(2048)[:4]))
    except TimeoutError:
        return numbers


def counters(deployment: Deployment, direction: Direction) -> RelayCounters:
    return deployment.relay_counters()[direction.link, direction.sender.node]


def stop(pid: int) -> None:
    """All its threads, and no sooner."""
    os.kill(pid, signal.SIGSTOP)
    while any(
        each.read_text().rpartition(")")[2].split()[0] != "T" for each in Path(f"/proc/{pid}/task").glob("*/stat")
    ):
        time.sleep(0.0001)


def relay_pid(state: RunState) -> int:
    return next(process.pid for process in state.owned().processes if process.name == "relay")


def check_until(deployment: Deployment, deadline_s: float) -> None:
    while time.monotonic() < deadline_s:
        deployment.check()
        time.sleep(0.01)


def test_it_works_on_this_machine() -> None:
    assert missing_for_backend("tap") == ""


@pytest.mark.parametrize("rate", ["100mbit", "1gbit"])
def test_goodput_is_within_one_percent_of_what_was_requested(tmp_path: Path, rate: str) -> None:
    with deployed(tmp_path, {"rate": rate}) as deployment:
        for direction in deployment.plan.directions[:2]:
            requested_bps = direction.rate_bps * goodput_fraction()

            def error(direction: Direction = direction, requested_bps: float = requested_bps) -> float:
                return measure_rate(deployment, direction)[0] / requested_bps - 1

            assert abs(standing(error, lambda found: abs(found) < 0.01)) < 0.01


def test_everything_reads_back_and_calibrates(tmp_path: Path) -> None:
    with deployed(tmp_path, {"delay": "1ms"}) as deployment:
        assert deployment.differences() == []
        assert len(calibrate(deployment).links) == 4
        requested = deployment.read_back()["w0"]["relay"]
        assert [parameters["delay_ns"] for parameters in requested.values()] == [1e6]
        deployment.hosts["w1"].execute(["ip", "link", "set", "w1-eth0", "down"])
        assert any("not up" in line for line in deployment.differences())


def test_the_delay_is_what_was_requested_beside_what_a_packet_takes_without_one(tmp_path: Path) -> None:
    links = {"w1-s0": {"delay": "5ms"}}
    with deployed(tmp_path, {"rate": "1gbit"}, links=links) as deployment:
        directions = [deployment.plan.directions[0], deployment.plan.directions[2]]

        def error_s() -> float:
            undelayed, delayed = one_way_delays_s(deployment, directions, num_packets=25)
            return statistics.median(delayed) - statistics.median(undelayed) - 5e-3

        assert abs(standing(error_s, lambda found_s: abs(found_s) < 150e-6)) < 150e-6


def test_the_same_seed_loses_the_same_packets(tmp_path: Path) -> None:
    def arrived(seed: int) -> set[int]:
        with deployed(tmp_path, {"rate": "1gbit", "loss": "1%"}, packet_mode="mtu", seed=seed) as deployment:
            direction = deployment.plan.directions[0]
            with udp(deployment, direction) as (source, target):
                for number in range(4000):
                    source.send(number.to_bytes(4))
                numbers = heard(target)
            assert counters(deployment, direction).num_lost == 4000 - len(numbers)
            return set(numbers)

    first = arrived(1)
    assert 24 <= 4000 - len(first) <= 57  # the 99 % interval of a binomial distribution around 40
    assert arrived(1) == first
    assert arrived(2) != first


def test_bursts_are_longer_than_chance_would_have_them(tmp_path: Path) -> None:
    loss = {"kind": "gilbert_elliott", "good_to_bad": 0.01, "bad_to_good": 0.2}
    with deployed(tmp_path, {"rate": "1gbit", "loss": loss}) as deployment:
        with udp(deployment, deployment.plan.directions[0]) as (source, target):
            for number in range(4000):
                source.send(number.to_bytes(4))
            numbers = set(heard(target))
        lost = [number not in numbers for number in range(4000)]
        num_bursts = sum(now and not before for before, now in zip([False, *lost], lost, strict=False))
        assert 0.02 < sum(lost) / 4000 < 0.09  # 0.0476 in the long run
        assert 3 < sum(lost) / num_bursts < 8  # 1 / bad_to_good


def test_duplicates_and_overtaking_packets_arrive(tmp_path: Path) -> None:
    requested = {"rate": "1gbit", "delay": "2ms", "duplicate": "5%", "reorder": "5%"}
    with deployed(tmp_path, requested) as deployment:
        direction = deployment.plan.directions[0]
        with udp(deployment, direction) as (source, target):
            for number in range(1000):
                source.send(number.to_bytes(4))
            numbers = heard(target)
        assert set(numbers) == set(range(1000))
        done = counters(deployment, direction)
        assert len(numbers) == 1000 + done.num_duplicated
        assert 20 < done.num_duplicated < 90
        assert 20 < done.num_reordered < 90
        assert numbers != sorted(numbers)


def test_a_full_queue_drops_what_does_not_fit_and_counts_it(tmp_path: Path) -> None:
    with deployed(tmp_path, {"rate": "1mbit", "queue": "30kB"}, packet_mode="mtu") as deployment:  # empty after 240 ms
        direction = deployment.plan.directions[0]
        with udp(deployment, direction) as (source, target):
            for number in range(60):
                source.send(number.to_bytes(4) + bytes(1468))  # 1514 bytes as a frame
            deadline_s = time.monotonic() + 10
            while (found := counters(deployment, direction)).num_drops == 0:
                assert time.monotonic() < deadline_s
            backlog_bytes = found.backlog_bytes
            numbers = heard(target)
        done = counters(deployment, direction)
        assert len(numbers) + done.num_drops == 60
        assert numbers[:19] == list(range(19)), "19 frames fit into 30 kB"
        assert len(numbers) < 40
        assert 20_000 < backlog_bytes <= 30_000
        assert done.backlog_bytes == 0
        assert done.num_bytes == 1514 * len(numbers)


def test_only_packets_that_can_bear_a_mark_are_marked_once_the_queue_is_long(tmp_path: Path) -> None:
    with deployed(tmp_path, {"rate": "1mbit", "queue": "100kB", "ecn": "15kB"}, packet_mode="mtu") as deployment:
        direction = deployment.plan.directions[0]
        with udp(deployment, direction) as (source, target):
            target.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
            for tos in (2, 0):  # ECT(0), not capable
                source.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
                for _ in range(30):
                    source.send(bytes(1472))
                received = [target.recvmsg(2048, 64)[1][0][2][0] for _ in range(30)]
                assert received[:10] == [tos] * 10
                assert received[20:] == [3 if tos else 0] * 10
        done = counters(deployment, direction)
        assert 10 <= done.num_marked <= 20
        assert done.num_drops == 0


def test_super_frames_are_cut_without_harm_and_count_every_header(tmp_path: Path) -> None:
    payload = os.urandom(3_000_000)
    with deployed(tmp_path, {"rate": "100mbit", "delay": "1ms", "jitter": "100us"}) as deployment, ExitStack() as stack:
        direction = deployment.plan.directions[0]
        with deployment.hosts["s0"].entered():
            listener = stack.enter_context(socket.create_server((direction.receiver.address, 0)))
        with deployment.hosts["w0"].entered():
            source = stack.enter_context(socket.create_connection(listener.getsockname()))
        taken = stack.enter_context(listener.accept()[0])
        source.settimeout(10)
        taken.settimeout(10)
        received = bytearray()
        for begin in range(0, len(payload), 100_000):  # what the socket buffers hold
            source.sendall(payload[begin : begin + 100_000])
            while len(received) < begin + 100_000:
                received += taken.recv(1 << 16)
        assert received == payload
        done = counters(deployment, direction)
        assert done.num_bytes >= len(payload) * 1514 / 1448
        assert done.num_packets >= len(payload) / 1448


def test_a_change_in_mid_flow_drops_nothing_and_holds_from_the_next_packet(tmp_path: Path) -> None:
    with deployed(tmp_path, {"rate": "2mbit", "delay": "5ms", "queue": "1MB"}, packet_mode="mtu") as deployment:
        direction = deployment.plan.directions[0]
        stage = direction.delay_stage
        assert isinstance(stage, TapStage)
        assert deployment.relay
        with udp(deployment, direction) as (source, target):
            for number in range(100):  # 600 ms at 2 Mbit/s
                source.send(number.to_bytes(4) + bytes(1468))
            begun_s = time.monotonic()
            deployment.relay.change(replace(stage.parameters, rate_bps=1e9, delay_ns=1e6).argument(stage.index))
            received = [int.from_bytes(target.recv(2048)[:4]) for _ in range(100)]
            assert time.monotonic() - begun_s < 0.4
        assert received == list(range(100))
        done = counters(deployment, direction)
        assert (done.num_drops, done.num_lost, done.parameters.rate_bps) == (0, 0, 1e9)
        found = deployment.differences()
        assert any("the relay's rate_bps is 1e+09, requested 2e+06" in line for line in found)
        with pytest.raises(RunFailedError, match="refused a parameter is missing"):
            deployment.relay.change(f"{stage.index}:rate_bps=1.0")


def test_what_the_relay_had_no_time_to_take_counts_as_dropped(tmp_path: Path) -> None:
    state = RunState.create(new_run_id())
    with deployed(tmp_path, {"delay": "1ms"}, state=state) as deployment:
        direction = deployment.plan.directions[0]
        deployment.hosts["w0"].execute(["ip", "link", "set", "w0-eth0", "txqueuelen", "10"])
        sampler = LinkSampler(deployment, interval_s=10.0, on_sample=lambda _: None)
        key = (direction.link, direction.sender.node)
        assert sampler.delay_counters()[key].num_dropped == 0
        stop(relay_pid(state))
        with udp(deployment, direction) as (source, _):
            for _ in range(30):
                source.send(b"late")
        os.kill(relay_pid(state), signal.SIGCONT)
        assert sampler.delay_counters()[key].num_dropped == 20


def test_without_its_relay_there_is_no_link_and_it_is_said(tmp_path: Path) -> None:
    state = RunState.create(new_run_id())
    with deployed(tmp_path, {"delay": "1ms"}, state=state) as deployment:
        deployment.check()
        sampler = LinkSampler(deployment, interval_s=10.0, on_sample=lambda _: None)
        assert {sample.class_bytes for sample in sampler.sample()} == {0}
        os.kill(relay_pid(state), signal.SIGKILL)
        with pytest.raises(RunFailedError, match="the relay of the links was killed by signal 9"):
            check_until(deployment, time.monotonic() + 10)
        with pytest.raises(RunFailedError, match="the relay of the links"):
            sampler.sample()
        assert any("w0-eth0: absent" in line for line in deployment.differences())


def test_a_relay_that_cannot_start_ends_the_deployment_with_what_it_said(tmp_path: Path) -> None:
    plan = make_plan(validate({"name": "t", "workers": 2, "link": {"backend": "tap"}}))
    port = plan.directions[0].sender
    object.__setattr__(port, "mac", "nonsense")
    state = RunState.create(new_run_id())
    try:
        with (
            pytest.raises(MissingRequirementError, match=r"the relay of the links ended with status 1: .*nonsense"),
            deploy(plan, state, log_directory=tmp_path),
        ):
            raise AssertionError("deployed without a relay")
    finally:
        state.remove()


def test_a_relay_that_was_stopped_counts_what_waited_for_it_as_late(tmp_path: Path) -> None:
    """A device does not stamp its packets: lateness counted from when the relay read them, long as they had lain."""
    state = RunState.create(new_run_id())
    with deployed(tmp_path, {"rate": "1gbit", "delay": "1ms"}, state=state) as deployment:
        direction = deployment.plan.directions[0]
        with udp(deployment, direction) as (source, target):
            before = counters(deployment, direction).delay
            stop(relay_pid(state))
            for number in range(10):
                source.send(number.to_bytes(4))
            time.sleep(1.5)
            os.kill(relay_pid(state), signal.SIGCONT)
            assert heard(target) == list(range(10))
            late = counters(deployment, direction).delay.since(before)
        assert (late.late_s(0.5) or 0.0) > 1.4
        assert 1.4 < late.overdue_s < 2.8, "once, although ten packets were late"


def test_no_stop_of_the_relay_is_missed_wherever_in_its_work_it_comes(tmp_path: Path) -> None:
    """A stop between the wait's end and the look at the clock, or between that and the read, made packets that had
    lain for as long look punctual: the next pass took them for new ones."""
    state = RunState.create(new_run_id())
    num_stops, stop_s, longest_wait_s = 60, 0.03, 0.01
    with deployed(tmp_path, {"rate": "1gbit", "delay": "1ms"}, state=state) as deployment:
        forth, back = deployment.plan.directions[:2]
        with udp(deployment, forth) as (source, target), udp(deployment, back) as (busy, _):
            before = counters(deployment, forth).delay
            for number in range(num_stops):
                for _ in range(1 + 7 * number):  # so that it is at work when it is stopped
                    busy.send(b"busy")
                stop(relay_pid(state))
                source.send(number.to_bytes(4))
                time.sleep(stop_s)
                os.kill(relay_pid(state), signal.SIGCONT)
                assert int.from_bytes(target.recv(2048)[:4]) == number
            late = counters(deployment, forth).delay.since(before)
        share = 0.5 / num_stops  # so late is all but the half of one packet
        # Of the wait that a stop fell into, the relay knows only how long it was to be.
        assert (late.late_s(share) or 0.0) > 0.9 * (stop_s - longest_wait_s)
