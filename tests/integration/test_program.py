"""The program in the kernel beside the core in Python, datagram by datagram, without a network (BPF_PROG_TEST_RUN)."""

import itertools
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from switch_agg.aggregator import Aggregator
from switch_agg.core import Datagram
from switch_agg.dataplanes.ebpf import ProgramTrial
from switch_agg.epochs import Epochs
from switch_agg.job import Job
from switch_agg.wire import HEADER, Kind, Packet, decode

pytestmark = pytest.mark.privileged
SEEDS = int(os.environ.get("EPOCH_SEEDS", "150"))


class Twins:
    """The same datagrams to both; answers and counters must agree."""

    def __init__(self, trial: ProgramTrial, job: Job) -> None:
        self.trial, self.job = trial, job
        self.core = Aggregator(generation=1, epochs=Epochs(first=0))
        self.core.configure(job)
        for index, host in enumerate(job.workers):
            join = Packet(Kind.JOIN, job.number, 0, index, slot=index)
            self.core.receive([Datagram((host, 4000), join.encode())], 0.0)
        self.core.transmit(0.0)

    def contribution(self, chunk: int, seed: int, limit: int = 2**20) -> bytes:
        slot, version = self.job.place(chunk)
        form = self.job.form
        limit = min(limit, form.limit(self.job.num_workers) + 1)
        integers = np.random.default_rng(seed).integers(-limit, limit, self.job.num_values)
        elements = form.words(integers)
        packet = Packet(
            form.kind, self.job.number, 0, chunk, slot=slot, version=version, exponent=seed % 7, elements=elements
        )
        return packet.encode()

    def send(self, worker: int, data: bytes) -> Packet | None:
        """The result that either answers with, if any."""
        host = self.job.workers[worker]
        self.core.receive([Datagram((host, 4000), data)], 0.0)
        answers = [decode(each.data) for each in self.core.transmit(0.0) if each.peer[0] == host]
        results = [each for each in answers if each.elements is not None]
        _, after, _ = self.trial.send(host, data)
        if not results:
            return None
        np.testing.assert_array_equal(decode(after).elements, results[0].elements)
        assert decode(after)._replace(elements=None) == results[0]._replace(elements=None)
        return results[0]

    def send_message(self, worker: int, chunks: list[bytes]) -> int:
        """The core gets them one by one, the program as one message. How many were answered in one message."""
        host, before = self.job.workers[worker], asdict(self.core.counters)
        self.core.receive([Datagram((host, 4000), data) for data in chunks], 0.0)
        answers = [decode(each.data) for each in self.core.transmit(0.0) if each.peer[0] == host]
        results = [each for each in answers if each.elements is not None]
        each_bytes = len(chunks[0])
        _, after, _ = self.trial.send(host, b"".join(chunks), segment_bytes=each_bytes)
        differences = {name: value - before[name] for name, value in asdict(self.core.counters).items()}
        whole = len(chunks) in {differences["done"], differences["duplicate_done"]}
        if whole:
            assert len(after) == len(chunks) * each_bytes
            found = [decode(after[at : at + each_bytes]) for at in range(0, len(after), each_bytes)]
        elif results:  # one by one, of which the last is what the packet was then
            assert len(after) == each_bytes
            found, results = [decode(after)], results[-1:]
        else:
            found = []
            assert after == b"".join(chunks)
        assert len(found) == len(results)
        for ours, theirs in zip(found, results, strict=True):
            np.testing.assert_array_equal(ours.elements, theirs.elements)
            assert ours._replace(elements=None) == theirs._replace(elements=None)
        self.agree()
        return len(chunks) if whole else 0

    def agree(self) -> None:
        ours, theirs = asdict(self.trial.counters()), asdict(self.core.counters)
        differing = {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}
        differing.pop("control", None)  # those go to the program at the address
        assert differing == {}
        assert self.trial.in_flight() == self.core.in_flight
        assert self.trial.counters().violations(self.trial.in_flight()) == []


