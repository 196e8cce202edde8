"""Real namespaces and the nfqueue daemon: what is drawn, what changes while packets wait, on which paths it lies."""

import json
import os
import signal
import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from testbed.calibration.calibrate import measure_rate
from testbed.deployment.deployment import Deployment, deploy
from testbed.errors import RunFailedError
from testbed.experiment.delay_backends.nfqueue import Nfqueue, NfqueueStage
from testbed.experiment.experiment import validate
from testbed.experiment.link import LinkSpec
from testbed.plan.direction import Direction
from testbed.plan.plan import make_plan
from testbed.system.kernel import network_namespace, realtime
from testbed.system.run_state import RunState, new_run_id

pytestmark = pytest.mark.privileged

STAMP = struct.Struct("=Qd")
MAX_EARLY_S = 50e-6
"""Of one of many packets: half of what goes together, see grain() in delay_nfqueue.c."""


@contextmanager
def deployed(tmp_path: Path, *, workers: int = 2, state: RunState | None = None, **keys: Any) -> Iterator[Deployment]:
    keys["link"] = {"backend": "nfqueue", **keys.get("link", {})}
    plan = make_plan(validate({"name": "t", "workers": workers, **keys}))
    state = state or RunState.create(new_run_id())
    try:
        with deploy(plan, state, log_directory=tmp_path) as deployment:
            yield deployment
    finally:
        state.remove()


def udp_socket(stack: ExitStack, deployment: Deployment, node: str, address: str) -> socket.socket:
    with deployment.hosts[node].entered():
        made = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    made.bind((address, 0))
    made.settimeout(0.5)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    return made


class Train:
    """Numbered packets from w0 to s0, and when each arrives."""

    def __init__(self, deployment: Deployment, stack: ExitStack) -> None:
        direction = deployment.plan.directions[0]
        self._source = udp_socket(stack, deployment, "w0", direction.sender.address)
        self._target = udp_socket(stack, deployment, "s0", direction.receiver.address)
        self._next = 0
        self._all_sent = threading.Event()
        self._found: list[tuple[int, float]] = []
        self._receiving = threading.Thread(target=self._receive, daemon=True)
        self._receiving.start()

    def send(self, count: int, *, gap_s: float = 0.0) -> None:
        for _ in range(count):
            self._source.sendto(STAMP.pack(self._next, time.monotonic()), self._target.getsockname())
            self._next += 1
            if gap_s:
                time.sleep(gap_s)

    def _receive(self) -> None:
        # On a busy machine the delay would otherwise be mostly this thread's own wait for a core.
        with realtime():
            while True:
                was_all = self._all_sent.is_set()
                try:
                    number, sent_s = STAMP.unpack(self._target.recv(64))
                except TimeoutError:
                    if was_all:
                        return
                else:
                    self._found.append((number, time.monotonic() - sent_s))

    def arrivals(self) -> list[tuple[int, float]]:
        """Number and delay of everything that arrives, until nothing does for half a second after the last was sent."""
        self._all_sent.set()
        self._receiving.join()
        return self._found


def first_stage(deployment: Deployment) -> NfqueueStage:
    stage = deployment.plan.directions[0].delay_stage
    assert isinstance(stage, NfqueueStage)
    return stage


def change(deployment: Deployment, **link: Any) -> None:
    """The first direction's line, in place."""
    stage = Nfqueue().stage(LinkSpec.model_validate(link), interface=first_stage(deployment).interface, index=0, seed=1)
    for argument in stage.daemon_arguments():
        deployment.delay_daemon("s0").change(argument)
    assert stage.parameter_differences(deployment.delay_daemon("s0").parameters()[stage.index]) == []


def test_a_change_drops_nothing_and_keeps_the_order_of_what_waits(tmp_path: Path) -> None:
    with deployed(tmp_path, link={"rate": "1gbit", "delay": "100ms"}) as deployment, ExitStack() as stack:
        train = Train(deployment, stack)
        train.send(500)
        change(deployment, rate="1gbit", delay="20ms")
        train.send(500)
        change(deployment, rate="10gbit", delay="40ms")  # holds 67 times as many packets
        train.send(500)
        arrivals = train.arrivals()
        assert [number for number, _ in arrivals] == list(range(1500))
        assert min(delay_s for _, delay_s in arrivals[:500]) >= 0.1 - MAX_EARLY_S
        assert 0.04 - MAX_EARLY_S <= min(delay_s for _, delay_s in arrivals[1000:]) < 0.1


def test_the_program_wakes_for_releases_and_not_for_arrivals(tmp_path: Path) -> None:
    """Waking for both cost a ring of single packets two fifths of the machine."""
    with deployed(tmp_path, link={"rate": "1gbit", "delay": "5ms"}) as deployment, ExitStack() as stack:
        train = Train(deployment, stack)
        num_before, begun_s = _num_sleeps(deployment), time.monotonic()
        train.send(3000, gap_s=150e-6)
        arrivals = train.arrivals()
        num_sleeps, took_ms = _num_sleeps(deployment) - num_before, 1e3 * (time.monotonic() - begun_s)
        assert num_sleeps < 4 / 3 * 3000 + took_ms  # it looks what has come at least once in each
        assert [number for number, _ in arrivals] == list(range(3000))
        assert min(delay_s for _, delay_s in arrivals) >= 0.005 - MAX_EARLY_S


