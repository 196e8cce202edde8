"""A worker against a scripted aggregator; the simulation plays them against each other."""

import itertools
from typing import Any

import numpy as np
import pytest

from switch_agg.core import Datagram
from switch_agg.errors import AggregatorLostError, EpochEndedError
from switch_agg.job import Job
from switch_agg.slot_latency import bucket
from switch_agg.window import AimdWindow, FixedWindow
from switch_agg.wire import Kind, Packet, decode
from switch_agg.worker import Worker, images

SWITCH = ("switch", 0xBEE0)
JOB = Job(workers=("a", "b"), num_elements=32, num_slots=8)


def joined(**keys: object) -> Worker:
    worker = Worker(JOB, 0, SWITCH, incarnation=42, **keys)  # type: ignore[arg-type]
    worker.join()
    [join] = worker.transmit(0.0)
    assert decode(join.data) == Packet(Kind.JOIN, 0, 0, 42, slot=0, contributions=1)
    worker.receive([Datagram(SWITCH, Packet(Kind.JOIN, 0, 3, 42, slot=9, contributions=1).encode())], 0.0)
    assert worker.joined
    assert worker.epoch == 3
    return worker


def reducing(num_chunks: int, **keys: object) -> Worker:
    worker = joined(**keys)
    worker.reduce(np.arange(num_chunks * 32, dtype=np.int32).reshape(num_chunks, 32), np.zeros(num_chunks, np.int8))
    return worker


def sent(worker: Worker, now_s: float) -> list[int]:
    return [decode(datagram.data).chunk for datagram in worker.transmit(now_s)]


def answer(worker: Worker, chunk: int, now_s: float, *, marked: bool = False, **changes: Any) -> None:
    slot, version = JOB.place(chunk)
    packet = Packet(Kind.DATA_32, 0, 3, chunk, slot=slot, version=version, elements=np.full(32, chunk, np.int32))
    worker.receive([Datagram(SWITCH, packet._replace(**changes).encode(), marked)], now_s)


def test_a_slots_use_lasts_from_its_chunks_first_sending() -> None:
    worker = reducing(2)
    sent(worker, 0.0)
    answer(worker, 0, 0.01)
    worker.expire(5.0)
    assert sent(worker, 5.0) == [1], "repeated"
    answer(worker, 1, 5.01)
    answer(worker, 1, 5.02)
    counted = {number: count for number, count in enumerate(worker.slot_latencies) if count}
    assert counted == {bucket(0.01): 1, bucket(5.01): 1}


def test_results_clock_new_chunks_out() -> None:
    worker = reducing(20)
    assert sent(worker, 0.0) == list(range(8))
    assert sent(worker, 0.0) == []
    answer(worker, 0, 0.01)
    assert sent(worker, 0.01) == [8]
    answer(worker, 2, 0.01)
    assert sent(worker, 0.01) == [10]  # chunk 9 has the slot of chunk 1, whose result is not here
    answer(worker, 10, 0.011)
    assert sent(worker, 0.011) == [18]
    for chunk in (4, 1):
        answer(worker, chunk, 0.011)
    assert sent(worker, 0.011) == [9, 12]  # the oldest first


def test_a_chunk_that_later_ones_overtook_is_repeated_once() -> None:
    worker = reducing(8)
    sent(worker, 0.0)
    for chunk in (1, 2, 3):
        answer(worker, chunk, 0.01)
    assert sent(worker, 0.01) == []  # results may come slightly out of order
    answer(worker, 4, 0.013)
    assert sent(worker, 0.013) == [0]
    for chunk in (5, 6, 7):
        answer(worker, chunk, 0.03)
    assert sent(worker, 0.03) == []  # they were all sent before the repetition
    assert worker.counters.fast_retransmissions == 1


def test_patience_ends_by_itself_where_nothing_more_comes() -> None:
    """At the end of a reduction nothing is left whose result would show that it is over."""
    worker = reducing(4)
    sent(worker, 0.0)
    for chunk in (1, 2, 3):
        answer(worker, chunk, 0.01)
    due_s = worker.deadline_s()
    assert due_s == worker.round_trip.patience_s < worker.round_trip.timeout_s
    worker.expire(due_s)
    assert sent(worker, due_s) == [0]
    assert (worker.counters.fast_retransmissions, worker.counters.timeouts) == (1, 0)


