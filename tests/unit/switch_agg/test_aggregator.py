"""Every transition of the aggregator, one datagram at a time; the simulation puts them together."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switch_agg.aggregator import TRANSITIONS, Aggregator
from switch_agg.core import Datagram
from switch_agg.epochs import Epochs
from switch_agg.errors import JobError
from switch_agg.job import Job
from switch_agg.wire import HEADER, Kind, Packet, decode

NUM_ELEMENTS = 64
ROOT = Path(__file__).resolve().parents[3]


class Bench:
    """An aggregator with two slots, and workers that send what a test says."""

    def __init__(self, num_workers: int = 2, *, join: bool = True, **keys: Any) -> None:
        self.job = Job(
            workers=tuple(f"w{index}" for index in range(num_workers)),
            **{"num_elements": NUM_ELEMENTS, "num_slots": 2, **keys},
        )
        self.aggregator = Aggregator(generation=77, epochs=Epochs(first=0))
        self.aggregator.configure(self.job)
        self.counters = self.aggregator.counters
        if join:
            for worker in range(num_workers):
                self.send(worker, Packet(Kind.JOIN, self.job.number, 0, 100 + worker, slot=worker))

    def send(self, worker: int, packet: Packet | bytes, now_s: float = 0.0) -> list[tuple[str, Packet]]:
        data = packet if isinstance(packet, bytes) else packet.encode()
        self.aggregator.receive([Datagram((f"w{worker}", 4000 + worker), data)], now_s)
        return self.sent(now_s)

    def sent(self, now_s: float = 0.0) -> list[tuple[str, Packet]]:
        return [(each.peer[0], decode(each.data)) for each in self.aggregator.transmit(now_s)]

    def contribution(self, chunk: int, value: int = 1, /, *, epoch: int = 0, **changes: Any) -> Packet:
        slot, version = self.job.place(chunk)
        packet = Packet(
            self.job.kind,
            self.job.number,
            epoch,
            chunk,
            slot=slot,
            version=version,
            exponent=3,
            elements=np.full(self.job.num_elements, value, np.int32),
        )
        return packet._replace(**changes)

    def contribute(self, worker: int, chunk: int, value: int = 1, /, **changes: Any) -> list[tuple[str, Packet]]:
        return self.send(worker, self.contribution(chunk, value, **changes))


def test_the_last_contribution_sends_the_sum_to_everybody() -> None:
    bench = Bench(3)
    assert bench.contribute(0, 0, 5, exponent=-7) == []
    assert bench.contribute(1, 0, -9, exponent=4) == []
    assert bench.aggregator.in_flight == 2
    results = bench.contribute(2, 0, 2)
    assert [host for host, _ in results] == ["w0", "w1", "w2"]
    for _, packet in results:
        assert packet.kind == Kind.DATA_32
        assert packet.exponent == 4
        assert (packet.slot, packet.version, packet.chunk, packet.partial) == (0, 0, 0, False)
        assert packet.elements is not None
        assert set(packet.elements.tolist()) == {-2}
    assert bench.counters.done == 1
    assert bench.counters.violations(bench.aggregator.in_flight) == []


def test_every_row_of_the_table() -> None:
    """One datagram for each row of TRANSITIONS, in its order, and which counter counted it."""
    counted = []

    def count(bench: Bench, worker: int, chunk: int, **changes: Any) -> list[tuple[str, Packet]]:
        before = asdict(bench.counters)
        answers = bench.contribute(worker, chunk, **changes)
        after = asdict(bench.counters)
        [counter] = {name for _, name, _ in TRANSITIONS if after[name] > before[name]}
        counted.append(counter)
        return answers

    bench, early = Bench(2), Bench(2)
    assert [packet.kind for _, packet in count(bench, 0, 0, epoch=1)] == [Kind.RESET]
    for chunk in (0, 2, 4):
        for worker in range(2):
            bench.contribute(worker, chunk)
    assert count(bench, 0, 0) == []
    early.contribute(0, 0)
    early.contribute(0, 2)
    assert count(early, 0, 4) == []  # nobody knows whether w1 has the result of chunk 0
    assert count(bench, 0, 6) == []
    assert [host for host, _ in count(bench, 1, 6)] == ["w0", "w1"]
    late = Bench(2, straggler_timeout_s=0.5)
    late.send(0, late.contribution(0), now_s=1.0)
    assert late.aggregator.deadline_s() == 1.5
    late.aggregator.expire(1.5)
    assert [packet.partial for _, packet in late.sent()] == [True, True]
    assert [host for host, _ in count(late, 1, 0)] == ["w1"]
    bench.contribute(0, 8)
    assert count(bench, 0, 8) == []
    bench.contribute(1, 8)
    assert [host for host, _ in count(bench, 0, 8)] == ["w0"]
    assert counted == [name for _, name, _ in TRANSITIONS]
    for each in (bench, late):
        assert each.counters.violations(each.aggregator.in_flight) == []


def test_the_document_shows_the_same_table() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text()
    for meets, counter, done in TRANSITIONS:
        assert f"| {meets} | `{counter}` | {done} |" in text


def test_a_worker_that_has_not_joined_is_given_the_epoch() -> None:
    bench = Bench(2, join=False)
    bench.aggregator.reset(0)
    [(host, packet)] = bench.contribute(1, 0)
    assert (host, packet.kind, packet.epoch, packet.slot) == ("w1", Kind.RESET, 1, 77)
    assert bench.counters.stale == 1


def test_joining_twice_is_one_joining_and_joining_anew_is_another_epoch() -> None:
    bench = Bench(2)
    [(_, packet)] = bench.send(0, Packet(Kind.JOIN, 0, 0, 100, slot=0))
    assert (packet.kind, packet.epoch) == (Kind.JOIN, 0)
    bench.contribute(1, 0)
    answers = bench.send(0, Packet(Kind.JOIN, 0, 0, 999, slot=0))
    assert [(host, packet.kind, packet.epoch) for host, packet in answers] == [
        ("w0", Kind.RESET, 1),
        ("w1", Kind.RESET, 1),
        ("w0", Kind.JOIN, 1),
    ]
    assert bench.counters.discarded == 1
    assert bench.send(0, Packet(Kind.JOIN, 0, 0, 5, slot=1)) == []  # w0 is not worker 1


def test_in_a_tree_workers_join_once_the_aggregator_above_knows_theirs() -> None:
    bench = Bench(join=False, parent="root", parent_index=5)

    def joined(worker: int) -> list[tuple[str, Kind, int]]:
        answers = bench.send(worker, Packet(Kind.JOIN, 0, bench.aggregator.membership(0)[0], 100 + worker, slot=worker))
        return [(host, packet.kind, packet.slot) for host, packet in answers]

    def from_root(kind: Kind, epoch: int, chunk: int) -> list[tuple[str, Kind, int]]:
        packet = Packet(kind, 0, epoch, chunk, slot=9)
        bench.aggregator.receive([Datagram(("root", 0xBEE0), packet.encode())], 0.0)
        return [(host, packet.kind, packet.epoch) for host, packet in bench.sent()]

    for worker in (0, 1, 1):  # what was lost on its way up is repeated whenever a worker repeats its own
        assert joined(worker) == [("root", Kind.JOIN, 5)]
    assert from_root(Kind.JOIN, 12, 4711) == [("w0", Kind.RESET, 12), ("w1", Kind.RESET, 12)]  # not to this JOIN
    assert joined(0) == [("root", Kind.JOIN, 5)]
    assert from_root(Kind.JOIN, 12, 77) == [("w0", Kind.JOIN, 12)]
    assert from_root(Kind.JOIN, 12, 77) == []
    assert joined(1) == [("w1", Kind.JOIN, 77)]
    assert from_root(Kind.RESET, 13, 0) == [("w0", Kind.RESET, 13), ("w1", Kind.RESET, 13), ("root", Kind.JOIN, 13)]
    assert joined(0) == [("root", Kind.JOIN, 5)]


def test_below_the_root_a_reset_is_the_root_s_to_do() -> None:
    """An epoch of its own would never be the root's, and its workers would wait for ever."""
    bench = Bench(join=False, parent="root", parent_index=5)
    before = bench.aggregator.membership(0)[0]
    assert bench.aggregator.reset(0) == before
    assert [(host, packet.kind, packet.epoch) for host, packet in bench.sent()] == [("root", Kind.RESET, before)]