@contextmanager
def twins(num_workers: int, num_elements: int, *, num_slots: int = 4, **keys: Any) -> Iterator[Twins]:
    hosts = tuple(f"10.0.{index}.1" for index in range(num_workers))
    job = Job(number=3, workers=hosts, num_elements=num_elements, num_slots=num_slots, **keys)
    trial = ProgramTrial(job)
    try:
        yield Twins(trial, job)
    finally:
        trial.close()


def test_a_contribution_that_another_cpu_timed_before_the_first_one_waited_for_nothing() -> None:
    """Each CPU looks at the clock when its message comes, and gets the lock later: the gap was 2^64 ns less 2 us."""
    with twins(2, 64, num_slots=1) as both:
        both.trial.send(both.job.workers[0], both.contribution(0, 1))
        both.trial.begin_at(0, 2**63 - 1)
        both.trial.send(both.job.workers[1], both.contribution(0, 2))
        assert (both.trial.gaps()[0], sum(both.trial.gaps())) == (1, 1)


@pytest.mark.parametrize(
    ("num_elements", "payload"), [(64, "int32"), (256, "int32"), (256, "fp16"), (64, "int8"), (256, "int8")]
)
@pytest.mark.parametrize("num_workers", [2, 3, 8, 32])
def test_they_agree_whatever_is_lost_doubled_or_late(num_workers: int, num_elements: int, payload: str) -> None:
    rng = random.Random(num_workers * num_elements)
    with twins(num_workers, num_elements, first_slot=5, payload=payload) as both:
        old: list[tuple[int, bytes]] = []
        for chunk in range(14):
            order = list(range(num_workers))
            rng.shuffle(order)
            for worker in order:
                data = both.contribution(chunk, 100 * chunk + worker)
                for _ in range(rng.choice([1, 1, 1, 2, 3])):  # repeated while pending, or when the result was lost
                    both.send(worker, data)
                old.append((worker, data))
            for worker, data in rng.sample(old, min(3, len(old))):  # late duplicates, also from two versions ago
                both.send(worker, data)
        both.agree()
        counters = both.trial.counters()
        assert counters.done == 14
        assert counters.stale > 0
        assert counters.duplicate_done > 0
        assert counters.duplicate_pending > 0


@pytest.mark.parametrize(("payload", "num_workers"), [("int32", 2), ("int32", 5), ("fp16", 3), ("int8", 3)])
def test_a_message_of_several_chunks_is_these_chunks(payload: str, num_workers: int) -> None:
    """Workers cut the same chunks into messages as they like, and repeat what they like."""
    rng = random.Random(num_workers)
    with twins(num_workers, 64, num_slots=16, first_slot=16, payload=payload) as both:
        whole = 0
        for first in range(0, 160, 8):
            messages: list[tuple[int, list[bytes]]] = []
            for worker in range(num_workers):
                own = [both.contribution(chunk, 100 * chunk + worker) for chunk in range(first, first + 8)]
                at = 0
                while at < len(own):
                    count = rng.choice([1, 2, 4, 8])
                    messages.append((worker, own[at : at + count]))
                    at += count
                if first and rng.random() < 0.5:  # of this time and earlier ones, in one message
                    earlier = range(max(0, first - 32), first)
                    late = [both.contribution(chunk, 100 * chunk + worker) for chunk in earlier]
                    messages.append((worker, rng.sample(late + own, rng.randint(1, 12))))
                messages.append((worker, own))
            rng.shuffle(messages)
            whole += sum(both.send_message(*message) for message in messages)
        counters = both.trial.counters()
        assert counters.done == 160
        assert min(counters.stale, counters.duplicate_pending, counters.duplicate_done) > 0
        assert whole > 160


