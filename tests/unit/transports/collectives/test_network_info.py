"""What is known of a network comes to each collective that asks, whole."""

import pytest

from transports.collectives.auto import Auto
from transports.collectives.base import COLLECTIVES
from transports.collectives.costs import Costs
from transports.collectives.network_info import NetworkInfo


def test_auto_gets_to_know_all_of_it() -> None:
    costs = Costs(message_s=1e-3, addition_s_per_byte=1e-9, num_cores=3)
    known = NetworkInfo(
        latency_s=2e-3, rate_bps=1e8, queue_bytes=5e4, burst_bytes=15_000, frame_bytes=14_480, costs=costs
    )
    auto = COLLECTIVES.parse("auto").with_network_info(known)
    assert isinstance(auto, Auto)
    assert (auto.latency_s, auto.rate_bps, auto.queue_bytes) == (2e-3, 1e8, 50_000)
    assert (auto.burst_bytes, auto.frame_bytes) == (15_000, 14_480)
    assert (auto.overhead_s, auto.cores) == (1e-3, 3)
    assert auto.addition_bps == pytest.approx(8e9)


def test_tensors_come_to_whoever_merges_them() -> None:
    cntk = COLLECTIVES.parse("cntk").with_network_info(NetworkInfo(latency_s=1.0, rate_bps=1.0), tensors=(3, 5))
    assert COLLECTIVES.dump(cntk)["tensors"] == [3, 5]


def test_a_link_needs_rest_until_its_burst_has_filled_again_after_a_super_frame() -> None:
    known = NetworkInfo(latency_s=0.0, rate_bps=1e8, burst_bytes=15_000, frame_bytes=10_000)
    assert known.rest_s == pytest.approx(2e-3)
    assert NetworkInfo(latency_s=0.0, rate_bps=1e8).rest_s == 0.0
