"""SwitchML's packet tests, by name: what is sent, what is expected, byte for byte.

After test/TwoWorkerTests.py and test/ThreeWorkerTests.py of github.com/microsoft/SwitchML (MIT licence; Packet Test
Framework against the P4 program), in the datagram of github.com/p4lang/p4app-switchML, whose size, job_number and
second exponent did not exist yet. Each is played with 2 and 3 workers and 64 and 256 elements against the program, and
against sockets on loopback. NonSwitchML, and the tests of ARP and ICMP, need a switch:
tests/integration/test_switchml.py. Those of RDMA have no counterpart: a client of that backend is refused by name
(tests/unit/switch_agg/switchml/).
"""

import itertools
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final, Protocol

import pytest

from switch_agg.aggregator import Counters
from switch_agg.core import Datagram
from switch_agg.switchml.plane import SwitchMLDataPlane
from switch_agg.switchml.program import Membership, SwitchMLProgram

BASE_PORT: Final = 0xBEE0
SIZES: Final = {64: 1, 256: 3}
Received = tuple[bytes, int, int]
"""A datagram, the port it left and the port it reached."""


def datagram(
    num_elements: int,
    pool_index: int,
    values: list[int],
    *,
    exponents: tuple[int, int],
    tsi: int = 0x01020304,
    job_number: int = 9,
    type_: int = 1,
) -> bytes:
    """SwitchML() / SwitchMLExponent() / SwitchMLData()."""
    head = struct.pack(">BBIHbb", type_ << 4 | SIZES[num_elements], job_number, tsi, pool_index, *exponents)
    return head + struct.pack(f">{num_elements}i", *values)


class Port(Protocol):
    """Where packets are sent and verified."""

    def send(self, worker: int, data: bytes, port: int, source: int) -> None: ...

    def received(self, worker: int, at_least: int) -> list[Received]: ...

    def counters(self) -> Counters: ...


class ProgramPort:
    """The program itself."""

    def __init__(self, num_workers: int, num_elements: int) -> None:
        self._program = SwitchMLProgram()
        for rank in range(num_workers):
            self._program.admit(Membership(7, rank, num_workers, num_elements, f"198.19.200.{50 + rank}"))
        self._received: dict[str, list[Received]] = {f"198.19.200.{50 + rank}": [] for rank in range(num_workers)}

    def send(self, worker: int, data: bytes, port: int, source: int) -> None:
        self._program.receive([Datagram((f"198.19.200.{50 + worker}", source), data, local_port=port)], 0.0)
        for each in self._program.transmit(0.0):
            self._received[each.peer[0]].append((each.data, each.local_port, each.peer[1]))

    def received(self, worker: int, at_least: int) -> list[Received]:
        found, self._received[f"198.19.200.{50 + worker}"] = self._received[f"198.19.200.{50 + worker}"], []
        return found

    def counters(self) -> Counters:
        return self._program.counters


_number = itertools.count()


class SocketPort:
    """Sockets of loopback addresses of its own; each worker has several ports, as threads of the client have."""

    def __init__(self, stack: ExitStack, num_workers: int, num_elements: int) -> None:
        pid, number = os.getpid(), next(_number)
        address = [f"127.{60 + which}.{pid & 0xFF}.{1 + number}" for which in range(num_workers + 1)]
        self._plane = SwitchMLDataPlane(address[-1])
        stack.callback(self._plane.close)
        self._sent = 0
        self._sockets: dict[tuple[int, int], socket.socket] = {}
        self._stack, self._address = stack, address
        for rank in range(num_workers):
            self._plane.admit(Membership(7, rank, num_workers, num_elements, address[rank]))

    def send(self, worker: int, data: bytes, port: int, source: int) -> None:
        self._socket(worker, source).sendto(data, (self._address[-1], port))
        self._sent += 1
        deadline_s = time.monotonic() + 5
        while self._plane.counters().rx < self._sent:
            assert time.monotonic() < deadline_s
            time.sleep(0.0005)

    def received(self, worker: int, at_least: int) -> list[Received]:
        """What is there; what should be is waited for. What comes later is found by the next look."""
        found: list[Received] = []
        own = {opened: port for (owner, port), opened in self._sockets.items() if owner == worker}
        while ready := select.select(list(own), [], [], 5.0 if len(found) < at_least else 0.0)[0]:
            for opened in ready:
                data, peer = opened.recvfrom(4096)
                assert peer[0] == self._address[-1]
                found.append((data, peer[1], own[opened]))
        return found

    def counters(self) -> Counters:
        return self._plane.counters()

    def _socket(self, worker: int, port: int) -> socket.socket:
        if (worker, port) not in self._sockets:
            opened = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            opened.bind((self._address[worker], port))
            self._sockets[worker, port] = opened
        return self._sockets[worker, port]