def _num_sleeps(deployment: Deployment) -> int:
    """How often the program that delays what arrives at the switch has gone to sleep: proc_pid_status(5)."""
    (pid,) = (
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/comm")
        if path.read_text().startswith("delay_nfqueue")
        and network_namespace(int(path.parent.name)) == network_namespace(deployment.hosts["s0"].pid)
    )
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("voluntary_"))
    return int(line.split()[1])


def test_a_line_that_begins_to_jitter_keeps_what_waits(tmp_path: Path) -> None:
    with deployed(tmp_path, link={"rate": "1gbit", "delay": "50ms"}) as deployment, ExitStack() as stack:
        train = Train(deployment, stack)
        train.send(300)
        change(deployment, rate="1gbit", delay="20ms", jitter="5ms")
        train.send(300)
        change(deployment, rate="1gbit", delay="20ms")
        train.send(300)
        assert sorted(number for number, _ in train.arrivals()) == list(range(900))


def test_a_change_that_says_nothing_sensible_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with deployed(tmp_path, link={"delay": "1ms"}) as deployment:
        daemon, before = deployment.delay_daemon("s0"), deployment.delay_daemon("s0").parameters()
        sensible = first_stage(deployment).daemon_arguments()[0]
        for reported in ("0:delay_ns=1", "9" + sensible, sensible + ",loss=1", sensible.replace("=", "=x", 1), "x"):
            with pytest.raises(RunFailedError, match=r"answers .* with: refused"):
                daemon.change(reported)
        assert daemon.parameters() == before
        daemon.change(sensible)


@pytest.mark.parametrize(
    ("backend", "distribution"), [("nfqueue", "normal"), ("nfqueue", "uniform"), ("tap", "normal"), ("tap", "uniform")]
)
def test_jitter_has_the_deviation_that_was_requested(tmp_path: Path, backend: str, distribution: str) -> None:
    jitter = {"deviation": "4ms", "distribution": distribution}
    link = {"delay": "20ms", "jitter": jitter, "backend": backend}
    with deployed(tmp_path, link=link) as deployment, ExitStack() as stack:
        train = Train(deployment, stack)
        train.send(1500, gap_s=0.2e-3)
        arrivals = train.arrivals()
        delays_s = sorted(delay_s for _, delay_s in arrivals)
        assert len(delays_s) == 1500
        assert [number for number, _ in arrivals] != list(range(1500))
        # By quantiles: that a busy machine is late with a few does not move them.
        low_s, middle_s, high_s = (delays_s[round(share * 1499)] for share in (0.16, 0.5, 0.84))
        assert middle_s == pytest.approx(0.020, abs=1.5e-3)
        half_s = 4e-3 * {"normal": statistics.NormalDist().inv_cdf(0.84), "uniform": 3**0.5 * 0.68}[distribution]
        assert (high_s - low_s) / 2 == pytest.approx(half_s, rel=0.15)
        if distribution == "uniform":
            assert delays_s[0] >= 0.020 - 4e-3 * 3**0.5


def test_bursts_are_as_long_and_as_frequent_as_the_model_says(tmp_path: Path) -> None:
    bursts = {"kind": "gilbert_elliott", "good_to_bad": "2%", "bad_to_good": "20%"}
    with deployed(tmp_path, link={"loss": bursts}) as deployment, ExitStack() as stack:
        train = Train(deployment, stack)
        for _ in range(8):
            train.send(1000)
            time.sleep(0.05)
        numbers = {number for number, _ in train.arrivals()}
        lost = [number not in numbers for number in range(8000)]
        num_bursts = sum(now and not before for now, before in zip(lost, [False, *lost], strict=False))
        assert sum(lost) / 8000 == pytest.approx(0.02 / 0.22, rel=0.3)
        assert sum(lost) / num_bursts == pytest.approx(5, rel=0.3)
        counters = deployment.delay_counters()[deployment.plan.directions[0].link, "w0"]
        assert (counters.num_packets, counters.num_lost) == (8000, sum(lost))


def test_reordered_packets_do_not_wait(tmp_path: Path) -> None:
    with deployed(tmp_path, link={"delay": "30ms", "reorder": "10%"}) as deployment, ExitStack() as stack:
        train = Train(deployment, stack)
        train.send(1000)
        arrivals = train.arrivals()
        early = [number for number, delay_s in arrivals if delay_s < 0.03 - MAX_EARLY_S]
        counters = deployment.delay_counters()[deployment.plan.directions[0].link, "w0"]
        assert len(arrivals) == 1000
        assert len(early) == counters.num_reordered
        assert 60 < len(early) < 140
        rest = [number for number, delay_s in arrivals if delay_s >= 0.03 - MAX_EARLY_S]
        assert rest == sorted(rest)


