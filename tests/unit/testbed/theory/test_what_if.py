"""The what-if model: its bounds, its limits, its reader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.theory.buckets import ByTime
from testbed.theory.what_if import (
    Addition,
    AdditionSample,
    FullAggregation,
    FullRing,
    read_addition,
    smallest_factor,
    what_if,
)
from testbed.traces.table import Layer, LayerTable

TABLE = LayerTable(layers=tuple(Layer(str(number), 0.01, 0.02, 10_000_000) for number in range(5)))


def test_a_ring_of_two_moves_as_much_as_a_switch_that_aggregates() -> None:
    ring, aggregation = FullRing(num_workers=2, rate_bps=1e9), FullAggregation(rate_bps=1e9)
    assert ring.time_s(1_000_000) == pytest.approx(aggregation.time_s(1_000_000)) == pytest.approx(8e-3)


def test_a_ring_adds_n_minus_one_parts() -> None:
    addition = Addition((AdditionSample(0, 0.001),))
    free, costly = (
        FullRing(num_workers=4, rate_bps=1e9, addition=each) for each in (Addition((AdditionSample(0, 0),)), addition)
    )
    assert costly.time_s(400) - free.time_s(400) == pytest.approx(0.003)


def test_addition_is_interpolated_and_held_at_its_ends() -> None:
    addition = read_addition(["10,1.0", "", "20,3.0"])
    assert [addition.time_s(size) for size in (0, 10, 15, 20, 99)] == [1.0, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "no samples"),
        (["10 1"], "line 1: '10 1' is not"),
        (["10,1", "x,2"], "line 2"),
        (["10,1", "10,2"], "ascend"),
    ],
)
def test_additions_that_cannot_be_read_are_refused(lines: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_addition(lines)


def test_the_last_bucket_cannot_hide() -> None:
    answer = what_if(TABLE, FullAggregation(rate_bps=8e9).time_s, ByTime(cycle_s=0))
    # Every bucket takes 10 ms on the wire and becomes ready 20 ms after the one before it.
    assert answer.iteration_s == pytest.approx(TABLE.compute_s + 0.01)
    assert answer.scaling_factor == pytest.approx(0.15 / 0.16)
    assert answer.busy_share == pytest.approx(0.05 / 0.16)


@given(st.floats(1e6, 1e12), st.floats(1e6, 1e12), st.integers(1, 512))
def test_faster_links_never_scale_worse(first_bps: float, second_bps: float, num_workers: int) -> None:
    slow, fast = (
        what_if(TABLE, FullRing(num_workers=num_workers, rate_bps=rate_bps).time_s).scaling_factor
        for rate_bps in sorted((first_bps, second_bps))
    )
    assert 0 < slow <= fast <= 1


def test_the_smallest_factor_reaches_the_target_and_little_less_does_not() -> None:
    def scaling_factor(ratio: float) -> float:
        return what_if(TABLE, FullRing(num_workers=8, rate_bps=1e9, compression_ratio=ratio).time_s).scaling_factor

    ratio = smallest_factor(scaling_factor, 0.9)
    assert ratio is not None
    assert scaling_factor(ratio) >= 0.9 > scaling_factor(ratio * 0.998)
    assert smallest_factor(scaling_factor, 0.01) == 1.0
    assert smallest_factor(lambda _: 0.5, 0.9) is None
    assert smallest_factor(lambda factor: factor / 10, 0.9, most=8) is None
    assert smallest_factor(lambda factor: factor / 10, 0.9, most=9) == 9
    assert smallest_factor(lambda factor: 2 <= factor < 2.1 or factor >= 10, 1) == pytest.approx(2, rel=1e-3)


def test_input_that_takes_longer_hides_communication() -> None:
    table = LayerTable(layers=(Layer("a", 0.01, 0.02, 4_000_000),), input_s=0.05, host_to_device_s=0.05)
    found = what_if(table, lambda _: 0.04)
    assert (found.iteration_s, found.scaling_factor) == pytest.approx((0.1, 1.0))
    assert what_if(table, lambda _: 0.14).scaling_factor == pytest.approx(0.1 / 0.17)
