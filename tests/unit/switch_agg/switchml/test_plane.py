"""The data plane on loopback: sixteen ports, and clients that are played through their whole sessions."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from errno import EADDRINUSE
from typing import Any

import numpy as np
import pytest

from switch_agg.core import Datagram
from switch_agg.driver import open_socket
from switch_agg.errors import JobError
from switch_agg.faults import FaultRates, Faults, ListedFault
from switch_agg.job import Job
from switch_agg.status import status_of
from switch_agg.switchml.plane import SwitchMLDataPlane
from switch_agg.switchml.program import Membership
from switch_agg.switchml.service import sessions_served
from switch_agg.wire import PORTS
from tests.loopback import free_port, own_address
from tests.switchml_client import Config, exact_sum, float_bound, play


@pytest.fixture
def plane() -> Iterator[SwitchMLDataPlane]:
    found = SwitchMLDataPlane(own_address(10))
    yield found
    found.close()


def everybody(num_workers: int, do: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(num_workers) as pool:
        return list(pool.map(do, range(num_workers)))


@pytest.mark.parametrize("packet_numel", [64, 256])
@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05])
def test_two_sessions_in_a_row_of_the_whole_client(loss: float, packet_numel: int, plane: SwitchMLDataPlane) -> None:
    """gRPC and UDP as the original has them, two threads each, integers and floats, through losses each way."""
    rates = FaultRates(loss=loss, duplicate=loss)
    plane.inject(Faults(seed=4, up=rates, down=rates))
    address = ("127.0.0.1", free_port())
    rng = np.random.default_rng(1)
    with sessions_served(plane, address, mac=0, report=lambda _: None):
        for num_workers in (2, 3):
            integers = [rng.integers(-(2**28), 2**28, 9000, dtype=np.int32) for _ in range(num_workers)]
            floats = [rng.normal(size=9000).astype(np.float32) for _ in range(num_workers)]

            def client(
                rank: int,
                num_workers: int = num_workers,
                integers: list[np.ndarray] = integers,
                floats: list[np.ndarray] = floats,
            ) -> list[np.ndarray]:
                own = Config(
                    rank=rank,
                    num_workers=num_workers,
                    packet_numel=packet_numel,
                    num_worker_threads=2,
                    max_outstanding_packets=16,
                )
                return play(address, own_address(11 + rank), own, [integers[rank], floats[rank], integers[rank]])

            bound = float_bound(floats, packet_numel, 2)
            exact = np.sum(np.stack(floats).astype(np.float64), axis=0)
            for one, two, three in everybody(num_workers, client):
                np.testing.assert_array_equal(one, exact_sum(integers))
                np.testing.assert_array_equal(three, exact_sum(integers))
                assert (np.abs(two - exact) <= bound).all()
    counters = plane.counters()
    assert (counters.mixed, counters.bad, plane.epoch(0)) == (0, 0, 2)
    assert (counters.injected > 0) == (loss > 0)
    status = status_of(plane, name="switchml", address=(plane.host, PORTS[0]), since_s=0.0)
    assert status.violations == ()
    assert sum(status.jobs[0].stragglers.last) == sum(status.jobs[0].stragglers.gaps)


def test_all_ports_are_served_or_none() -> None:
    host, before = own_address(20), set(threading.enumerate())
    with open_socket((host, PORTS[7])):
        with pytest.raises(OSError, match="in use") as caught:
            SwitchMLDataPlane(host)
        assert (caught.value.errno, caught.value.filename) == (EADDRINUSE, str(PORTS[7]))
    plane = SwitchMLDataPlane(host)  # the others were given back
    plane.admit(Membership(1, 0, 1, 64, own_address(21)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as worker:
        worker.bind((own_address(21), 0))
        worker.settimeout(5)
        for port in PORTS:
            slot = (port & 0xF).to_bytes(2, "big")
            worker.sendto(b"\x11\x00" + bytes(4) + slot + bytes(2 + 256), (host, port))
            data, peer = worker.recvfrom(4096)
            assert (peer, data[6:8]) == ((host, port), slot)
    plane.close()
    assert set(threading.enumerate()) <= before


def test_jobs_of_this_package_are_refused_and_a_session_can_be_ended(plane: SwitchMLDataPlane) -> None:
    hosts = ("10.0.0.1", "10.0.0.2")
    with pytest.raises(JobError, match="job 0 needs another, without --compatible, at another address"):
        plane.configure(Job(workers=hosts))
    for call in (lambda: plane.remove(0), lambda: plane.busy_slots(0), lambda: plane.epoch(0)):
        with pytest.raises(JobError, match="job 0 is not being served"):
            call()
    for rank, host in enumerate(hosts):
        plane.admit(Membership(3, rank, 2, 64, host))
    assert ([job.workers for job in plane.jobs], plane.session, plane.epoch(0)) == ([hosts], 3, 1)
    with pytest.raises(JobError, match="`switch-agg remove 0` ends their session"):
        plane.reset(0)
    plane.remove(0)
    assert (plane.jobs, plane.session) == ((), None)


def test_a_listed_fault_meets_the_packet_of_that_id(plane: SwitchMLDataPlane) -> None:
    plane.inject(Faults(listed=(ListedFault(direction="down", worker=0, chunk=3),)))
    plane.admit(Membership(1, 0, 1, 64, own_address(21)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as worker:
        worker.bind((own_address(21), 0))
        worker.settimeout(5)
        for number in (2, 3, 4):
            tsi = number.to_bytes(4, "little")
            worker.sendto(b"\x11\x00" + tsi + number.to_bytes(2, "big") + bytes(2 + 256), (plane.host, PORTS[0]))
        assert [worker.recv(4096)[2] for _ in range(2)] == [2, 4]


def test_a_worker_that_nothing_can_be_sent_to_stops_nobody(
    plane: SwitchMLDataPlane, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere, host = "255.255.255.255", own_address(21)  # EACCES without SO_BROADCAST
    for rank, each in enumerate((nowhere, host)):
        plane.admit(Membership(1, rank, 2, 64, each))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as worker:
        worker.bind((host, 0))
        worker.settimeout(5)
        for slot in range(3):
            data = b"\x11\x00" + bytes(4) + slot.to_bytes(2, "big") + bytes(2 + 256)
            plane.receive_at(PORTS[0], [Datagram((nowhere, 4000), data)], 0.0)
            worker.sendto(data, (plane.host, PORTS[0]))
            assert worker.recv(4096) == data
    plane.check()
    assert plane.unsent() == {nowhere: 3}
    assert [record.getMessage() for record in caplog.records if record.name == "switch_agg.switchml.plane"] == [
        "nothing can be sent to 255.255.255.255:4000: Permission denied; others are served"
    ]


def test_what_a_fault_held_back_does_not_come_in_the_next_session(plane: SwitchMLDataPlane) -> None:
    """It would look like a sum of that one: packets and jobs are counted from 0 again."""
    host = own_address(21)
    plane.inject(Faults(listed=(ListedFault(direction="down", worker=0, chunk=0, fault="reorder"),)))
    plane.admit(Membership(1, 0, 1, 64, host))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as worker:
        worker.bind((host, 0))
        worker.settimeout(5)
        for session in (1, 2):
            plane.admit(Membership(session, 0, 1, 64, host))
            for number in range(session):
                data = b"\x11\x00" + bytes([number, 0, 0, 0]) + bytes(2 + 2) + bytes(255) + bytes([session])
                worker.sendto(data, (plane.host, PORTS[0]))
                deadline_s = time.monotonic() + 5
                while plane.counters().rx < session * (session - 1) // 2 + number + 1:
                    assert time.monotonic() < deadline_s
        found = [worker.recv(4096) for _ in range(2)]
    assert [(data[2], data[-1]) for data in found] == [(0, 2), (1, 2)]


def test_noise_ends_nothing(plane: SwitchMLDataPlane) -> None:
    plane.admit(Membership(1, 0, 1, 64, own_address(21)))
    rng = np.random.default_rng(2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as worker:
        worker.bind((own_address(21), 0))
        worker.settimeout(5)
        for length in [*range(64), *range(64, 1500, 37), 9000, 40_000]:
            worker.sendto(b"\x02" + rng.bytes(length), (plane.host, int(rng.choice(PORTS))))
        worker.sendto(b"\x11\x00" + bytes(4 + 2 + 2 + 256), (plane.host, PORTS[0]))
        worker.recv(4096)
    plane.check()
    assert plane.counters().fresh == 1