def test_messages_whose_chunks_differ_are_counted_and_change_nothing() -> None:
    with twins(2, 64, num_slots=16) as both:
        own = [both.contribution(chunk, chunk) for chunk in range(4)]
        both.send_message(0, [*own[:2], own[2][:100]])  # the last one is short
        assert both.trial.counters().bad == 1
        other = bytearray(own[3])
        for at, value in ((1, 0x23), (1, 0x31), (0, 0x94), (7, 99), (6, 0x40)):
            changed = bytearray(other)
            changed[at] = value
            both.trial.send(both.job.workers[0], b"".join([*own[:3], changed]), segment_bytes=len(changed))
        counters = both.trial.counters()
        assert (counters.bad, counters.fresh) == (6, 3)
        for each_bytes in (1, 14, 100, 269, 271):  # none is a chunk's
            both.trial.send(both.job.workers[1], b"".join(own), segment_bytes=each_bytes)
        assert both.trial.counters().fresh == 3
        assert both.trial.counters().violations(both.trial.in_flight()) == []
        results = [both.send(1, data) for data in own[:2]]  # of the third the core has had less
        assert all(result is not None for result in results)


def test_a_message_of_an_epoch_that_is_over_goes_to_the_address_whole() -> None:
    with twins(2, 64, num_slots=16) as both:
        data = b"".join(both.contribution(chunk, 1) for chunk in range(4))
        both.trial.begin_epoch(1, both.job.everybody)
        assert both.trial.send(both.job.workers[0], data, segment_bytes=len(data) // 4)[:2] == (False, data)
        assert (both.trial.counters().rx, both.trial.counters().stale) == (4, 4)


def test_chunk_numbers_and_pools_wrap() -> None:
    with twins(2, 64) as both:
        first = 2**32 - 6
        for chunk in range(first, first + 12):
            for worker in range(2):
                result = both.send(worker, both.contribution(chunk & 0xFFFFFFFF, chunk + worker))
            assert result is not None
            assert result.chunk == chunk & 0xFFFFFFFF
        both.agree()


def test_what_leaves_32_bits_is_flagged() -> None:
    with twins(3, 64) as both:
        elements = np.full(64, 2**31 - 1, np.int32)
        for worker in range(3):
            result = both.send(worker, Packet(Kind.DATA_32, 3, 0, 0, elements=elements).encode())
        assert result is not None
        assert result.kind == Kind.SATURATED
        both.agree()


def test_a_chunk_that_comes_too_early_is_held() -> None:
    with twins(2, 64) as both:
        both.send(0, both.contribution(0, 1))
        both.send(0, both.contribution(8, 1))
        both.agree()
        assert both.trial.counters().held == 1


def test_hostile_datagrams_are_counted_and_change_nothing() -> None:
    with twins(2, 64) as both:
        both.send(0, both.contribution(0, 1))
        whole = both.contribution(0, 2)
        for length in (*range(HEADER.size), *range(HEADER.size, len(whole), 9)):
            both.send(1, whole[:length])
        both.send(1, whole + b"\0")
        rng = random.Random(1)
        for at in range(HEADER.size):
            for value in (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF):
                changed = bytearray(whole)
                changed[at] = value
                kept_kind = changed[0] >> 4 in {Kind.DATA_32, Kind.SATURATED}
                if bytes(changed) != whole and kept_kind and at not in {8, 9} and not (at == 1 and value >> 4 == 3):
                    both.send(1, bytes(changed))
        for _ in range(200):
            noise = bytearray(rng.randbytes(rng.choice([0, 5, 9, 10, 11, 200, 266])))
            if noise:
                noise[0] = Kind.DATA_32 << 4 | noise[0] & 0x0F
            both.send(1, bytes(noise))
        assert both.trial.counters().fresh == 1
        assert sum(asdict(both.trial.counters())[name] for name in ("fresh", "done")) == 1
        result = both.send(1, whole)
        assert result is not None
        assert both.trial.counters().violations(both.trial.in_flight()) == []
        assert both.trial.counters().done == 1


def test_integers_of_another_width_are_no_chunk_of_the_job() -> None:
    with twins(2, 64, payload="fp16") as both:
        slot, version = both.job.place(0)
        for kind in (Kind.DATA_32, Kind.SATURATED, Kind.DATA_8):
            packet = Packet(kind, 3, 0, 0, slot=slot, version=version, elements=np.ones(64, np.int32))
            both.send(0, packet.encode())
        both.agree()
        assert both.trial.counters().bad_size == 3


def test_an_unknown_sender_and_other_traffic_are_distinguished() -> None:
    with twins(2, 64) as both:
        kept, _, _ = both.trial.send("10.9.9.9", both.contribution(0, 1))
        assert kept
        assert both.trial.counters().bad_worker == 1
        passed = [Packet(Kind.JOIN, 3, 0, 0), Packet(Kind.PROBE, 3, 0, 0), Packet(Kind.LEAVE, 3, 0, 0)]
        assert [both.trial.send("10.0.0.1", packet.encode())[0] for packet in passed] == [False] * 3
        assert both.trial.counters().rx == 1


def wrong_sums(trial: ProgramTrial, job: Job, seed: int, *, epochs_repeat: bool = False) -> int:
    """Of a history of some epochs, each with late datagrams of those before and stray ones from other ports between its
    own: how many sums were not those of the epoch's contributions."""
    rng = random.Random(seed)
    old: list[tuple[str, bytes]] = []
    wrong, first = 0, rng.getrandbits(32)
    for number in range(4):
        epoch = 0 if epochs_repeat else first + number * rng.choice([1, 16])
        trial.begin_epoch(epoch % 2**32, job.everybody)
        sent: list[tuple[str, bytes]] = []
        for chunk in range(rng.randint(1, 6)):
            slot, version = job.place(chunk)
            values = [rng.randrange(-(2**24), 2**24) for _ in job.workers]
            for host, value in zip(job.workers, values, strict=True):
                elements = np.full(job.num_elements, value, np.int32)
                whole = Packet(
                    Kind.DATA_32, job.number, epoch % 2**32, chunk, slot=slot, version=version, elements=elements
                )
                data = whole.encode()
                for late_host, late in rng.sample(old, min(len(old), rng.randrange(3))):
                    trial.send(late_host, late)
                if rng.random() < 0.3:
                    stray = whole._replace(elements=elements + 1).encode()
                    trial.send(rng.choice(job.workers), stray, port=rng.choice([0, 1, 3999, 4001, 65535]))
                _, after, _ = trial.send(host, data)
                sent.append((host, data))
            found = decode(after)
            assert found.elements is not None
            wrong += bool((found.elements != sum(values)).any())
        old += sent
    return wrong


def test_what_comes_late_or_from_elsewhere_is_in_no_sum() -> None:
    with twins(3, 64, first_slot=5) as both:
        assert [seed for seed in range(SEEDS) if wrong_sums(both.trial, both.job, seed)] == []
        assert both.trial.counters().stale > 4 * SEEDS
        assert both.trial.counters().violations(both.trial.in_flight()) == []
        assert any(wrong_sums(both.trial, both.job, seed, epochs_repeat=True) for seed in range(40))


def test_sums_do_not_depend_on_the_order_and_no_overflow_is_silent() -> None:
    """The largest number, one more and one less, in every order: exact. What leaves 32 bits is clipped and flagged."""
    most, least = 2**31 - 1, -(2**31)
    orders = []
    for values, expected, kind in (
        ((most, 1, -1), most, Kind.DATA_32),
        ((least, -1, 1), least, Kind.DATA_32),
        ((most, most, least), most - 1, Kind.DATA_32),
        ((most, 1, 0), most, Kind.SATURATED),
        ((most, most, -1), most, Kind.SATURATED),
        ((least, least, most), least, Kind.SATURATED),
    ):
        orders += [(order, expected, kind) for order in itertools.permutations(values)]
    with twins(3, 64) as both:
        for chunk, (order, expected, kind) in enumerate(orders):
            slot, version = both.job.place(chunk)
            for worker in (0, 1, 2, 0):  # the first asks for the sum again
                elements = np.full(64, order[worker], np.int32)
                packet = Packet(Kind.DATA_32, 3, 0, chunk, slot=slot, version=version, elements=elements)
                result = both.send(worker, packet.encode())
            assert result is not None
            assert result.elements is not None
            assert (result.kind, set(result.elements.tolist())) == (kind, {expected})
        both.agree()