@pytest.mark.parametrize(("mode", "at_most"), [("mtu", 1), ("9000B", 6), ("superframe", 46)])
def test_packet_mode_is_what_queues_see(tmp_path: Path, mode: str, at_most: int) -> None:
    with deployed(tmp_path, link={"rate": "1gbit"}, packet_mode=mode) as deployment:
        assert deployment.differences() == []
        direction = deployment.plan.directions[0]
        before = _received_packets(deployment, direction)
        measure_rate(deployment, direction, window_s=0.25)
        num_packets = _received_packets(deployment, direction) - before
        with deployment.monitor("w0") as monitor:
            (shaped,) = monitor.htb_classes(monitor.interfaces()["w0-eth0"])
        average = shaped.num_bytes / 1514 / num_packets
        assert average <= at_most + 0.05
        assert average > at_most / 3


def _received_packets(deployment: Deployment, direction: Direction) -> int:
    """Super-frames count once here."""
    answer = deployment.hosts["s0"].execute(["ip", "-s", "-j", "link", "show", direction.receiver.interface])
    return int(json.loads(answer)[0]["stats64"]["rx"]["packets"])


def test_loss_of_single_packets_is_inside_its_binomial_interval(tmp_path: Path) -> None:
    num_packets, loss = 8000, 0.02
    with (
        deployed(tmp_path, link={"rate": "1gbit", "loss": "2%"}, packet_mode="mtu") as deployment,
        ExitStack() as stack,
    ):
        train = Train(deployment, stack)
        for _ in range(8):
            train.send(num_packets // 8)
            time.sleep(0.05)
        num_lost = num_packets - len(train.arrivals())
        interval = 2.576 * (num_packets * loss * (1 - loss)) ** 0.5  # 99 %
        assert abs(num_lost - num_packets * loss) < interval


@pytest.mark.parametrize(
    ("target", "hops"),
    [
        ("w1", ["w0", "s0", "w1"]),
        ("w2", ["w0", "s0", "s1", "w2"]),
        ("s0", ["w0", "s0"]),
        ("s1", ["w0", "s0", "s1"]),
    ],
)
def test_a_round_trip_takes_at_least_the_delays_of_its_path(tmp_path: Path, target: str, hops: list[str]) -> None:
    """Window 1, user-space time stamps, every kind of path, the switches' own addresses included."""
    links = {"s0-s1": {"delay": "3ms"}, "s0->w0": {"delay": "5ms"}}
    with (
        deployed(tmp_path, workers=4, topology="dumbbell", link={"delay": "2ms"}, links=links) as deployment,
        ExitStack() as stack,
    ):
        delays_s = {direction.hop: direction.delay_s for direction in deployment.plan.directions}
        steps = list(pairwise(hops))
        least_s = sum(delays_s[hop] + delays_s[hop[::-1]] for hop in steps)
        # A switch is reached by the address of a port that leads to a worker: those are the subnets with routes.
        port = next(
            port for link in deployment.plan.links for port in link if port.node == target and link[0].node[0] == "w"
        )
        near = udp_socket(stack, deployment, "w0", deployment.plan.worker_port(0).address)
        far = udp_socket(stack, deployment, target, port.address)
        for each in (near, far):
            each.settimeout(10)
        for _ in range(15):
            begun_s = time.monotonic()
            near.sendto(b"there", far.getsockname())
            _, back = far.recvfrom(64)
            far.sendto(b"back", back)
            near.recv(64)
            assert time.monotonic() - begun_s >= least_s


def test_a_program_that_was_stopped_does_not_take_old_packets_for_new_ones(tmp_path: Path) -> None:
    """It believed no stamp older than a second: the packets were held again, and counted as in time."""
    state, link = RunState.create(new_run_id()), {"rate": "1gbit", "delay": "1ms"}
    with deployed(tmp_path, state=state, link=link) as deployment, ExitStack() as stack:
        daemon = deployment.delay_daemon("s0")
        pid = next(process.pid for process in state.owned().processes if process.name == "delay-s0")
        pairs = [
            (
                udp_socket(stack, deployment, name, direction.sender.address),
                udp_socket(stack, deployment, "s0", direction.receiver.address),
            )
            for name in ("w0", "w1")
            for direction in deployment.plan.directions
            if direction.hop == (name, "s0")
        ]
        before, begun_s = daemon.counters(), time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        for source, target in pairs:
            target.settimeout(5)
            source.sendto(b"held", target.getsockname())
        time.sleep(1.5)
        os.kill(pid, signal.SIGCONT)
        assert [target.recv(64) for _, target in pairs] == [b"held", b"held"]
        counted, took_s = daemon.counters(), time.monotonic() - begun_s
        late_s = counted[first_stage(deployment).index].since(before[first_stage(deployment).index]).late_s(1.0)
        assert late_s is not None
        assert late_s > 1.4
        overdue_s = sum(each.overdue_s - before[index].overdue_s for index, each in counted.items())
        assert 1.4 < overdue_s < took_s, "once, although two lines had something that was late"
