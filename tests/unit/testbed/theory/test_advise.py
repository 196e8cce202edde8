"""Advice: every change reaches the target as cheaply as it can, or is said not to."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import SpecError
from testbed.theory.advise import ETHERNET_BPS, PREFERENCE, Advice, Change, Setting, Verification, advise
from testbed.theory.buckets import ByTime
from testbed.traces.derived import derived_table
from testbed.traces.table import Layer, LayerTable
from transports.collectives.base import World
from transports.collectives.cost import bound_s

TODAY = Setting(table=derived_table("resnet50"), num_workers=32, rate_bps=10e9, efficiency=0.8)
MOST = 0.956


def change(advice: Advice, name: str) -> Change:
    return next(each for each in advice.changes if each.name == name)


def test_nothing_needs_to_change_where_links_are_fast_enough() -> None:
    advice = advise(replace(TODAY, rate_bps=100e9), 0.9, max_efficiency=MOST)
    assert advice.sufficient
    assert (advice.changes, advice.recommended, advice.best) == ((), None, None)
    least_bps = advice.least_rate_bps
    assert least_bps is not None
    assert (
        replace(TODAY, rate_bps=least_bps).scaling_factor
        >= 0.9
        > replace(TODAY, rate_bps=0.99 * least_bps).scaling_factor
    )


@pytest.mark.parametrize("target", [0.5, 0.7, 0.9, 0.99])
def test_a_sufficient_change_reaches_the_target_and_less_of_it_does_not(target: float) -> None:
    advice = advise(TODAY, target, max_efficiency=MOST)
    assert not advice.sufficient
    for each in advice.changes:
        assert each.sufficient == (each.setting.scaling_factor >= target), each.name
    for name, field in (("compression", "compression_ratio"), ("batch", "batch_factor")):
        enough = change(advice, name).setting
        assert enough.scaling_factor >= target
        assert replace(enough, **{field: 0.99 * getattr(enough, field)}).scaling_factor < target
    faster = change(advice, "links").setting
    assert faster.rate_bps in ETHERNET_BPS
    slower_bps = max(rate_bps for rate_bps in ETHERNET_BPS if rate_bps < faster.rate_bps)
    assert slower_bps == TODAY.rate_bps or replace(TODAY, rate_bps=slower_bps).scaling_factor < target
    seldom = change(advice, "interval").setting
    assert seldom.scaling_factor >= target
    assert seldom.interval == 2 or replace(seldom, interval=seldom.interval - 1).scaling_factor < target


@pytest.mark.parametrize(
    ("trace", "num_workers", "rate_bps", "latency_s", "target"),
    [
        ("mobilenet", 8, 10e9, 500e-6, 0.9),
        ("mobilenet", 128, 25e9, 50e-6, 0.7),
        ("resnet50", 128, 25e9, 50e-6, 0.8),
        ("googlenet", 128, 25e9, 50e-6, 0.8),
    ],
)
def test_no_smaller_factor_reaches_the_target_though_larger_ones_may_scale_worse(
    trace: str, num_workers: int, rate_bps: float, latency_s: float, target: float
) -> None:
    table = derived_table(trace)  # type: ignore[arg-type]  # a network's name
    today = Setting(table=table, num_workers=num_workers, rate_bps=rate_bps, latency_s=latency_s, efficiency=MOST)
    advice = advise(today, target, max_efficiency=MOST)
    by_factor: dict[str, Callable[[Setting, float], Setting]] = {
        "compression": lambda setting, factor: replace(setting, compression_ratio=factor),
        "batch": lambda setting, factor: replace(setting, batch_factor=factor),
    }
    for name, with_factor in by_factor.items():
        enough = change(advice, name).setting
        least = max(enough.compression_ratio, enough.batch_factor)
        factor = 1.0
        while factor < 0.995 * least:
            assert with_factor(today, factor).scaling_factor < target, (name, factor)
            factor *= 1.013


def test_each_change_changes_one_thing() -> None:
    fields = {
        "fusion": "fusion",
        "transport": "efficiency",
        "collective": "collective",
        "aggregation": "collective",
        "links": "rate_bps",
        "compression": "compression_ratio",
        "batch": "batch_factor",
        "interval": "interval",
    }
    today = replace(TODAY, latency_s=200e-6)  # without it, fewer and larger buckets bring nothing
    advice = advise(today, 0.9, max_efficiency=MOST)
    assert [each.name for each in advice.changes] == list(PREFERENCE)
    for each in advice.changes:
        field = fields[each.name]
        assert getattr(each.setting, field) != getattr(today, field)
        assert replace(each.setting, **{field: getattr(today, field)}) == today


def test_what_costs_least_is_recommended() -> None:
    advice = advise(TODAY, 0.9, max_efficiency=MOST)
    assert advice.recommended == change(advice, "links")
    modest = advise(TODAY, 0.65, max_efficiency=MOST)
    assert modest.recommended == change(modest, "aggregation")


def test_a_switch_aggregates_for_as_many_workers_as_it_can() -> None:
    """A slot's contributors are bits of one word."""
    for num_workers, offered in ((32, True), (33, False)):
        advice = advise(replace(TODAY, num_workers=num_workers), 0.65, max_efficiency=MOST)
        assert ("aggregation" in [each.name for each in advice.changes]) == offered


