"""The program against a second writing of the P4 sources, register by register, and what it does beyond them."""

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switch_agg.core import Datagram
from switch_agg.errors import JobError
from switch_agg.switchml.program import NUM_SLOTS, Membership, SwitchMLProgram
from switch_agg.switchml.wire import decode

WORD = 1 << 32


def sent(
    value: int = 1, *, slot: int = 0, pool_set: int = 0, tsi: int = 5, job: int = 9, size: int = 1, **changes: int
) -> bytes:
    """A contribution of 64 or 256 times that value."""
    first = changes.get("first", 0x10 | size)
    pool = pool_set << 15 | slot | changes.get("bit14", 0) << 14
    head = struct.pack(">BBIHbb", first, job, tsi, pool, changes.get("e0", 0), changes.get("e1", 0))
    return head + struct.pack(">I", value % WORD) * {1: 64, 3: 256}[size]


class Bench:
    """A session of some workers, and what the program answers."""

    def __init__(self, num_workers: int = 2, *, num_elements: int = 64) -> None:
        self.program = SwitchMLProgram()
        self.counters = self.program.counters
        for rank in range(num_workers):
            self.program.admit(Membership(7, rank, num_workers, num_elements, f"10.0.0.{rank}"))

    def send(self, worker: int, data: bytes, now_s: float = 0.0, *, port: int = 4000) -> list[tuple[str, bytes]]:
        self.program.receive([Datagram((f"10.0.0.{worker}", port), data, local_port=0xBEE0)], now_s)
        assert self.counters.violations(self.program.in_flight) == []
        return [(each.peer[0], each.data) for each in self.program.transmit(now_s)]


# -- the P4 program, written again ------------------------------------------------------------------------------------

LAST, FIRST = 1, 0


@dataclass
class P4:
    """bitmap_checker.p4, workers_counter.p4, exponents.p4, processor.p4 and the tables of next_step_selector.py for
    packets of 256 bytes, with registers indexed as they are there."""

    num_workers: int
    worker_bitmap: dict[int, tuple[int, int]] = field(default_factory=dict)
    workers_count: dict[int, int] = field(default_factory=dict)
    exponents: dict[int, tuple[int, int]] = field(default_factory=dict)
    values: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def apply(self, worker: int, data: bytes) -> list[tuple[int, bytes]]:
        first, job_number, tsi, pool, e0, e1 = struct.unpack_from(">BBIHbb", data)
        values = struct.unpack_from(">64I", data, 10)
        pool_index = (pool & 0x3FFF) << 1 | pool >> 15
        bit = 1 << worker

        one, other = self.worker_bitmap.get(pool_index >> 1, (0, 0))
        before = other if pool_index & 1 else one
        self.worker_bitmap[pool_index >> 1] = (one & ~bit, other | bit) if pool_index & 1 else (one | bit, other & ~bit)
        map_result = before & bit

        count = self.workers_count.get(pool_index, 0)
        if not map_result:
            self.workers_count[pool_index] = self.num_workers - 1 if count == 0 else count - 1
        flag = count
        if self.num_workers == 1:
            flag = FIRST if map_result else LAST

        if before == 0:
            self.exponents[pool_index], self.values[pool_index] = (e0, e1), values
        elif map_result == 0:
            high = self.exponents[pool_index]
            self.exponents[pool_index] = max(high[0], e0), max(high[1], e1)
            added = zip(self.values[pool_index], values, strict=True)
            self.values[pool_index] = tuple((a + b) % WORD for a, b in added)

        if flag == LAST:  # recirculate_for_HARVEST7
            to = (
                tuple(range(self.num_workers)) if map_result == 0 else ()
            )  # broadcast, or: drop any other HARVEST packets
        elif map_result == 0:  # finish_consume
            to = ()
        elif flag == FIRST:  # recirculate_for_HARVEST7, retransmit
            to = (worker,)
        else:
            to = ()
        head = struct.pack(
            ">BBIHbb",
            1 << 4 | first & 7,
            job_number,
            tsi,
            (pool_index & 1) << 15 | pool_index >> 1,
            *self.exponents[pool_index],
        )
        answer = head + struct.pack(">64I", *self.values[pool_index])
        return [(each, answer) for each in to]


events = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(0, 1),
        st.integers(0, WORD - 1),
        st.tuples(st.integers(-128, 127), st.integers(-128, 127)),
        st.integers(0, WORD - 1),
    ),
    max_size=40,
)


@settings(max_examples=400)
@given(st.integers(1, 3), events)
def test_whatever_comes_in_whatever_order_the_answers_are_the_p4_program_s(num_workers: int, sequence: Any) -> None:
    """No client does most of this: the registers have to agree all the same."""
    bench, p4 = Bench(num_workers), P4(num_workers)
    for worker, slot, pool_set, value, (e0, e1), tsi in sequence:
        worker %= num_workers  # noqa: PLW2901
        data = sent(value, slot=slot, pool_set=pool_set, tsi=tsi, job=tsi & 0xFF, e0=e0, e1=e1)
        expected = [(f"10.0.0.{to}", answer) for to, answer in p4.apply(worker, data)]
        assert bench.send(worker, data) == expected


