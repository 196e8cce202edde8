"""Buckets by time, and their exchange one after the other."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.theory.buckets import ByTime, exposed_s, in_turn, joined_in_turn
from testbed.traces.table import Gradient

GRADIENTS = (Gradient(0.001, 10), Gradient(0.004, 20), Gradient(0.007, 30), Gradient(0.0075, 40))


def test_an_exchange_waits_for_its_bucket_and_for_the_one_before() -> None:
    exchanges = in_turn(GRADIENTS[:3], lambda size_bytes: size_bytes * 2e-4)
    assert [tuple(each) for each in exchanges] == [
        (0.001, 0.001, pytest.approx(0.003), 10),
        (0.004, 0.004, pytest.approx(0.008), 20),
        (0.007, pytest.approx(0.008), pytest.approx(0.014), 30),
    ]
    assert exposed_s(exchanges, backward_s=0.0075) == pytest.approx(0.0065)
    assert exposed_s(exchanges, backward_s=1.0) == 0.0
    assert exposed_s((), backward_s=1.0) == 0.0


def test_a_bucket_closes_when_the_cycle_is_over_or_the_buffer_full_or_nothing_is_left() -> None:
    by_cycle = ByTime(cycle_s=0.004, buffer_bytes=1000).buckets(GRADIENTS)
    assert by_cycle == (Gradient(0.004, 30), Gradient(0.0075, 70))
    by_size = ByTime(cycle_s=1.0, buffer_bytes=30).buckets(GRADIENTS)
    assert by_size == (Gradient(0.004, 30), Gradient(0.007, 30), Gradient(0.0075, 40))


@given(st.lists(st.tuples(st.floats(0, 0.01), st.integers(1, 10**8)), min_size=1, max_size=50), st.floats(0, 0.02))
def test_buckets_have_all_bytes_and_end_with_backward(gaps: list[tuple[float, int]], cycle_s: float) -> None:
    ready_s = 0.0
    gradients = [Gradient(ready_s := ready_s + gap_s, size_bytes) for gap_s, size_bytes in gaps]
    buckets = ByTime(cycle_s=cycle_s).buckets(gradients)
    assert sum(bucket.size_bytes for bucket in buckets) == sum(size_bytes for _, size_bytes in gaps)
    assert buckets[-1].ready_s == gradients[-1].ready_s
    exchanges = in_turn(buckets, lambda size_bytes: size_bytes * 1e-9)
    assert all(before.end_s <= after.start_s for before, after in pairwise(exchanges))


def test_an_engine_joins_what_became_ready_during_an_exchange_and_waits_for_its_cycle() -> None:
    gradients = [Gradient(0.02 * number, 4000) for number in range(1, 9)]

    def sent(cycle_s: float, exchange_s: float) -> list[tuple[float, int]]:
        fusion = ByTime(cycle_s=cycle_s, buffer_bytes=16_000)
        exchanges = joined_in_turn(gradients, fusion, lambda _: exchange_s)
        return [(round(1e3 * each.start_s), each.size_bytes // 4000) for each in exchanges]

    assert sent(0.005, 0.055) == [(20, 1), (75, 2), (130, 3), (185, 2)]
    assert sent(0.070, 0.001) == [(20, 1), (90, 3), (160, 4)]
    assert sent(0.100, 0.010) == [(20, 1), (120, 4), (130, 1), (220, 2)]
    assert sent(0.0, 0.055) == [(20 + 55 * number, 1) for number in range(8)]
    assert sent(inf, 0.010) == [(80, 4), (160, 4)]