class Bench:
    """send_packet and verify_packet of the original, for workers that send different values."""

    def __init__(self, port: Port, num_workers: int, num_elements: int) -> None:
        self.port, self.num_workers, self.num_elements = port, num_workers, num_elements

    def send(self, worker: int, pool_index: int, multiplier: int = 1, *, shift: int = 0) -> None:
        """pktW<worker>S<set>x<multiplier>, `shift` ports and sources further."""
        values = [multiplier * (worker + 1) * (index - 20) for index in range(self.num_elements)]
        data = datagram(self.num_elements, pool_index, values, exponents=(worker - 4, multiplier))
        self.port.send(worker, data, BASE_PORT + shift, 12345 + worker + shift)

    def verify(self, worker: int, pool_index: int, multiplier: int = 1, *, shift: int = 0) -> None:
        """expected_pktW<worker>S<set>x<multiplier>, and nothing else for this worker."""
        everybody = sum(range(1, self.num_workers + 1))
        values = [multiplier * everybody * (index - 20) for index in range(self.num_elements)]
        data = datagram(self.num_elements, pool_index, values, exponents=(self.num_workers - 5, multiplier))
        assert self.port.received(worker, 1) == [(data, BASE_PORT + shift, 12345 + worker + shift)]

    def verify_no_other_packets(self) -> None:
        assert [self.port.received(worker, 0) for worker in range(self.num_workers)] == [[]] * self.num_workers

    def reduce(self, pool_index: int, multiplier: int = 1, *, shift: int = 0) -> None:
        """A straightforward reduction."""
        for worker in range(self.num_workers):
            self.verify_no_other_packets()
            self.send(worker, pool_index, multiplier, shift=shift)
        for worker in range(self.num_workers):
            self.verify(worker, pool_index, multiplier, shift=shift)

    def retransmit(self, worker: int, pool_index: int, multiplier: int = 1, *, times: int = 1) -> None:
        for _ in range(times):
            self.send(worker, pool_index, multiplier)
            self.verify(worker, pool_index, multiplier)


S0, S1 = 0x0000, 0x8000


def basic_reduction(bench: Bench) -> None:
    """Basic operation of a single slot."""
    bench.reduce(S0)


def retransmit_after_reduction(bench: Bench) -> None:
    """From a slot that has all updates, before its paired set has any."""
    bench.reduce(S0)
    bench.retransmit(1, S0, times=3)
    bench.retransmit(0, S0, times=2)
    bench.retransmit(bench.num_workers - 1, S0)


def other_set_reduction(bench: Bench) -> None:
    """Starting from the second set."""
    bench.reduce(S1)


def both_sets_reduction(bench: Bench) -> None:
    """A pair of sets."""
    bench.reduce(S0)
    bench.reduce(S1, 3)


def slot_reuse(bench: Bench) -> None:
    """Both sets, and both again."""
    for pool_index, multiplier in ((S0, 1), (S1, 1), (S0, 3), (S1, 3)):
        bench.reduce(pool_index, multiplier)


def ignore_retransmissions(bench: Bench) -> None:
    """During reduction."""
    bench.send(0, S1)
    bench.verify_no_other_packets()
    for _ in range(2):
        bench.send(0, S1)
        bench.verify_no_other_packets()
    for worker in range(1, bench.num_workers):
        bench.send(worker, S1)
    for worker in range(bench.num_workers):
        bench.verify(worker, S1)


def retransmit_from_previous_set(bench: Bench) -> None:
    """Retransmissions to a set that has been added are answered, though the other one has begun."""
    bench.reduce(S1)
    bench.send(1, S0, 3)
    bench.retransmit(0, S1, times=3)
    bench.verify_no_other_packets()


def slot_reuse_and_retransmit(bench: Bench) -> None:
    """Reuse, half of the next, and a retransmission of the last."""
    for pool_index, multiplier in ((S0, 1), (S1, 1), (S0, 3)):
        bench.reduce(pool_index, multiplier)
    bench.send(1, S1, 3)
    bench.verify_no_other_packets()
    bench.retransmit(0, S0, 3)


def different_ports_reduction(bench: Bench) -> None:
    """Port masks in the switch, with which clients steer results to cores: every one of the sixteen."""
    bench.reduce(S0)
    for shift in range(1, 16):
        bench.reduce(S0 + shift, shift=shift)
        bench.reduce(S1 + shift, shift=shift)


SCENARIOS: Final[dict[str, Callable[[Bench], None]]] = {
    "BasicReduction": basic_reduction,
    "RetransmitAfterReduction": retransmit_after_reduction,
    "OtherSetReduction": other_set_reduction,
    "BothSetsReduction": both_sets_reduction,
    "SlotReuse": slot_reuse,
    "IgnoreRetransmissions": ignore_retransmissions,
    "RetransmitFromPreviousSet": retransmit_from_previous_set,
    "SlotReuseAndRetransmit": slot_reuse_and_retransmit,
    "DifferentPortsReduction": different_ports_reduction,
}


@pytest.fixture(params=["program", "sockets"])
def port(request: pytest.FixtureRequest, num_workers: int, num_elements: int) -> Iterator[Port]:
    with ExitStack() as stack:
        if request.param == "program":
            yield ProgramPort(num_workers, num_elements)
        else:
            yield SocketPort(stack, num_workers, num_elements)


@pytest.mark.parametrize("num_elements", [64, 256])
@pytest.mark.parametrize("num_workers", [2, 3])
@pytest.mark.parametrize("name", SCENARIOS)
def test_switchml_s_packet_tests(name: str, num_workers: int, num_elements: int, port: Port) -> None:
    bench = Bench(port, num_workers, num_elements)
    SCENARIOS[name](bench)
    time.sleep(0.02 if isinstance(port, SocketPort) else 0.0)
    bench.verify_no_other_packets()
    assert port.counters().mixed == port.counters().wrapped == port.counters().bad == 0
