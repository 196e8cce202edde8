"""What an aggregating switch costs, and what a spec may say of it."""

from typing import Any

import pytest
from pydantic import ValidationError

from transports.channels.memory import MemoryStore
from transports.collectives.base import COLLECTIVES
from transports.collectives.in_network import InNetwork, following_s
from transports.collectives.ring import Ring
from transports.errors import OptionError
from transports.group import Group


def in_network(**options: object) -> InNetwork:
    collective = COLLECTIVES.parse({"kind": "in_network", **options})
    assert isinstance(collective, InNetwork)
    return collective


def test_a_worker_sends_each_chunk_once_as_one_frame() -> None:
    collective = in_network()
    assert collective.frame_bytes == 1080
    assert collective.wire_bytes(256 * 10) == 10800
    assert collective.wire_bytes(1) == 1080
    assert in_network(num_elements=64).frame_bytes == 312
    assert [in_network(payload=each).wire_bytes(1025) for each in ("fp16", "int8")] == [3 * 1080, 2 * 1080]
    assert [in_network(payload=each).payload_bytes(1025) for each in ("fp16", "int8")] == [3 * 1024, 2 * 1024]


@pytest.mark.parametrize("num_elements", [64, 256])
def test_long_reductions_come_near_the_bound(num_elements: int) -> None:
    collective = in_network(num_elements=num_elements)
    payload = num_elements * 100_000
    bound_s = payload * 4 * 8 / (100e6 * 4 * num_elements / (56 + 4 * num_elements))
    assert collective.time_s(payload, rate_bps=100e6, alpha_s=100e-6) == pytest.approx(bound_s, rel=1e-3)


def test_a_pool_that_is_too_small_for_the_round_trip_limits_the_rate() -> None:
    few, many = in_network(num_slots=16), in_network(num_slots=1024)
    assert few.time_s(10**6, rate_bps=1e9, alpha_s=5e-3) > 5 * many.time_s(10**6, rate_bps=1e9, alpha_s=5e-3)


@pytest.mark.parametrize("num_slots", [16, 128])
@pytest.mark.parametrize("num_chunks", [1, 64, 128, 129, 200, 256, 1000])
@pytest.mark.parametrize("round_trip_s", [100e-6, 10e-3])
def test_a_chunk_waits_for_the_one_that_had_its_slot_and_for_no_other(
    num_slots: int, num_chunks: int, round_trip_s: float
) -> None:
    """A pool that was not used up was counted as if it were: 80 % too much for 128 chunks 10 ms from their switch."""
    frame_s = 8.64e-6
    sent_s: list[float] = []
    for chunk in range(num_chunks):
        freed_s = sent_s[chunk - num_slots] + round_trip_s if chunk >= num_slots else 0.0
        sent_s.append(max(freed_s, sent_s[-1] + frame_s if sent_s else 0.0))
    found_s = following_s(num_chunks, num_slots=num_slots, frame_s=frame_s, round_trip_s=round_trip_s)
    assert found_s == pytest.approx(sent_s[-1])


def test_the_window_may_be_a_name_and_everything_comes_back_from_plain_data() -> None:
    collective = in_network(window="aimd", dataplane="reference", at="s0")
    assert collective.window.kind == "aimd"
    assert in_network(window={"kind": "delay", "target": "2ms"}).window.target_s == 2e-3
    assert COLLECTIVES.parse(COLLECTIVES.dump(collective)) == collective


@pytest.mark.parametrize(
    ("window", "option"),
    [
        ({"initial": 4}, "initial"),
        ({"kind": "fixed", "initial": 4}, "initial"),
        ({"kind": "aimd", "target": "5ms"}, "target"),
        ({"target": "5ms"}, "target"),
    ],
)
def test_an_option_that_the_window_s_kind_does_not_read_is_refused(window: dict[str, Any], option: str) -> None:
    with pytest.raises(ValidationError, match=f"{option}: .*say kind: "):
        in_network(window=window)


@pytest.mark.parametrize(
    "window", ["fixed", "aimd", {"kind": "aimd", "initial": 4}, {"kind": "delay", "target": "5ms"}]
)
def test_a_window_comes_back_from_its_plain_data(window: Any) -> None:
    collective = in_network(window=window)
    assert COLLECTIVES.parse(COLLECTIVES.dump(collective)) == collective


def test_it_is_informed_where_its_own_aggregator_is() -> None:
    collective, other = in_network(dataplane="reference"), in_network(num_slots=64)
    reported = collective.with_assignment({collective.identity: ("10.0.0.9", 1), other.identity: ("10.0.0.13", 0)})
    assert (reported.aggregator, reported.aggregator_index) == ("10.0.0.9", 1)
    assert reported.identity == collective.identity
    assert Ring().with_assignment({collective.identity: ("10.0.0.9", 1)}) == Ring()


def test_what_a_run_makes_beside_the_experiment_is_refused_where_nobody_makes_it() -> None:
    group = Group(name="g", rank=0, size=2, address="127.0.0.1", store=MemoryStore(), timeout_s=1)
    collective = in_network(aggregator="10.0.0.9", tenants=[{"workers": ["x0"]}])
    with pytest.raises(OptionError, match="tenants"):
        collective.reducer(group)
    assert collective.with_assignment({collective.identity: ("10.0.0.9", 0)}).tenants == ()
    with pytest.raises(ValueError, match="no power of two"):
        in_network(tenants=[{"workers": ["x0"], "num_slots": 100}])


def test_a_pool_is_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="no power of two"):
        in_network(num_slots=100)


def test_further_groups_use_a_ring() -> None:
    assert in_network(segment_bytes="64KiB").of_further_group() == Ring.model_validate({"segment_bytes": "64KiB"})


def test_without_an_aggregator_it_says_who_makes_one() -> None:
    group = Group(name="g", rank=0, size=2, address="127.0.0.1", store=MemoryStore(), timeout_s=1)
    with pytest.raises(OptionError, match="testbed run"):
        in_network().reducer(group)
