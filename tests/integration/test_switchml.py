"""p4app-switchML's clients behind a real switch: whole sessions, and the tests of SwitchML's that need one."""

import json
import socket
import struct
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import Ether

from switch_agg.faults import FaultRates, Faults
from switch_agg.namespaces import in_network_of
from switch_agg.switchml.addresses import mac_of
from switch_agg.switchml.plane import SwitchMLDataPlane
from switch_agg.switchml.service import PORT, sessions_served
from tests.rack import AGGREGATOR, Rack, rack
from tests.switchml_client import Config, exact_sum, play_in

pytestmark = pytest.mark.privileged


class Served:
    """A rack whose aggregator serves p4app-switchML's clients."""

    def __init__(self, stack: ExitStack, num_workers: int) -> None:
        self.rack: Rack = stack.enter_context(rack(num_workers))
        with in_network_of(self.rack.aggregators[0]):
            self.plane = SwitchMLDataPlane(AGGREGATOR)
            stack.callback(self.plane.close)
            self.mac = mac_of(AGGREGATOR)
            stack.enter_context(sessions_served(self.plane, (AGGREGATOR, PORT), mac=self.mac, report=lambda _: None))

    def reduce(self, rank: int, values: list[np.ndarray], **config: Any) -> list[np.ndarray]:
        """One client, in its host."""
        own = Config(rank=rank, num_workers=self.rack.num_workers, **config)
        return play_in(self.rack.workers[rank], (AGGREGATOR, PORT), f"10.9.{rank}.1", own, values)


@pytest.fixture
def served() -> Iterator[Served]:
    with ExitStack() as stack:
        yield Served(stack, 3)


def test_sessions_in_a_row_through_loss_on_the_way(served: Served) -> None:
    rates = FaultRates(loss=0.05)
    served.plane.inject(Faults(seed=2, up=rates, down=rates))
    rng = np.random.default_rng(1)
    for packet_numel in (64, 256):
        values = [[rng.integers(-(2**28), 2**28, 20_000, dtype=np.int32) for _ in range(2)] for _ in range(3)]
        config = {"packet_numel": packet_numel, "num_worker_threads": 2, "max_outstanding_packets": 32}
        with ThreadPoolExecutor(3) as pool:
            found = list(
                pool.map(
                    lambda rank, config=config, values=values: served.reduce(rank, values[rank], **config), range(3)
                )
            )
        for sums in found:
            for number in range(2):
                np.testing.assert_array_equal(sums[number], exact_sum([each[number] for each in values]))
    counters = served.plane.counters()
    assert (counters.mixed, counters.bad) == (0, 0)
    assert counters.injected > 0
    assert counters.violations(served.plane.in_flight()) == []
    assert served.plane.epoch(0) == 2


def test_the_answer_names_the_interface_s_address(served: Served) -> None:
    with in_network_of(served.rack.aggregators[0]):
        shown = subprocess.run(["ip", "-j", "link", "show", "eth0"], check=True, capture_output=True, text=True)
    assert served.mac == int(json.loads(shown.stdout)[0]["address"].replace(":", ""), 16) != 0


# -- by name: test/TwoWorkerTests.py and test/ArpIcmpTests.py of github.com/microsoft/SwitchML ------------------------


def exchange(where: int, device: str, frame: bytes, ethertype: int, *, answers: bool) -> list[bytes]:
    """A frame sent by an interface, and what comes back to it of that type: the answer, if there should be one, and
    what comes within half a second."""
    with in_network_of(where):
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ethertype))
    with opened:
        opened.bind((device, ethertype))
        opened.settimeout(10 if answers else 0.5)
        opened.send(frame)
        found: list[bytes] = []
        while True:
            try:
                data, address = opened.recvfrom(2000)
            except TimeoutError:
                return found
            if address[2] != socket.PACKET_OUTGOING:
                found.append(data)
                opened.settimeout(0.5)


def hardware(served: Served) -> tuple[int, bytes, bytes]:
    """On the aggregator's own segment: the neighbour's namespace, its MAC address and the switch's."""
    names = []
    for pid, device in ((served.rack.switch, "agg0"), (served.rack.aggregators[0], "eth0")):
        with in_network_of(pid):
            shown = subprocess.run(["ip", "-j", "link", "show", device], check=True, capture_output=True, text=True)
        names.append(bytes.fromhex(json.loads(shown.stdout)[0]["address"].replace(":", "")))
    return served.rack.switch, names[0], names[1]


def test_non_switchml(served: Served) -> None:
    """NonSwitchML: other traffic between workers passes, while a session is being served."""
    with served.rack.socket(0, 5000) as one, served.rack.socket(1, 5000) as other:
        for sender, receiver, host in ((one, other, "10.9.1.1"), (other, one, "10.9.0.1")):
            sender.sendto(b"012345678901234567890123456789", (host, 5000))
            assert receiver.recv(100) == b"012345678901234567890123456789"
    assert served.plane.counters().rx == 0


@pytest.mark.parametrize(("target", "answers"), [(AGGREGATOR, True), ("10.9.255.77", False)])
def test_arp_request(served: Served, target: str, answers: bool) -> None:
    """ArpRequest and OtherArpRequest."""
    where, own, switch = hardware(served)
    own_ip, target_ip = socket.inet_aton("10.9.255.1"), socket.inet_aton(target)
    request = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + own + own_ip + bytes(6) + target_ip
    frame = b"\xff" * 6 + own + struct.pack("!H", 0x0806) + request
    found = exchange(where, "agg0", frame, 0x0806, answers=answers)
    reply = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2) + switch + target_ip + own + own_ip
    assert [each[:42] for each in found] == ([own + switch + struct.pack("!H", 0x0806) + reply] if answers else [])


@pytest.mark.parametrize(("target", "answers"), [(AGGREGATOR, True), ("10.9.255.77", False)])
def test_ping_request(served: Served, target: str, answers: bool) -> None:
    """PingRequest and OtherPingRequest."""
    where, own, switch = hardware(served)
    request = ICMP(type="echo-request", id=7, seq=9) / b"hello"
    frame = Ether(src=own.hex(":"), dst=switch.hex(":")) / IP(src="10.9.255.1", dst=target) / request
    found = [Ether(each) for each in exchange(where, "agg0", bytes(frame), 0x0800, answers=answers)]
    assert [(each[IP].src, each[ICMP].type, each[ICMP].seq, bytes(each[ICMP].payload)) for each in found] == (
        [(target, 0, 9, b"hello")] if answers else []
    )
