"""One conformance suite for every data plane: real namespaces, real sockets, a real switch between them."""

import json
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from sys import byteorder
from typing import Any

import numpy as np
import pytest

from switch_agg.client import Client
from switch_agg.dataplanes.base import DataPlane
from switch_agg.dataplanes.ebpf import _built
from switch_agg.driver import open_socket
from switch_agg.errors import EpochEndedError, JobError, UnsupportedError
from switch_agg.faults import FaultRates, Faults, ListedFault
from switch_agg.job import Job
from switch_agg.namespaces import in_network_of
from switch_agg.native.libbpf import BpfObject
from switch_agg.payload import PAYLOADS, PayloadName
from switch_agg.quantize import error_bound
from switch_agg.switchml import wire as original_wire
from switch_agg.wire import HEADER, Kind, Packet, decode, frame_bytes
from tests.axes import ROOT
from tests.rack import AGGREGATOR, PORT, Rack, everybody, held_namespace, rack, run

pytestmark = pytest.mark.privileged
PLANES = ["reference", "ebpf"]
UDP_SEGMENT = 103


def awaited(holds: Callable[[], bool]) -> None:
    """Until that is so."""
    deadline_s = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


class Bench:
    """A rack with a data plane, one job, and its workers, joined."""

    def __init__(self, stack: ExitStack, kind: str, num_workers: int, *, mtu: int = 1500, **keys: Any) -> None:
        self.rack: Rack = stack.enter_context(rack(num_workers, mtu=mtu))
        self.job: Job = self.rack.job(**keys)
        self.plane: DataPlane = self.rack.plane(kind, num_elements=self.job.num_elements, payload=self.job.payload)
        stack.callback(self.plane.close)
        self.plane.configure(self.job)
        self.clients: list[Client] = [
            stack.enter_context(self.rack.client(self.job, index)) for index in range(num_workers)
        ]
        self.settle()

    def settle(self) -> None:
        assert everybody(self.clients, lambda _, client: client.join()) == [None] * len(self.clients)

    def reduce(self, num_chunks: int, seed: int = 1) -> None:
        """Random integers through the switch; every sum is checked, and the books."""
        rng = np.random.default_rng(seed)
        limit = 2**30 // len(self.clients)
        values = rng.integers(-limit, limit, (len(self.clients), num_chunks, self.job.num_elements), dtype=np.int32)
        exponents = rng.integers(-128, 128, (len(self.clients), num_chunks)).astype(np.int8)
        found = everybody(self.clients, lambda index, client: client.reduce(values[index], exponents[index]))
        for one in found:
            np.testing.assert_array_equal(one.elements, values.sum(axis=0))
            np.testing.assert_array_equal(one.exponents, exponents.max(axis=0))
            assert not one.saturated.any()
        self.balance()

    def balance(self) -> None:
        """The books; a moment later where a repetition is still on its way."""
        awaited(lambda: self.plane.counters().violations(self.plane.in_flight()) == [])


@contextmanager
def bench(kind: str, num_workers: int = 3, **keys: Any) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stack, kind, num_workers, **keys)


@pytest.mark.parametrize("kind", PLANES)
@pytest.mark.parametrize(("num_workers", "num_elements"), [(2, 64), (3, 256), (8, 256), (32, 64), (2, 2048)])
def test_sums_are_exact_and_bytes_are_what_they_must_be(kind: str, num_workers: int, num_elements: int) -> None:
    mtu = 9000 if num_elements > 256 else 1500
    with bench(kind, num_workers, num_elements=num_elements, num_slots=64, mtu=mtu) as b:
        ends = ((b.rack.workers[0], "eth0"), (b.rack.switch, "p0"))
        for pid, device in ends:  # its counter has the headers of each chunk in a message; an interface's has not
            run(pid, f"tc qdisc add dev {device} root pfifo limit 10000")
        b.reduce(40)
        b.reduce(67, seed=2)  # in messages of several chunks, since the round trip is known
        counters = b.plane.counters()
        repeated = sum(client.counters.sent for client in b.clients) - 107 * num_workers
        assert counters.done == 107
        assert counters.fresh == 107 * num_workers
        assert counters.bad == counters.stale == 0
        if repeated == 0:  # a machine that was busy elsewhere for 5 ms makes workers repeat
            assert [_bytes(*end) for end in ends] == [107 * frame_bytes(num_elements)] * 2
        assert sum(b.plane.stragglers(0).last) == sum(b.plane.stragglers(0).gaps) == 107


@pytest.mark.parametrize("kind", PLANES)
def test_contributions_whose_checksum_is_whole_are_answered(kind: str) -> None:
    """As after a card, or after what cuts messages up on their way (skb_segment). Their sums came back with the
    checksum of what a device was to complete, and every receiver dropped them."""
    with bench(kind, num_slots=64) as b:
        for pid in b.rack.workers:
            run(pid, "ethtool -K eth0 tx off")
        b.reduce(40)
        b.reduce(67, seed=2)
        for pid in b.rack.workers:
            with in_network_of(pid):
                shown = subprocess.run(["nstat", "-asz", "UdpInCsumErrors"], check=True, capture_output=True, text=True)
            assert float(shown.stdout.split()[-2]) == 0