@pytest.mark.parametrize("rate_bps", [10e9, 23.83e9])
@pytest.mark.parametrize("cycle_s", [5e-3, inf])
@pytest.mark.parametrize("latency_s", [0.0, 20e-6])
def test_smaller_buckets_are_not_advised_by_a_model_in_which_messages_cost_nothing(
    rate_bps: float, cycle_s: float, latency_s: float
) -> None:
    today = replace(TODAY, rate_bps=rate_bps, latency_s=latency_s, fusion=ByTime(cycle_s=cycle_s))
    for each in advise(today, 0.99, max_efficiency=MOST).changes:
        assert each.setting.fusion.cycle_s >= cycle_s, each.name


def test_a_target_beyond_every_single_change_is_said_with_the_best_there_is() -> None:
    # One layer: nothing hides, and a delay of a second each way is not shortened by any rate.
    table = LayerTable(layers=(Layer("a", 0.1, 0.2, 10**6),))
    today = Setting(table=table, num_workers=4, rate_bps=1e9, latency_s=1.0)
    advice = advise(today, 0.99, max_efficiency=MOST)
    by_links = change(advice, "links")
    assert not by_links.sufficient
    assert by_links.setting.rate_bps == max(ETHERNET_BPS)  # the best of those that are not enough
    assert advice.least_rate_bps is None
    assert change(advice, "batch").sufficient
    assert advice.best is not None
    assert advice.best.setting.scaling_factor == max(each.setting.scaling_factor for each in advice.changes)


def test_halving_doubling_is_advised_where_delays_count_and_connections_do_not_rest() -> None:
    far = replace(TODAY, table=derived_table("mobilenet"), rate_bps=25e9, latency_s=200e-6)
    fewer = change(advise(far, 0.5, max_efficiency=MOST), "collective")
    assert (fewer.sufficient, fewer.setting.collective) == (True, "halving_doubling")
    near = replace(far, latency_s=0.0)
    assert "collective" not in [each.name for each in advise(near, 0.9, max_efficiency=MOST).changes]
    resting = replace(far, batch_factor=60, latency_s=5e-3)
    assert (far.rests, resting.rests) == (False, True)
    assert replace(resting, collective="halving_doubling").scaling_factor > resting.scaling_factor
    assert "collective" not in [each.name for each in advise(resting, 0.9999, max_efficiency=MOST).changes]


def test_one_worker_needs_no_network() -> None:
    assert replace(TODAY, num_workers=1, rate_bps=1.0).scaling_factor == 1.0


def test_a_transport_that_headers_alone_limit_cannot_be_bettered() -> None:
    advice = advise(replace(TODAY, efficiency=MOST), 0.9, max_efficiency=MOST)
    assert "transport" not in [each.name for each in advice.changes]


@settings(max_examples=30)
@given(
    st.integers(2, 512),
    st.floats(1e8, 4e11),
    st.floats(0.05, 0.99),
    st.sampled_from(["resnet50", "vgg16", "bert_base", "mobilenet"]),
    st.floats(0, 1e-3),
)
def test_no_change_makes_it_worse(
    num_workers: int, rate_bps: float, target: float, name: str, latency_s: float
) -> None:
    today = Setting(
        table=derived_table(name),  # type: ignore[arg-type]
        num_workers=num_workers,
        rate_bps=rate_bps,
        efficiency=0.7,
        latency_s=latency_s,
    )
    advice = advise(today, target, max_efficiency=MOST)
    for each in advice.changes:
        assert 0 < each.setting.scaling_factor <= 1
        assert each.setting.scaling_factor > today.scaling_factor, each.name
    assert (advice.recommended is not None) == any(each.sufficient for each in advice.changes)


def test_the_optimizer_takes_no_longer_for_a_larger_batch() -> None:
    """Of 30 ms of passes and 50 ms of updating, eight times the batch leaves 290 ms, not 640."""
    table = LayerTable(layers=(Layer("a", 0.01, 0.02, 4 * 10**6),), update_s=0.05)
    large = Setting(table=table, num_workers=4, rate_bps=1e9, batch_factor=8)
    exposed_s = large.exchange_s(4 * 10**6)
    assert large.compute_s == pytest.approx(0.29)
    assert large.iteration_s == pytest.approx(0.29 + exposed_s)
    seldom = change(advise(large, 0.99, max_efficiency=MOST), "interval").setting
    assert seldom.scaling_factor >= 0.99 > replace(seldom, interval=seldom.interval - 1).scaling_factor