# -- one rule at a time -----------------------------------------------------------------------------------------------


def test_a_retransmission_gets_its_own_tsi_and_job_number_back() -> None:
    bench = Bench(2)
    bench.send(0, sent(3))
    bench.send(1, sent(4))
    [(host, data)] = bench.send(1, sent(4, tsi=0xDDCCBBAA, job=200))
    answer = decode(data)
    assert (host, answer.tsi, answer.job_number) == ("10.0.0.1", 0xDDCCBBAA, 200)
    assert set(answer.elements.tolist()) == {7}
    assert bench.counters.mixed == 1, "no packet of that tsi is in the sum"


def test_type_the_unused_bit_and_bit_14_are_not_read_and_sent_as_1_and_0() -> None:
    bench = Bench(2)
    bench.send(0, sent(3, slot=5, first=0xF9, bit14=1))
    results = bench.send(1, sent(4, slot=5, first=0x01))
    assert [data[:8] for _, data in results] == [struct.pack(">BBIH", 0x11, 9, 5, 5)] * 2
    assert bench.counters.bad == 0


def test_sums_wrap_around_and_are_counted_by_chunk() -> None:
    bench = Bench(2)
    bench.send(0, sent(2**31 - 1))
    [(_, data), _] = bench.send(1, sent(1))
    assert set(decode(data).elements.tolist()) == {-(2**31)}
    assert (bench.counters.wrapped, bench.counters.saturated, bench.counters.done) == (1, 0, 1)
    bench.send(1, sent(1))
    assert bench.counters.wrapped == 1, "sent again, not added again"
    three = Bench(3)
    for worker, value in enumerate((2**31 - 1, 1, -1)):  # out of the range, and back
        results = three.send(worker, sent(value))
    assert set(decode(results[0][1]).elements.tolist()) == {2**31 - 1}
    assert three.counters.wrapped == 0


def test_nothing_but_data_is_ever_sent() -> None:
    """Not to unknown senders, not without a session, not when one begins: its clients know no other kind."""
    program = SwitchMLProgram()
    program.receive([Datagram(("10.0.0.0", 4000), sent())], 0.0)
    assert (program.transmit(0.0), program.counters.bad_job) == ([], 1)
    bench = Bench(2)
    assert bench.send(9, sent()) == []
    assert bench.counters.bad_worker == 1
    bench.send(0, sent())
    for rank in range(2):
        bench.program.admit(Membership(8, rank, 2, 64, f"10.0.0.{rank}"))
        assert bench.program.transmit(0.0) == []
    bench.program.clear()
    assert bench.program.transmit(0.0) == []


@pytest.mark.parametrize("abandoned", [False, True])
def test_a_new_session_begins_at_cleared_registers(abandoned: bool) -> None:
    bench = Bench(2)
    for worker in range(1 if abandoned else 2):
        bench.send(worker, sent(5))
    for rank, host in enumerate(("10.0.0.1", "10.0.0.0")):  # the ranks may change hosts
        bench.program.admit(Membership(8, rank, 2, 64, host))
    assert bench.counters.discarded == abandoned
    assert bench.send(0, sent(6)) == []
    results = bench.send(1, sent(7))
    assert [(host, decode(data).elements[0]) for host, data in results] == [("10.0.0.1", 13), ("10.0.0.0", 13)]
    assert bench.counters.mixed == 0
    assert bench.program.num_sessions == 2


def test_sums_that_are_nobody_s_are_counted() -> None:
    """A datagram of two rounds ago is taken for a new one: so does the original, and it cannot tell."""
    bench = Bench(2)
    for pool_set, tsi in ((0, 1), (1, 2)):
        for worker in range(2):
            bench.send(worker, sent(10, pool_set=pool_set, tsi=tsi))
    assert bench.counters.mixed == 0
    assert bench.send(0, sent(10, pool_set=0, tsi=1)) == []  # late
    results = bench.send(1, sent(99, pool_set=0, tsi=3))
    assert {int(decode(data).elements[0]) for _, data in results} == {109}
    assert bench.counters.mixed == 1
    [(_, data)] = bench.send(0, sent(98, pool_set=0, tsi=3))  # its own, which counts as a retransmission
    assert int(decode(data).elements[0]) == 109
    assert bench.counters.mixed == 2


def test_what_the_session_cannot_use_is_counted() -> None:
    bench = Bench(2)
    whole = sent()
    for data, reason in (
        (whole[:-1], "bad_length"),
        (whole + b"\0", "bad_length"),
        (b"", "bad_length"),
        (sent(size=3), "bad_size"),
        (sent(first=0x10), "bad_size"),
        (sent(first=0x17), "bad_size"),
        (sent(slot=NUM_SLOTS), "bad_slot"),
        (sent(slot=0x3FFF), "bad_slot"),
    ):
        before = getattr(bench.counters, reason)
        assert bench.send(0, data) == []
        assert getattr(bench.counters, reason) == before + 1
    assert bench.counters.fresh == 0
    bench.send(0, sent(slot=NUM_SLOTS - 1))
    assert bench.counters.fresh == 1


