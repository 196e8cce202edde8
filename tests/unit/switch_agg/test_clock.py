"""A protocol's second lasts k seconds of the machine's, whoever waits."""

import socket
import time
from collections.abc import Iterable, Iterator, Sequence

import pytest

from switch_agg import clock
from switch_agg.core import Datagram
from switch_agg.driver import Driver
from transports.channels._udp.native import Waiter

FACTOR = 5.0
NAP_S = 0.02
"""Of a protocol: 0.1 s of the machine."""


@pytest.fixture(autouse=True)
def _dilated() -> Iterator[None]:
    clock.dilate(FACTOR)
    yield
    clock.dilate(1.0)


class Alarm:
    """A core that wants to be woken once."""

    def __init__(self) -> None:
        self.due_s: float | None = clock.now_s() + NAP_S
        self.expired_s: float | None = None

    def receive(self, datagrams: Iterable[Datagram], now_s: float) -> None:
        raise AssertionError("nobody sends anything")

    def transmit(self, now_s: float) -> Sequence[Datagram]:
        return ()

    def deadline_s(self) -> float | None:
        return self.due_s

    def expire(self, now_s: float) -> None:
        self.due_s, self.expired_s = None, now_s


def test_moments_and_durations_are_converted_and_converted_back() -> None:
    at_s = time.monotonic()
    assert clock.now_s() == pytest.approx(at_s / FACTOR, abs=0.1)
    assert clock.protocol_s(clock.machine_s(3.0)) == 3.0
    assert clock.dilation() == FACTOR


def test_a_cores_timer_runs_out_as_much_later() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))
        opened.setblocking(False)
        core, begun_s = Alarm(), time.monotonic()
        assert Driver(core, opened).run(lambda: core.expired_s is not None, deadline_s=clock.now_s() + 10)
        assert time.monotonic() - begun_s >= FACTOR * NAP_S
        begun_s = time.monotonic()
        assert not Driver(Alarm(), opened).run(lambda: False, deadline_s=clock.now_s() + NAP_S)
        assert time.monotonic() - begun_s >= FACTOR * NAP_S


def test_the_waiting_of_the_udp_channel_lasts_as_much_longer() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))
        begun_s = time.monotonic()
        assert Waiter([opened.fileno()]).wait(NAP_S) == []
        assert time.monotonic() - begun_s >= FACTOR * NAP_S