def test_only_what_joined_is_a_worker_and_only_it_ends_an_epoch() -> None:
    bench = Bench(2)
    stray = [
        Packet(Kind.RESET, 0, 0, 0),
        Packet(Kind.LEAVE, 0, 0, 0),
        Packet(Kind.PROBE, 0, 0, 0),
        Packet(Kind.JOIN, 0, 0, 100, slot=1),
        bench.contribution(0, 9),
    ]
    for packet in stray:
        bench.aggregator.receive([Datagram(("w0", 9), packet.encode())], 0.0)
    answered = [(each.peer, decode(each.data).kind) for each in bench.aggregator.transmit(0.0)]
    assert answered == [(("w0", 9), kind) for kind in (Kind.RESET, Kind.LEAVE, Kind.PROBE, Kind.RESET)]
    assert bench.aggregator.membership(0) == (0, 0b11, {0: 4000, 1: 4001})
    assert (bench.counters.stale, bench.counters.fresh) == (1, 0)


def test_the_last_to_leave_ends_the_epoch() -> None:
    bench = Bench(2)
    assert [packet.epoch for _, packet in bench.send(0, Packet(Kind.LEAVE, 0, 0, 100, slot=0))] == [0]
    bench.send(1, Packet(Kind.LEAVE, 0, 0, 101, slot=1))
    [(_, again)] = bench.send(1, Packet(Kind.LEAVE, 0, 0, 101, slot=1))  # its answer was lost
    assert again.kind == Kind.LEAVE
    assert again.epoch == 1