@pytest.mark.parametrize("kind", PLANES)
def test_workers_cut_the_same_chunks_into_different_messages(kind: str) -> None:
    """Answers leave as messages where all of their chunks are complete, and one by one where not."""
    with ExitStack() as stack:
        r = stack.enter_context(rack(3))
        job = r.job(num_slots=128)
        plane = r.plane(kind, num_slots=128)
        stack.callback(plane.close)
        plane.configure(job)
        clients = [stack.enter_context(r.client(job, index, max_segments=1 << 2 * index)) for index in range(3)]
        assert everybody(clients, lambda _, client: client.join()) == [None] * 3
        values = np.random.default_rng(4).integers(-(2**28), 2**28, (3, 999, 256), dtype=np.int32)
        rates = FaultRates(loss=0.01, duplicate=0.01, reorder=0.01)
        for faults in (Faults(), Faults(seed=5, up=rates, down=rates), Faults()):
            plane.inject(faults)
            for _ in range(3):
                for found in everybody(
                    clients, lambda index, client: client.reduce(values[index], np.zeros(999, np.int8))
                ):
                    np.testing.assert_array_equal(found.elements, values.sum(axis=0))
        awaited(lambda: plane.counters().violations(plane.in_flight()) == [])
        assert plane.counters().done == 9 * 999
        assert plane.counters().bad == 0