def test_a_result_that_was_only_late_lengthens_the_timer_and_the_patience() -> None:
    worker = reducing(8)
    sent(worker, 0.0)
    for chunk in (1, 2, 3):
        answer(worker, chunk, 0.01)
    answer(worker, 4, 0.013)
    assert sent(worker, 0.013) == [0]
    patience, timeout_s = worker.round_trip.patience, worker.round_trip.timeout_s
    answer(worker, 0, 0.05)  # later than a round trip after its repetition: that one was lost, or this one was needed
    assert worker.round_trip.patience <= patience
    assert worker.round_trip.timeout_s == timeout_s
    late = reducing(8)
    sent(late, 0.0)
    for chunk in (1, 2, 3):
        answer(late, chunk, 0.01)
    answer(late, 4, 0.013)
    assert sent(late, 0.013) == [0]
    timeout_s = late.round_trip.timeout_s
    answer(late, 0, 0.0135)  # half a millisecond after its repetition, where round trips take ten: the first one's
    assert late.round_trip.patience > patience
    assert late.round_trip.timeout_s != timeout_s


def test_the_first_window_repeats_its_own_chunks_one_at_a_time() -> None:
    """p4app-switchML's client repeats chunk p + 1 in chunk p's slot here."""
    worker = reducing(3)
    first = list(worker.transmit(0.0))
    now_s = 0.0
    repeated: list[Datagram] = []
    for expirations in range(3):
        due_s = worker.deadline_s()
        assert due_s is not None
        assert due_s == pytest.approx(now_s + worker.round_trip.timeout_s * 2**expirations)
        now_s = due_s
        worker.expire(now_s)
        repeated += worker.transmit(now_s)
    assert repeated == first
    assert worker.counters.timeouts == 3
    answer(worker, 0, now_s + 0.001)
    assert worker.deadline_s() == pytest.approx(now_s + worker.round_trip.timeout_s)


def test_the_result_of_a_repeated_chunk_proves_nothing_of_the_others() -> None:
    """It may be the first transmission's, late as the others are: whoever begins last makes all of them late."""
    worker = reducing(20)
    sent(worker, 0.0)
    due_s = worker.deadline_s()
    assert due_s is not None
    worker.expire(due_s)
    assert sent(worker, due_s) == [0]
    answer(worker, 0, due_s + 0.01)
    assert sent(worker, due_s + 0.01) == [8]
    answer(worker, 8, due_s + 0.02)
    assert sent(worker, due_s + 0.02) == [1, 2, 3, 4, 5, 6, 16]  # but that of one sent once after them does
    assert worker.counters.fast_retransmissions == 6


def test_a_result_that_comes_while_its_repetition_is_due_cancels_it() -> None:
    worker = reducing(1)
    sent(worker, 0.0)
    worker.expire(1.0)
    answer(worker, 0, 1.0)
    assert sent(worker, 1.0) == []
    assert worker.finished


def test_duplicates_unknown_senders_and_noise_change_nothing() -> None:
    worker = reducing(2)
    sent(worker, 0.0)
    answer(worker, 0, 0.01)
    answer(worker, 0, 0.01)
    answer(worker, 1, 0.01, epoch=2)
    answer(worker, 7, 0.01)
    answer(worker, 1, 0.01, elements=np.zeros(64, np.int32))
    answer(worker, 1, 0.01, job=5)
    worker.receive([Datagram(SWITCH, b"noise"), Datagram(("mallory", 1), b"")], 0.01)
    assert not worker.finished
    assert (worker.counters.results, worker.counters.duplicates, worker.counters.bad) == (1, 4, 3)


def test_results_say_what_they_are() -> None:
    worker = reducing(3)
    sent(worker, 0.0)
    answer(worker, 0, 0.01, exponent=-5)
    answer(worker, 1, 0.01, partial=True, contributions=1)
    answer(worker, 2, 0.01, kind=Kind.SATURATED)
    result = worker.result
    assert result.elements[:, 0].tolist() == [0, 1, 2]
    assert result.exponents.tolist() == [-5, -128, -128]
    assert result.counts.tolist() == [2, 1, 2]
    assert result.saturated.tolist() == [False, False, True]


def test_another_epoch_and_a_restart_end_what_is_under_way() -> None:
    for epoch, generation, ends in ((4, 9, True), (3, 9, False), (2, 9, False), (3, 10, True)):
        worker = reducing(2)
        sent(worker, 0.0)
        worker.receive([Datagram(SWITCH, Packet(Kind.RESET, 0, epoch, 0, slot=generation).encode())], 0.01)
        assert isinstance(worker.failure, EpochEndedError) is ends
        assert worker.joined is not ends
        assert (worker.deadline_s() is None) is ends


