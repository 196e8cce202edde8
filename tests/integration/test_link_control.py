"""Real namespaces: a link that changes while a TCP stream fills it."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from testbed.deployment.deployment import Deployment, deploy
from testbed.deployment.link_control import LinkController
from testbed.experiment.experiment import validate
from testbed.links.htb import Shaper
from testbed.plan.plan import make_plan
from testbed.system.netlink import HtbClass
from testbed.system.run_state import RunState, new_run_id
from tests.measuring import standing

pytestmark = pytest.mark.privileged


@contextmanager
def deployed(tmp_path: Path, **keys: Any) -> Iterator[Deployment]:
    plan = make_plan(validate({"name": "t", "workers": 2, **keys}))
    state = RunState.create(new_run_id())
    try:
        with deploy(plan, state, log_directory=tmp_path) as deployment:
            yield deployment
    finally:
        state.remove()


@contextmanager
def controller(deployment: Deployment, node: str) -> Iterator[tuple[LinkController, int]]:
    with deployment.hosts[node].entered():
        made = LinkController()
    with made:
        yield made, made.interfaces()[f"{node}-eth0"]


class Stream:
    """A TCP stream from w0 to s0 that never pauses, and what arrives of it."""

    def __init__(self, deployment: Deployment) -> None:
        direction = deployment.plan.directions[0]
        self._stop = threading.Event()
        self._stack = ExitStack()
        with deployment.hosts[direction.receiver.node].entered():
            listener = self._stack.enter_context(socket.create_server((direction.receiver.address, 0)))
        with deployment.hosts[direction.sender.node].entered():
            self._out = self._stack.enter_context(socket.socket())
        self._out.settimeout(10)
        self._out.connect(listener.getsockname())
        self._taken = self._stack.enter_context(listener.accept()[0])
        self._taken.settimeout(10)
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()

    def _pump(self) -> None:
        try:
            while not self._stop.is_set():
                self._out.send(bytes(1 << 16))
        except OSError:
            return

    def arrivals(self, duration_s: float) -> list[tuple[float, int]]:
        """Time and number of bytes of everything that arrives meanwhile."""
        begun_s = now_s = time.monotonic()
        found = []
        while now_s - begun_s < duration_s:
            count = len(self._taken.recv(1 << 18))
            now_s = time.monotonic()
            found.append((now_s, count))
        return found

    def drain(self) -> int:
        """Bytes that have arrived and were not read."""
        count = 0
        self._taken.setblocking(False)
        try:
            while True:
                count += len(self._taken.recv(1 << 20))
        except BlockingIOError:
            return count
        finally:
            self._taken.settimeout(10)

    def close(self) -> None:
        self._stop.set()
        self._stack.close()
        self._thread.join(10)


@contextmanager
def stream(deployment: Deployment) -> Iterator[Stream]:
    made = Stream(deployment)
    try:
        yield made
    finally:
        made.close()


def shaped(control: LinkController, index: int) -> HtbClass:
    return control.htb_classes(index)[0]


@pytest.mark.parametrize("rate_bps", [50e6, 200e6, 5e9])
def test_a_new_rate_and_queue_read_back_as_if_the_link_had_been_made_so(tmp_path: Path, rate_bps: float) -> None:
    with deployed(tmp_path) as deployment, controller(deployment, "w0") as (control, index):
        shaper = Shaper.of(interface="w0-eth0", rate_bps=rate_bps, queue_bytes=300_000)
        control.change_shaper(index, shaper)
        qdiscs = json.loads(deployment.hosts["w0"].execute(["tc", "-j", "qdisc", "show", "dev", "w0-eth0"]))
        assert shaper.differences(qdiscs, control.htb_classes(index)) == []
        assert control.queue_limit_bytes(index) == 300_000


def test_a_change_under_load_drops_nothing_and_keeps_the_queue(tmp_path: Path) -> None:
    # The queue is longer than what TCP may have under way: no drop can be anything but the change's.
    with (
        deployed(tmp_path, link={"rate": "100mbit", "queue": "8MB"}) as deployment,
        controller(deployment, "w0") as (control, index),
        stream(deployment) as flow,
    ):
        flow.arrivals(0.5)
        before = shaped(control, index)
        for rate_bps in (50e6, 80e6, 20e6, 100e6):
            control.change_shaper(index, Shaper.of(interface="w0-eth0", rate_bps=rate_bps, queue_bytes=8_000_000))
            flow.arrivals(0.05)
        after = shaped(control, index)
        assert before.backlog_bytes > 0
        assert after.num_drops == before.num_drops
        assert after.num_bytes > before.num_bytes


def test_a_new_rate_is_reached_within_200_ms(tmp_path: Path) -> None:
    with (
        deployed(tmp_path, link={"rate": "100mbit"}) as deployment,
        controller(deployment, "w0") as (control, index),
        stream(deployment) as flow,
    ):

        def change(rate_bps: float) -> None:
            control.change_shaper(index, Shaper.of(interface="w0-eth0", rate_bps=rate_bps, queue_bytes=1_000_000))

        def error(rate_bps: float, other_bps: float) -> float:
            change(other_bps)
            flow.arrivals(0.3)
            change(rate_bps)
            flow.arrivals(0.2)
            begun_s, begun = time.monotonic(), shaped(control, index).num_bytes
            flow.arrivals(0.3)
            took_s = time.monotonic() - begun_s
            return (shaped(control, index).num_bytes - begun) * 8 / took_s / rate_bps - 1

        for rates in ((50e6, 100e6), (100e6, 50e6)):
            assert abs(standing(partial(error, *rates), lambda found: abs(found) < 0.05)) < 0.05


def test_a_link_that_is_down_loses_what_is_sent_and_comes_back(tmp_path: Path) -> None:
    with (
        deployed(tmp_path, link={"rate": "100mbit"}) as deployment,
        controller(deployment, "s0") as (control, index),
        stream(deployment) as flow,
    ):
        neighbours = deployment.hosts["s0"].execute(["ip", "-j", "neighbour", "show"])
        flow.arrivals(0.2)
        assert not control.is_down(index)
        control.set_down(index)
        assert control.is_down(index)
        time.sleep(0.3)
        flow.drain()
        time.sleep(0.1)
        assert flow.drain() == 0
        control.set_up(index)
        assert not control.is_down(index)
        assert sum(count for _, count in flow.arrivals(1.0)) > 0
        assert deployment.hosts["s0"].execute(["ip", "-j", "neighbour", "show"]) == neighbours
        assert deployment.differences() == []