def test_a_reset_is_done_once_and_a_probe_is_answered() -> None:
    bench = Bench(2)
    for _ in range(2):
        answers = bench.send(0, Packet(Kind.RESET, 0, 0, 0, slot=0))
        assert answers[-1][1].epoch == 1
    [(host, packet)] = bench.send(1, Packet(Kind.PROBE, 0, 0, 31337))
    assert (host, packet.kind, packet.chunk) == ("w1", Kind.PROBE, 31337)


def test_sums_beyond_32_bits_are_clipped_and_flagged() -> None:
    bench = Bench(2)
    bench.contribute(0, 0, 2**31 - 1)
    results = bench.contribute(1, 0, 1)
    assert {packet.kind for _, packet in results} == {Kind.SATURATED}
    assert results[0][1].elements.max() == 2**31 - 1
    bench.contribute(0, 1, -(2**31))
    [(_, packet), _] = bench.contribute(1, 1, 2**31 - 1)
    assert packet.kind == Kind.DATA_32
    assert bench.counters.saturated == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"job": 9}, "bad_job"),
        ({"slot": 2}, "bad_slot"),
        ({"version": 1}, "bad_slot"),
        ({"chunk": 1}, "bad_slot"),
        ({"elements": np.zeros(256, np.int32)}, "bad_size"),
    ],
)
def test_what_no_job_can_use_is_counted_and_dropped(changes: dict[str, Any], reason: str) -> None:
    bench = Bench(2)
    assert bench.contribute(0, 0, **changes) == []
    assert getattr(bench.counters, reason) == bench.counters.bad == bench.counters.rx == 1


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=400), st.integers(0, 400)), max_size=20))
def test_hostile_bytes_disturb_nothing(datagrams: list[tuple[int, bytes, int]]) -> None:
    bench = Bench(2)
    bench.contribute(0, 0, 20)
    whole = bench.contribution(0, 1).encode()
    for worker, noise, cut in datagrams:
        # Pure noise, and a real contribution of somebody else's job, cut or overwritten at its end.
        bench.send(worker + 2, noise)
        bench.send(0, noise[: HEADER.size] + whole[HEADER.size : cut - len(whole)])
    assert bench.counters.violations(bench.aggregator.in_flight) == []


def test_jobs_share_an_aggregator_and_no_slot() -> None:
    aggregator = Aggregator(generation=1)
    aggregator.configure(Job(number=0, workers=("a", "b"), first_slot=0, num_slots=4))
    with pytest.raises(JobError, match="being served"):
        aggregator.configure(Job(number=0, workers=("c",), first_slot=8, num_slots=4))
    with pytest.raises(JobError, match="slots 2 to 3 of job 1 are job 0's"):
        aggregator.configure(Job(number=1, workers=("c",), first_slot=2, num_slots=2))
    aggregator.configure(Job(number=1, workers=("c",), first_slot=4, num_slots=4))
    assert [job.number for job in aggregator.jobs] == [0, 1]
    aggregator.remove(0)
    aggregator.configure(Job(number=2, workers=("c",), first_slot=0, num_slots=4))
    with pytest.raises(JobError, match="job 0 is not being served; there are: 1, 2"):
        aggregator.reset(0)