def test_input_that_takes_longer_than_computing_hides_communication() -> None:
    """As in a replay: a batch is read while the one before is computed with, and gradients are waited for."""
    table = LayerTable(layers=(Layer("a", 0.006, 0.01, 8 * 10**6),), input_s=0.19, host_to_device_s=0.01)
    slow = Setting(table=table, num_workers=4, rate_bps=1e9)
    exchange_s = slow.exchange_s(8 * 10**6)
    assert slow.alone_s == slow.iteration_s == pytest.approx(0.2)
    assert advise(slow, 0.99, max_efficiency=MOST).sufficient
    slower = replace(slow, rate_bps=1e8)
    assert slower.iteration_s == pytest.approx(0.016 + 10 * exchange_s)
    assert slower.scaling_factor == pytest.approx(0.2 / (0.016 + 10 * exchange_s))
    seldom = replace(slower, interval=5)
    assert seldom.iteration_s == pytest.approx((4 * 0.2 + 0.016 + 10 * exchange_s) / 5)
    least = change(advise(slower, 0.95, max_efficiency=MOST), "interval").setting
    assert least.scaling_factor >= 0.95 > replace(least, interval=least.interval - 1).scaling_factor


def test_a_trace_that_computes_nothing_is_refused() -> None:
    table = LayerTable(layers=(Layer("a", 0.0, 0.0, 4000),))
    with pytest.raises(SpecError, match="the trace says no times"):
        advise(Setting(table=table, num_workers=4, rate_bps=1e9), 0.9, max_efficiency=MOST)


@pytest.mark.parametrize(("rate_bps", "latency_s"), [(25e9, 1e308), (25e9, 1e20), (1e-310, 0.0), (1e-3, 0.0)])
def test_links_that_carry_next_to_nothing_are_refused(rate_bps: float, latency_s: float) -> None:
    with pytest.raises(SpecError, match="allowed: a higher rate, or a lower latency"):
        advise(replace(TODAY, rate_bps=rate_bps, latency_s=latency_s), 0.9, max_efficiency=MOST)


@pytest.mark.parametrize("rate_bps", [10.0, 10e3, 10e6, 10e9])
def test_the_slowest_links_that_are_enough_do_not_depend_on_todays(rate_bps: float) -> None:
    advice = advise(replace(TODAY, rate_bps=rate_bps), 0.9, max_efficiency=MOST)
    assert advice.recommended == change(advice, "links")
    assert advice.least_rate_bps == pytest.approx(26.2e9, rel=0.01)
    assert advice.least_rate_bps <= advice.recommended.setting.rate_bps


def test_local_sgd_pays_the_whole_exchange_once_in_so_many_iterations() -> None:
    seldom = replace(TODAY, interval=10)
    computing_s = 10 * TODAY.table.compute_s
    exchange_s = TODAY.exchange_s(TODAY.table.size_bytes)
    assert seldom.scaling_factor == pytest.approx(computing_s / (computing_s + exchange_s))
    assert seldom.iteration_s == pytest.approx((computing_s + exchange_s) / 10)


@pytest.mark.parametrize(("measured", "reached"), [(0.93, True), (0.899, True), (0.87, False), (None, False)])
def test_an_emulation_may_be_a_little_below_a_target_that_is_just_reached(
    measured: float | None, *, reached: bool
) -> None:
    verification = Verification(
        predicted=0.9001,
        target=0.9,
        measured=measured,
        missing=None,
        outcome="valid",
        reasons=(),
        dilation=1.0,
        record=None,
    )
    assert verification.reached == reached


@pytest.mark.parametrize("num_workers", [2, 8, 32])
def test_payloads_that_are_gathered_need_half_as_many_times_the_ratio_as_there_are_workers(num_workers: int) -> None:
    """Then a link carries as many bytes as it does of an all-reduce."""
    setting = replace(TODAY, num_workers=num_workers, compression_ratio=4.0)
    world, payload_bytes = World(num_workers=num_workers), round(10**9 / setting.gathered_ratio)
    reduced_s = bound_s("all_reduce", world=world, size_bytes=10**9 // 4, goodput_bps=1e9)
    gathered_s = bound_s("all_gather", world=world, size_bytes=num_workers * payload_bytes, goodput_bps=1e9)
    assert reduced_s == pytest.approx(gathered_s)
    assert setting.gathered_ratio == pytest.approx(4.0 * num_workers / 2)