@pytest.mark.parametrize("kind", PLANES)
def test_of_a_message_some_chunks_may_be_complete(kind: str) -> None:
    with ExitStack() as stack:
        r = stack.enter_context(rack(2))
        job = r.job(num_elements=64)
        plane = r.plane(kind, num_elements=64)
        stack.callback(plane.close)
        plane.configure(job)
        sockets = [stack.enter_context(r.socket(index)) for index in range(2)]
        for worker, opened in enumerate(sockets):
            opened.connect((AGGREGATOR, PORT))
            opened.send(Packet(Kind.JOIN, 0, 0, 100 + worker, slot=worker).encode())
            assert decode(opened.recv(4000)).kind == Kind.JOIN

        def send(worker: int, *chunks: int) -> None:
            elements = np.full(64, 10 + worker, np.int32)
            datagrams = [Packet(Kind.DATA_32, 0, 0, at, slot=at, elements=elements * at).encode() for at in chunks]
            segments = (socket.SOL_UDP, UDP_SEGMENT, len(datagrams[0]).to_bytes(2, byteorder))
            sockets[worker].sendmsg([b"".join(datagrams)], [segments])

        def results(worker: int, count: int) -> list[tuple[int, set[int]]]:
            found = [decode(sockets[worker].recv(4000)) for _ in range(count)]
            return [(each.chunk, set((each.elements // max(1, each.chunk)).tolist())) for each in found]

        send(0, 1, 2, 3, 4)
        send(1, 1)
        assert results(0, 1) == results(1, 1) == [(1, {21})]
        send(1, 1, 2, 3, 4, 5)  # requested again; complete; the first of two
        assert results(1, 4) == [(chunk, {21}) for chunk in (1, 2, 3, 4)]
        assert results(0, 3) == [(chunk, {21}) for chunk in (2, 3, 4)]
        send(0, 5, 2)
        assert results(0, 2) == [(5, {21}), (2, {21})]
        assert results(1, 1) == [(5, {21})]
        counters = plane.counters()
        assert (counters.rx, counters.fresh, counters.done, counters.duplicate_done) == (12, 10, 5, 2)
        assert counters.violations(plane.in_flight()) == []


@pytest.mark.parametrize("kind", PLANES)
@pytest.mark.parametrize("payload", ["fp16", "int8"])
def test_narrow_payloads_are_within_their_bound_and_take_their_share_of_the_bytes(
    kind: str, payload: PayloadName
) -> None:
    """Through faults; all workers have the same bits, whichever codec they use."""
    form = PAYLOADS[payload]
    with bench(kind, 3, payload=payload) as b:
        values = np.random.default_rng(1).normal(size=(3, 40_000)).astype(np.float32)
        exact = values.astype(np.float64).sum(axis=0)
        rates = FaultRates(loss=0.02, duplicate=0.02)
        for faults in (Faults(), Faults(seed=3, up=rates, down=rates)):
            b.plane.inject(faults)
            before = [client.counters.results for client in b.clients]
            sums = everybody(b.clients, lambda index, client: client.all_reduce("gradient", values[index]))
            bound = np.repeat(error_bound(b.clients[0]._quantizer.used, 3, form), b.job.num_values)[:40_000]
            for found in sums:
                np.testing.assert_array_equal(found, sums[0])
                assert (np.abs(found - exact) <= bound + np.abs(exact) * 2.0**-23).all()
            num_chunks = -(-40_000 * form.bits // 8 // 1024)
            rounds = 2 if faults == Faults() else 1  # the first learns the exponents
            taken = [client.counters.results - old for client, old in zip(b.clients, before, strict=True)]
            assert taken == [rounds * num_chunks] * 3
        b.balance()
        assert b.plane.counters().injected > 0, "narrow contributions meet faults, too"


@pytest.mark.parametrize("kind", PLANES)
def test_faults_in_both_directions_change_no_sum(kind: str) -> None:
    rates = FaultRates(loss=0.03, duplicate=0.03, corrupt=0.01, reorder=0.05)
    with bench(kind) as b:
        b.plane.inject(Faults(seed=3, up=rates, down=rates))
        for seed in range(4):
            b.reduce(100, seed)
        counters = b.plane.counters()
        assert counters.injected > 10
        assert counters.duplicate_pending > 0
        assert counters.duplicate_done > 0


@pytest.mark.parametrize("kind", PLANES)
def test_listed_faults_meet_their_datagram(kind: str) -> None:
    with bench(kind, 2) as b:
        lost = [
            ListedFault(direction="up", worker=1, chunk=0),
            ListedFault(direction="up", worker=1, chunk=0, occurrence=2),
            ListedFault(direction="down", worker=0, chunk=3),
        ]
        b.plane.inject(Faults(listed=tuple(lost)))
        b.reduce(6)
        counters = b.plane.counters()
        assert counters.injected == 2
        assert counters.duplicate_done >= 1  # worker 0 requested the result of chunk 3 again
        for chunk in (8, 9):  # a list replaces the one before
            b.plane.inject(Faults(listed=(ListedFault(direction="up", worker=1, chunk=chunk),)))
        b.reduce(6)
        assert b.plane.counters().injected == 3


@pytest.mark.parametrize("kind", PLANES)
def test_a_datagram_is_held_back_until_the_next_of_its_direction_has_passed(kind: str) -> None:
    with bench(kind, 1) as b, b.rack.socket(0, 4001) as sender:
        held = (("up", 0), ("down", 2))
        b.plane.inject(
            Faults(listed=tuple(ListedFault(direction=way, worker=0, chunk=at, fault="reorder") for way, at in held))
        )
        sender.connect((AGGREGATOR, PORT))
        sender.send(Packet(Kind.JOIN, 0, 0, 9).encode())  # another start of the worker, at this port
        assert decode(sender.recv(9999))[:3] == (Kind.JOIN, 0, 1)
        for first in (0, 2):
            for chunk in (first, first + 1):
                elements = np.full(256, chunk, np.int32)
                sender.send(Packet(Kind.DATA_32, 0, 1, chunk, slot=chunk, elements=elements).encode())
            found = [decode(sender.recv(9999)) for _ in range(2)]
            assert [packet.chunk for packet in found] == [first + 1, first]
            for packet in found:
                assert packet.elements is not None
                assert (packet.elements == packet.chunk).all(), "each with its own sum"
        b.balance()
        assert (b.plane.counters().rx, b.plane.counters().fresh) == (4, 4)


@pytest.mark.parametrize("kind", PLANES)
def test_a_job_that_is_removed_with_chunks_under_way_leaves_the_books_in_order(kind: str) -> None:
    with bench(kind, 2) as b:
        for chunk in range(3):
            data = Packet(Kind.DATA_32, 0, 0, chunk, slot=chunk, elements=np.ones(256, np.int32)).encode()
            b.clients[0]._socket.send(data)
        awaited(lambda: b.plane.in_flight() == 3)
        assert (b.plane.in_flight(), b.plane.busy_slots(0)) == (3, 3)
        b.plane.remove(0)
        b.balance()
        assert (b.plane.in_flight(), b.plane.counters().discarded) == (0, 3)
        b.plane.configure(b.job)
        assert b.plane.busy_slots(0) == 0
        b.settle()
        b.reduce(20)
        assert b.plane.counters().discarded == 3, "once"


@pytest.mark.parametrize("kind", PLANES)
def test_every_row_of_the_table_with_packets_made_for_it(kind: str) -> None:
    """The datagrams of one worker, sent one at a time, against a second that a test plays as well."""
    with ExitStack() as stack:
        r = stack.enter_context(rack(2))
        job = r.job(num_elements=64, num_slots=2)
        plane = r.plane(kind, num_elements=64)
        stack.callback(plane.close)
        plane.configure(job)
        sockets = [stack.enter_context(r.socket(index)) for index in range(2)]

        def send(worker: int, packet: Packet | bytes) -> None:
            data = packet if isinstance(packet, bytes) else packet.encode()
            sockets[worker].sendto(data, (AGGREGATOR, PORT))

        def contribution(chunk: int, value: int, **changes: Any) -> Packet:
            slot, version = job.place(chunk)
            elements = np.full(64, value, np.int32)
            return Packet(
                Kind.DATA_32, 0, 0, chunk, slot=slot, version=version, exponent=value, elements=elements
            )._replace(**changes)

        def answer(worker: int) -> Packet:
            return decode(sockets[worker].recv(4000))

        def counted(name: str, number: int) -> None:
            awaited(lambda: getattr(plane.counters(), name) == number)

        send(0, contribution(0, 1))
        assert answer(0).kind == Kind.RESET
        counted("stale", 1)
        for worker in range(2):
            send(worker, Packet(Kind.JOIN, 0, 0, 100 + worker, slot=worker))
            assert answer(worker)[:3] == (Kind.JOIN, 0, 0)
        send(0, contribution(0, 1))
        counted("fresh", 1)
        send(0, contribution(0, 1))
        counted("duplicate_pending", 1)
        send(0, contribution(4, 1))
        counted("held", 1)
        send(1, contribution(0, -5))
        for worker in range(2):
            result = answer(worker)
            assert result.elements is not None
            assert (result.chunk, result.exponent, set(result.elements.tolist())) == (0, 1, {-4})
        send(1, contribution(0, 99))
        again = answer(1)
        assert again.elements is not None
        assert set(again.elements.tolist()) == {-4}
        counted("duplicate_done", 1)
        for chunk in (2, 4):
            for worker in range(2):
                send(worker, contribution(chunk, 7))
            assert [answer(worker).chunk for worker in range(2)] == [chunk, chunk]
        send(1, contribution(0, 99))  # two versions later
        counted("stale", 2)

        send(0, contribution(6, 2**31 - 1, exponent=0))
        send(1, contribution(6, 1))
        assert [answer(worker).kind for worker in range(2)] == [Kind.SATURATED] * 2
        counted("saturated", 1)

        # Hostile: every truncation, every field at its extremes. Counted, dropped, nothing else disturbed.
        whole = contribution(8, 3).encode()
        before = plane.counters()
        for length in (*range(HEADER.size), *range(HEADER.size, len(whole), 9)):
            send(0, whole[:length])
        send(0, whole + b"\0")
        wrong: list[dict[str, Any]] = [{"job": 9}, {"slot": 2}, {"slot": 0x3FFF}, {"version": 1}, {"chunk": 9}]
        for changes in wrong:
            send(0, contribution(8, 3)._replace(**changes))
        send(0, whole[:6] + b"\xc0" + whole[7:])
        send(0, b"\x97" + whole[1:])
        num_bad = len([*range(HEADER.size), *range(HEADER.size, len(whole), 9)]) + 1 + len(wrong) + 2
        counted("bad", before.bad + num_bad)
        assert plane.counters().fresh == before.fresh
        for worker in range(2):
            send(worker, contribution(8, 3))
        assert [answer(worker).chunk for worker in range(2)] == [8, 8]
        assert plane.counters().violations(plane.in_flight()) == []


@pytest.mark.parametrize("kind", PLANES)
def test_an_unknown_sender_adds_nothing_and_other_traffic_is_left_alone(kind: str) -> None:
    with bench(kind, 3) as b:
        b.plane.remove(0)
        job = b.job.model_copy(update={"workers": b.job.workers[:2]})
        b.plane.configure(job)
        with b.rack.socket(2, port=5000) as unknown_sender:
            packet = Packet(Kind.DATA_32, 0, 0, 0, elements=np.ones(256, np.int32))
            unknown_sender.sendto(packet.encode(), (AGGREGATOR, PORT))
            with b.rack.socket(0, port=5000) as worker:
                unknown_sender.sendto(b"hello", ("10.9.0.1", 5000))
                assert worker.recv(100) == b"hello"
            with in_network_of(b.rack.aggregators[0]):
                elsewhere = open_socket((AGGREGATOR, 5000))
            with elsewhere:
                elsewhere.settimeout(10)
                unknown_sender.sendto(b"hello", (AGGREGATOR, 5000))
                assert elsewhere.recv(100) == b"hello"
        awaited(lambda: b.plane.counters().bad_worker > 0)
        assert b.plane.counters().bad_worker == 1


@pytest.mark.parametrize("kind", PLANES)
def test_a_reset_in_mid_run_ends_the_epoch_and_the_job_goes_on(kind: str) -> None:
    with bench(kind, 2) as b:
        b.reduce(20)

        def reset() -> None:
            awaited(lambda: b.plane.in_flight() == 3)
            b.plane.reset(0)

        resetting = threading.Thread(target=reset)
        resetting.start()
        with pytest.raises(EpochEndedError):  # the other contributes nothing: this one waits
            b.clients[0].reduce(np.ones((3, 256), np.int32), np.zeros(3, np.int8))
        resetting.join()
        b.settle()
        assert b.plane.epoch(0) == 1
        assert b.plane.counters().discarded + b.plane.in_flight() == 3
        b.reduce(50, seed=3)


@pytest.mark.parametrize("kind", PLANES)
def test_two_jobs_share_a_switch(kind: str) -> None:
    with ExitStack() as stack:
        r = stack.enter_context(rack(4))
        plane = r.plane(kind, num_slots=32)
        stack.callback(plane.close)
        hosts = r.job().workers
        jobs = [Job(number=n, workers=hosts[2 * n : 2 * n + 2], first_slot=16 * n, num_slots=16) for n in range(2)]
        clients = []
        for number, job in enumerate(jobs):
            plane.configure(job)
            for index in range(2):
                with in_network_of(r.workers[2 * number + index]):
                    client = Client(job, index, (AGGREGATOR, PORT), local=(job.workers[index], 4000))
                clients.append(stack.enter_context(client))
        values = np.random.default_rng(1).normal(size=(4, 10_000)).astype(np.float32)
        everybody(clients, lambda _, client: client.join())
        sums = everybody(clients, lambda index, client: client.all_reduce("gradient", values[index]))
        for number in range(2):
            exact = values[2 * number : 2 * number + 2].astype(np.float64).sum(axis=0)
            bound = np.repeat(error_bound(clients[2 * number]._quantizer.used, 2), 256)[:10_000]
            for found in sums[2 * number : 2 * number + 2]:
                assert (np.abs(found - exact) <= bound + np.abs(exact) * 2.0**-23).all()
        assert plane.counters().violations(plane.in_flight()) == []


@pytest.mark.parametrize("kind", PLANES)
def test_a_tree_adds_everybody_once(kind: str) -> None:
    """Two leaves with two workers each under a root that has a worker of its own, through faults at every level."""
    with ExitStack() as stack:
        r = stack.enter_context(rack(5, num_aggregators=3))
        hosts = r.job().workers
        jobs = [
            Job(workers=("10.9.254.2", "10.9.253.2", hosts[4]), num_slots=16),
            Job(workers=hosts[:2], num_slots=16, parent=AGGREGATOR, parent_index=0),
            Job(workers=hosts[2:4], num_slots=16, parent=AGGREGATOR, parent_index=1),
        ]
        planes = []
        for number, job in enumerate(jobs):
            planes.append(plane := r.plane(kind, number=number))
            stack.callback(plane.close)
            plane.configure(job)
        clients = []
        for rank, (leaf, index) in enumerate([(1, 0), (1, 1), (2, 0), (2, 1), (0, 2)]):
            with in_network_of(r.workers[rank]):
                remote = (f"10.9.{255 - leaf}.2", PORT)
                client = Client(Job(workers=hosts, num_slots=16), index, remote, local=(hosts[rank], 4000))
            clients.append(stack.enter_context(client))
        assert everybody(clients, lambda _, client: client.join()) == [None] * 5
        rng = np.random.default_rng(1)
        for faults in (Faults(), Faults(seed=3, up=FaultRates(loss=0.03, duplicate=0.03), down=FaultRates(loss=0.03))):
            for plane in planes:
                plane.inject(faults)
            values = rng.integers(-(2**28), 2**28, (5, 100, 256), dtype=np.int32)

            def add(index: int, client: Client, values: np.ndarray = values) -> Any:
                return client.reduce(values[index], np.full(100, index, np.int8))

            for one in everybody(clients, add):
                np.testing.assert_array_equal(one.elements, values.sum(axis=0))
                assert set(one.exponents.tolist()) == {4}
        for plane in planes:
            awaited(lambda plane=plane: plane.counters().violations(plane.in_flight()) == [])
        assert [plane.counters().done for plane in planes] == [200, 200, 200]
        assert [plane.counters().from_parent >= 200 for plane in planes] == [False, True, True]
        planes[0].reset(0)  # the root decides for its tree
        found = everybody(clients, lambda _, client: client.reduce(np.ones((3, 256), np.int32), np.zeros(3, np.int8)))
        assert all(isinstance(error, EpochEndedError) for error in found)
        assert [plane.epoch(0) for plane in planes] == [1, 1, 1]


def test_what_the_kernel_cannot_do_is_refused_by_name() -> None:
    with ExitStack() as stack:
        r = stack.enter_context(rack(2))
        plane = r.plane("ebpf")
        stack.callback(plane.close)
        for keys, words in (
            ({"num_elements": 64}, "adds 256 at a time"),
            ({"payload": "int8"}, "payload: the program in the switch adds int32"),
            ({"straggler_timeout_s": 1.0}, "straggler_timeout_s: the data plane ebpf has none"),
            ({"num_slots": 128}, "the switch has 64 slots"),
        ):
            with pytest.raises(JobError, match=words):
                plane.configure(r.job(**keys))
        subprocess.run(
            ["nsenter", "-t", str(r.switch), "-n", "tc", "qdisc", "del", "dev", "agg0", "clsact"], check=True
        )
        with pytest.raises(UnsupportedError, match="gone from agg0"):
            plane.check()


def test_an_interface_has_one_program_and_is_left_as_it_was() -> None:
    with rack(2) as r:

        def tc(*words: str) -> str:
            argv = ["nsenter", "-t", str(r.switch), "-n", "tc", *words[:2], "dev", "agg0", *words[2:]]
            return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

        before = tc("qdisc", "show")
        plane = r.plane("ebpf")
        with pytest.raises(UnsupportedError, match=r"agg0 has such a program already: .* tc filter del dev agg0 egr"):
            r.plane("ebpf")
        plane.close()
        assert tc("qdisc", "show") == before
        tc("qdisc", "add", "clsact")  # somebody's own, for other filters
        theirs = tc("qdisc", "show")
        r.plane("ebpf").close()
        assert tc("qdisc", "show") == theirs


@pytest.mark.parametrize("hook", ["none", "somebody else's"])
def test_an_address_that_cannot_be_had_leaves_the_switch_as_it_was(hook: str) -> None:
    """The program stayed on the switch, and went on taking contributions off the link."""
    with rack(1) as r:
        if hook != "none":
            run(r.switch, "tc qdisc add dev agg0 clsact")
        before = _tc(r.switch, "agg0")
        with undone(
            r.aggregators[0], f"ip address del {AGGREGATOR}/24 dev eth0", f"ip address add {AGGREGATOR}/24 dev eth0"
        ):
            with pytest.raises(OSError, match="Cannot assign requested address"):
                r.plane("ebpf")
            assert _tc(r.switch, "agg0") == before
        r.plane("ebpf").close()
        assert _tc(r.switch, "agg0") == before


def test_a_program_that_cannot_be_attached_leaves_no_hook() -> None:
    with ExitStack() as stack:
        pid = held_namespace(stack)
        program = BpfObject(_built(32, "int32"), max_entries={"versions": 2})
        stack.callback(program.close)
        before = _tc(pid, "lo")
        with in_network_of(pid), pytest.raises(UnsupportedError, match="cannot attach to interface"):
            program.attach("no_such_program", socket.if_nametoindex("lo"))
        assert _tc(pid, "lo") == before


@pytest.mark.parametrize("unknown", ["a worker", "the aggregator above"])
def test_a_job_to_which_the_switch_knows_no_way_is_refused_whole(unknown: str) -> None:
    """It stayed configured in part: the call could not be repeated, and a JOIN ended the service of all jobs."""
    with ExitStack() as stack:
        r = stack.enter_context(rack(4, num_aggregators=2))
        plane = r.plane("ebpf", num_slots=32)
        stack.callback(plane.close)
        hosts, parent = r.job().workers, None if unknown == "a worker" else "10.9.254.2"
        other = Job(workers=hosts[:2], num_slots=16)
        job = Job(number=1, workers=hosts[2:], first_slot=16, num_slots=16, parent=parent)
        plane.configure(other)
        host, port = (hosts[3], "p3") if parent is None else (parent, "agg1")
        mac = _neighbour(r.switch, host, port)
        with undone(
            r.switch,
            f"ip neighbour del {host} dev {port}",
            f"ip neighbour replace {host} lladdr {mac} dev {port} nud permanent",
        ):
            for _ in range(2):
                with pytest.raises(JobError, match=rf"no hardware address of {host} on {port}; ping it first"):
                    plane.configure(job)
                assert plane.jobs == (other,)
        plane.configure(job)
        assert plane.jobs == (other, job)
        for index in (2, 3):
            with r.socket(index) as opened:
                opened.sendto(Packet(Kind.JOIN, 1, 0, 100, slot=index - 2).encode(), (AGGREGATOR, PORT))
        awaited(lambda: plane.counters().control == 2)
        clients = [stack.enter_context(r.client(other, index)) for index in range(2)]
        assert everybody(clients, lambda _, client: client.join()) == [None] * 2
        found = everybody(clients, lambda _, client: client.reduce(np.ones((9, 256), np.int32), np.zeros(9, np.int8)))
        assert [set(each.elements.ravel().tolist()) for each in found] == [{2}, {2}]
        plane.check()


def test_faults_for_which_the_kernel_has_no_room_leave_those_before() -> None:
    """Some of them were listed, and those before were gone."""
    with bench("ebpf", 2) as b:
        b.plane.inject(Faults(listed=(ListedFault(direction="up", worker=1, chunk=0),)))
        many = tuple(ListedFault(direction="up", worker=0, chunk=1000 + at) for at in range(2049))
        with pytest.raises(UnsupportedError, match=r"listed: in the kernel there is room for 4096 .* not for 4098"):
            b.plane.inject(Faults(listed=many))
        b.reduce(6)
        assert b.plane.counters().injected == 1
        b.plane.inject(Faults(listed=many[1:]))  # which is as much as there is room for
        b.reduce(6)
        assert b.plane.counters().injected == 1


def _neighbour(pid: int, host: str, device: str) -> str:
    """The hardware address of a host, as a namespace knows it."""
    with in_network_of(pid):
        argv = ["ip", "-j", "neighbour", "show", host, "dev", device]
        shown = subprocess.run(argv, check=True, capture_output=True, text=True)
    return str(json.loads(shown.stdout)[0]["lladdr"])


def _tc(pid: int, device: str) -> list[str]:
    """Queueing disciplines and filters of a device; where nothing can have a filter, tc says so and fails."""
    argv = ["nsenter", "-t", str(pid), "-n", "tc"]
    words = (("qdisc", "show", "dev", device), ("filter", "show", "dev", device, "egress"))
    return [subprocess.run([*argv, *each], check=False, capture_output=True, text=True).stdout for each in words]


def _bytes(pid: int, device: str) -> int:
    """What a device of a namespace has sent, by its queue."""
    with in_network_of(pid):
        argv = ["tc", "-s", "-j", "qdisc", "show", "dev", device]
        shown = subprocess.run(argv, check=True, capture_output=True, text=True)
    (queue,) = [each for each in json.loads(shown.stdout) if each.get("root")]
    return int(queue["bytes"])


@pytest.mark.parametrize("kind", PLANES)
def test_no_stray_datagram_of_a_worker_s_host_redirects_results_or_ends_an_epoch(kind: str) -> None:
    """From other ports, of every kind, valid or not: the worker goes on getting its results."""
    with bench(kind, 2) as b:
        b.reduce(20)
        epoch, wrong = b.plane.epoch(0), np.full(256, 5, np.int32)
        data = Packet(Kind.DATA_32, 0, epoch, 20, slot=4, version=1, elements=wrong)
        original = original_wire.Packet(3, 0, 20, 1, 4, (0, 0), wrong)  # p4app-switchML's, of the same slot
        control = [Packet(each, 0, epoch, 4711, slot=0) for each in (Kind.PROBE, Kind.RESET, Kind.LEAVE)]
        strays = [
            *(packet.encode() for packet in control),
            *(packet._replace(epoch=(epoch - 1) % 2**32).encode() for packet in control),
            Packet(Kind.JOIN, 0, epoch, 4711, slot=1).encode(),  # as the other worker
            Packet(Kind.JOIN, 9, epoch, 4711, slot=0).encode(),  # in no job
            data.encode(),
            data._replace(epoch=(epoch - 1) % 2**32).encode(),
            data._replace(slot=5).encode(),
            data._replace(job=9).encode(),
            data._replace(kind=Kind.DATA_8).encode(),
            original.encode(),
            data.encode()[:-1],
            b"noise",
        ]
        for seed, port in enumerate((1, 3999, 4001, PORT, 65535)):
            with b.rack.socket(0, port) as stray:
                for each in strays:
                    stray.sendto(each, (AGGREGATOR, PORT))
                assert decode(stray.recv(9999)).kind == Kind.PROBE, "who asks is answered"
                b.reduce(40, seed)
        assert b.plane.epoch(0) == epoch
        assert b.plane.counters().stale >= 2 * 5, "data from a port that has not joined"


@contextmanager
def undone(pid: int, do: str, undo: str) -> Iterator[None]:
    """A command in a namespace, and within this its effect."""
    run(pid, do)
    try:
        yield
    finally:
        run(pid, undo)


@pytest.mark.parametrize("kind", PLANES)
@pytest.mark.parametrize("reason", ["firewall", "no route"])
def test_a_destination_that_cannot_be_sent_to_is_its_own_trouble(
    kind: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two jobs; while nothing can be sent to a worker of the first, the second's sums come, and afterwards all do."""
    what = {
        "firewall": ("iptables -w 10 -{} OUTPUT -d 10.9.0.1 -j DROP", "A", "D"),
        "no route": ("ip route {} unreachable 10.9.0.1", "add", "del"),
    }[reason]
    with ExitStack() as stack:
        r = stack.enter_context(rack(4))
        plane = r.plane(kind, num_slots=32)
        stack.callback(plane.close)
        hosts = r.job().workers
        jobs = [Job(number=n, workers=hosts[2 * n : 2 * n + 2], first_slot=16 * n, num_slots=16) for n in range(2)]
        clients = []
        for index in range(4):
            plane.configure(jobs[index // 2]) if index % 2 == 0 else None
            with in_network_of(r.workers[index]):
                opened = Client(jobs[index // 2], index % 2, (AGGREGATOR, PORT), local=(hosts[index], 4000))
            clients.append(stack.enter_context(opened))
        values = np.arange(4 * 50 * 256, dtype=np.int32).reshape(4, 50, 256)

        def reduced(first: int) -> None:
            def reduce(index: int, client: Client) -> Any:
                return client.reduce(values[first + index], np.zeros(50, np.int8))

            for found in everybody(clients[first : first + 2], reduce):
                np.testing.assert_array_equal(found.elements, values[first] + values[first + 1])

        assert everybody(clients, lambda _, client: client.join()) == [None] * 4
        with undone(r.aggregators[0], what[0].format(what[1]), what[0].format(what[2])):
            with r.socket(0, 4001) as asking:
                for number in range(3):
                    asking.sendto(Packet(Kind.PROBE, 0, 0, number).encode(), (AGGREGATOR, PORT))
                awaited(lambda: plane.unsent().get(hosts[0], 0) >= 3)
            reduced(2)
            plane.check()
        assert dict(plane.unsent()) == {hosts[0]: 3}
        reduced(0)
        why = {"firewall": "Operation not permitted", "no route": "No route to host"}[reason]
        logged = [record.getMessage() for record in caplog.records if record.name == "switch_agg.driver"]
        assert logged == [f"nothing can be sent to {hosts[0]}:4001: {why}; others are served"]


@pytest.mark.parametrize("kind", PLANES)
def test_an_interface_that_was_down_for_a_while_ends_nothing(kind: str) -> None:
    """The aggregator's own: nobody is served meanwhile. A worker's port: the others wait for it, and get their sums."""
    with bench(kind, 2) as b:
        b.reduce(10)
        with in_network_of(b.rack.aggregators[0]):
            routes = subprocess.run(["ip", "route"], check=True, capture_output=True, text=True).stdout
            default = next(line for line in routes.splitlines() if line.startswith("default"))
        run(b.rack.aggregators[0], "ip link set eth0 down")
        b.plane.reset(0)  # its workers are sent a reset, which fails
        awaited(lambda: sum(b.plane.unsent().values()) == 2)
        assert dict(b.plane.unsent()) == dict.fromkeys(b.job.workers, 1)
        b.plane.check()
        run(b.rack.aggregators[0], "ip link set eth0 up", f"ip route replace {default}")
        refresh(b)
        found = everybody(b.clients, lambda _, client: client.reduce(np.ones((3, 256), np.int32), np.zeros(3, np.int8)))
        assert all(isinstance(error, EpochEndedError) for error in found)
        b.settle()
        b.reduce(10, 3)
        timer = threading.Timer(0.3, lambda: run(b.rack.switch, "ip link set p0 up"))
        run(b.rack.switch, "ip link set p0 down")
        timer.start()
        b.reduce(10, 4)
        timer.join()
        b.plane.check()


def refresh(b: Bench) -> None:
    """The neighbours that an interface forgets when it goes down."""
    for pid, device, peer_pid, peer_device, address in (
        (b.rack.aggregators[0], "eth0", b.rack.switch, "agg0", "10.9.255.1"),
    ):
        with in_network_of(peer_pid):
            shown = subprocess.run(
                ["ip", "-br", "link", "show", peer_device], check=True, capture_output=True, text=True
            )
        run(pid, f"ip neighbour replace {address} lladdr {shown.stdout.split()[2]} dev {device} nud permanent")


def test_what_the_kernel_could_not_send_is_counted_and_the_others_have_their_sum() -> None:
    with bench("ebpf", 2) as b:
        data = Packet(Kind.DATA_32, 0, b.plane.epoch(0), 0, elements=np.ones(256, np.int32)).encode()
        b.clients[0]._socket.send(data)
        awaited(lambda: b.plane.in_flight() > 0)
        with undone(b.rack.switch, "ip link set p0 down", "ip link set p0 up"):
            b.clients[1]._socket.send(data)
            assert select.select([b.clients[1]._socket], [], [], 5)[0]
            assert decode(b.clients[1]._socket.recv(9999)).elements is not None
            assert dict(b.plane.unsent()) == {b.job.workers[0]: 1}


SMALL_WAY = """
import numpy as np
from contextlib import ExitStack
from switch_agg.aggregator import Aggregator
from switch_agg.client import Client
from switch_agg.driver import Service, open_socket
from switch_agg.job import Job
from tests.rack import everybody
hosts = ("127.0.0.11", "127.0.0.12")
with ExitStack() as stack:
    aggregator, opened = Aggregator(generation=1), open_socket(("127.0.0.9", 0))
    stack.callback(Service(aggregator, opened, name="aggregator").close)
    job = Job(workers=hosts, num_elements=256, num_slots=1024)
    aggregator.configure(job)
    clients = [
        stack.enter_context(Client(job, index, opened.getsockname(), local=(host, 0), use_native=True, max_segments=16))
        for index, host in enumerate(hosts)
    ]
    everybody(clients, lambda _, client: client.join())
    values = np.arange(2 * 600 * 256, dtype=np.int32).reshape(2, 600, 256)
    for _ in range(2):
        for one in everybody(clients, lambda index, client: client.reduce(values[index], np.zeros(600, np.int8))):
            assert not isinstance(one, Exception), one
            np.testing.assert_array_equal(one.elements, values.sum(axis=0))
"""


def test_a_way_that_does_not_carry_messages_of_several_datagrams_has_them_one_by_one() -> None:
    """A datagram of 1 KiB goes over 600 bytes in fragments; a message of several cannot be cut into them (EMSGSIZE)."""
    script = 'ip link set lo up mtu 600; exec "$0" -c "$1"'
    subprocess.run(
        ["unshare", "--net", "sh", "-ec", script, sys.executable, SMALL_WAY], check=True, timeout=60, cwd=ROOT
    )