def test_every_length_is_a_datagram_or_counted() -> None:
    bench = Bench(1)
    for length in range(1100):
        bench.send(0, (sent(tsi=length) * 5)[:length])
    assert (bench.counters.fresh, bench.counters.bad_length) == (1, 1099)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=300), st.integers(0, 300)), max_size=20))
def test_hostile_bytes_disturb_nothing(datagrams: list[tuple[int, bytes, int]]) -> None:
    bench = Bench(2)
    bench.send(0, sent(20, slot=77))
    for worker, noise, cut in datagrams:
        bench.send(worker, noise)
        bench.send(worker + 2, sent(1, slot=77))
        bench.send(worker, sent(1, slot=77)[: cut - 267])
    results = bench.send(1, sent(22, slot=77))
    assert {int(decode(data).elements[0]) for _, data in results} == {42}


# -- who may take part -----------------------------------------------------------------------------------------------

FIT = Membership(7, 1, 3, 64, "10.0.0.1")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_workers": 0}, r"num_workers: 1 to 32 \(got 0\)"),
        ({"num_workers": 33}, r"num_workers: 1 to 32 \(got 33\)"),
        ({"rank": 3}, r"rank: 0 to 2, of 3 workers \(got 3\)"),
        ({"rank": 4_000_000_000}, "rank: 0 to 2"),
        ({"num_elements": 128}, r"packet_size: 64 or 256 elements \(got 128\)"),
        ({"session": 8}, "session_id: 0x8 is over, rank 0 has begun 0x7; start all clients anew"),
        ({"num_workers": 4}, "num_workers: rank 1 says 4, rank 0 said 3"),
        ({"num_elements": 256}, "packet_size: rank 1 says 256 elements, rank 0 said 64 elements"),
        ({"rank": 2, "host": "10.0.0.9"}, "rank: 2 is 10.0.0.2's, and 10.0.0.9 says that it is its own"),
    ],
)
def test_who_cannot_take_part_is_refused_and_changes_nothing(changes: dict[str, Any], words: str) -> None:
    bench = Bench(3)
    bench.send(0, sent())
    with pytest.raises(JobError, match=words):
        bench.program.admit(FIT._replace(**changes))
    bench.send(1, sent())
    assert len(bench.send(2, sent())) == 3


def test_nobody_takes_part_before_rank_0_and_twice_is_once() -> None:
    program = SwitchMLProgram()
    with pytest.raises(JobError, match="rank 0 has begun no session"):
        program.admit(FIT)
    for rank in (0, 1, 1):
        program.admit(FIT._replace(rank=rank, host=f"10.0.0.{rank}"))
        assert program.jobs == ()
    with pytest.raises(JobError, match=r"ipv4: 10\.0\.0\.0 is rank 0 and cannot be rank 2"):
        program.admit(FIT._replace(rank=2, host="10.0.0.0"))
    program.admit(FIT._replace(rank=2, host="10.0.0.2"))
    [job] = program.jobs
    assert (job.workers, job.num_elements, job.num_slots) == (("10.0.0.0", "10.0.0.1", "10.0.0.2"), 64, 8192)


def test_status_says_who_is_last_and_which_slots_wait() -> None:
    bench = Bench(2)
    bench.send(0, sent(slot=3), 1.0)
    bench.send(0, sent(slot=4), 1.0)
    assert (bench.program.busy_slots(0), bench.program.in_flight) == (2, 2)
    bench.send(1, sent(slot=3), 1.000005)
    assert bench.program.busy_slots(0) == 1
    found = bench.program.stragglers(0)
    assert (found.last, found.gaps[3], found.chunks) == ((0, 1), 1, 1)
    with pytest.raises(JobError, match="job 1 is not being served; there is: 0"):
        bench.program.stragglers(1)


def test_results_go_to_the_port_that_each_thread_sent_from() -> None:
    program = SwitchMLProgram()
    for rank in range(3):
        program.admit(Membership(7, rank, 3, 64, f"10.0.0.{rank}"))
    for rank in range(3):
        arrived = Datagram((f"10.0.0.{rank}", 4000 + 7 * rank), sent(), local_port=0xBEE0 + rank)
        program.receive([arrived], 0.0)
    answers = program.transmit(0.0)
    assert [(each.peer, each.local_port) for each in answers] == [
        (("10.0.0.0", 4000), 0xBEE0),
        (("10.0.0.1", 4007), 0xBEE1),
        (("10.0.0.2", 4014), 0xBEE2),
    ]


def test_thirty_two_workers_of_256_elements() -> None:
    bench = Bench(32, num_elements=256)
    for worker in range(31):
        assert bench.send(worker, sent(worker, size=3)) == []
    results = bench.send(31, sent(31, size=3))
    assert [host for host, _ in results] == [f"10.0.0.{rank}" for rank in range(32)]
    np.testing.assert_array_equal(decode(results[0][1]).elements, np.full(256, 31 * 16))