def test_an_epoch_that_it_was_in_before_has_to_end_first() -> None:
    """Its chunks from 0 on would be the ones of before: a sum of what somebody contributed then, and others now."""
    worker = reducing(2)
    sent(worker, 0.0)
    worker.join()
    again = Packet(Kind.JOIN, 0, 3, 42, slot=0, contributions=2)
    assert [decode(datagram.data) for datagram in worker.transmit(1.0)] == [again]
    early, stale = Packet(Kind.JOIN, 0, 3, 42, slot=9, contributions=2), Packet(Kind.JOIN, 0, 9, 42, contributions=1)
    worker.receive([Datagram(SWITCH, each.encode()) for each in (stale, early, early)], 1.0)
    assert not worker.joined
    requested = [decode(datagram.data) for datagram in worker.transmit(1.0)]
    assert requested == [again._replace(kind=Kind.RESET), again]
    worker.receive([Datagram(SWITCH, early.encode())], 1.001)
    assert worker.transmit(1.001) == []  # that was under way: the next turn is the timer's
    worker.receive([Datagram(SWITCH, early._replace(epoch=4).encode())], 1.002)
    assert worker.joined
    assert worker.epoch == 4


def test_silence_is_an_error_that_says_how_long() -> None:
    worker = reducing(1, max_silence_s=0.5)
    now_s = 0.0
    while worker.failure is None:
        worker.transmit(now_s)
        due_s = worker.deadline_s()
        assert due_s is not None
        now_s = due_s
        worker.expire(now_s)
    assert isinstance(worker.failure, AggregatorLostError)
    assert "no result of chunk 0" in str(worker.failure)
    assert worker.transmit(now_s) == []
    alone = Worker(JOB, 0, SWITCH, incarnation=1, max_silence_s=0.5)
    alone.join()
    now_s = 0.0
    while alone.failure is None:
        alone.transmit(now_s)
        now_s = alone.deadline_s() or 0.0
        alone.expire(now_s)
    assert now_s < 2


def test_what_waits_for_others_is_no_round_trip_and_the_timer_backs_off_to_sixteen() -> None:
    worker = reducing(20)
    sent(worker, 0.0)
    for chunk in (1, 2, 3, 4):
        answer(worker, chunk, 0.01)
    worker.expire(0.02)
    assert 0 in sent(worker, 0.02)
    timeout_s = worker.round_trip.timeout_s
    answer(worker, 0, 5.0)  # a repetition of another worker's came at last
    assert worker.round_trip.timeout_s == timeout_s
    waits = []
    worker.transmit(5.0)
    for _ in range(7):
        now_s = worker.deadline_s() or 0.0
        waits.append(now_s)
        worker.expire(now_s)
        worker.transmit(now_s)
    gaps = [later - sooner for sooner, later in itertools.pairwise(waits)]
    assert gaps == pytest.approx([worker.round_trip.timeout_s * min(16, 2**number) for number in range(1, 7)])


def test_windows_bound_what_is_under_way() -> None:
    worker = reducing(20, window=FixedWindow(3))
    assert sent(worker, 0.0) == [0, 1, 2]
    adaptive = reducing(20, window=AimdWindow(4, 8))
    assert len(sent(adaptive, 0.0)) == 4
    answer(adaptive, 0, 0.01, marked=True)
    assert sent(adaptive, 0.01) == []


def test_a_chunk_older_than_all_under_way_needs_no_room_in_the_window() -> None:
    """Others may have room for nothing but what waits for this one."""
    worker = reducing(20, window=AimdWindow(8, 8))
    assert len(sent(worker, 0.0)) == 8
    for chunk in range(1, 8):
        answer(worker, chunk, 0.01)
    assert sent(worker, 0.01) == list(range(9, 16))
    answer(worker, 0, 0.02, marked=True)  # the window is halved: seven are under way and it has room for four
    assert sent(worker, 0.02) == [8]
    answer(worker, 9, 0.02)
    assert sent(worker, 0.02) == []


def test_images_are_the_datagrams() -> None:
    rng = np.random.default_rng(1)
    elements = rng.integers(-(2**31), 2**31, (11, 32), dtype=np.int64).astype(np.int32)
    exponents = rng.integers(-128, 128, 11).astype(np.int8)
    job = Job(number=3, workers=("a",), num_elements=32, first_slot=16, num_slots=4)
    rows = images(job, 5, 0xFFFFFFFB, elements, exponents)
    for offset, row in enumerate(rows):
        chunk = (0xFFFFFFFB + offset) & 0xFFFFFFFF
        slot, version = job.place(chunk)
        packet = Packet(
            Kind.DATA_32,
            3,
            5,
            chunk,
            slot=slot,
            version=version,
            exponent=int(exponents[offset]),
            elements=elements[offset],
        )
        assert row.tobytes() == packet.encode()
