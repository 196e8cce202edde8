"""Buckets of latencies: a quarter of a doubling wide at most, the same in C and in Python."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switch_agg.native.worker import library
from switch_agg.slot_latency import NUM_BUCKETS, begin_s, bucket, quantile_s

LEAST_S, MOST_S = begin_s(0), begin_s(NUM_BUCKETS)


def test_buckets_go_from_a_microsecond_to_sixteen_seconds() -> None:
    assert (LEAST_S, MOST_S) == (2.0**-20, 16.0)
    assert [begin_s(number) / begin_s(0) for number in range(5)] == [1, 1.25, 1.5, 1.75, 2]


@given(st.floats(LEAST_S, MOST_S, exclude_max=True))
def test_a_latency_lies_in_its_bucket(latency_s: float) -> None:
    found = bucket(latency_s)
    assert begin_s(found) <= latency_s < begin_s(found + 1) <= 1.25 * begin_s(found)


@given(st.floats(-1.0, 1e6))
def test_the_worker_in_c_counts_in_the_same_buckets(latency_s: float) -> None:
    assert library().slot_latency_bucket(latency_s) == bucket(latency_s)


@pytest.mark.parametrize("number", range(NUM_BUCKETS))
def test_edges_are_the_same_in_c(number: int) -> None:
    for latency_s in (begin_s(number), math.nextafter(begin_s(number), 0.0)):
        assert library().slot_latency_bucket(latency_s) == bucket(latency_s)


@pytest.mark.parametrize(("latency_s", "number"), [(-1.0, 0), (0.0, 0), (1e-9, 0), (16.0, 95), (1e9, 95)])
def test_what_is_beyond_is_in_the_last_ones(latency_s: float, number: int) -> None:
    assert bucket(latency_s) == library().slot_latency_bucket(latency_s) == number


def test_a_quantile_is_where_its_bucket_ends() -> None:
    counts = [0] * NUM_BUCKETS
    assert quantile_s(counts, 0.5) is None
    counts[3], counts[9] = 99, 1
    assert quantile_s(counts, 0.5) == quantile_s(counts, 0.99) == begin_s(4)
    assert quantile_s(counts, 0.995) == begin_s(10)
