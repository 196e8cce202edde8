"""The interval is Wilson's, and as many packets are sent as the loss and the time ask for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.calibration.losses import MIN_PACKETS, LossMeasurement, num_packets_for, wilson


def test_a_published_interval() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263 at 95 %.
    assert wilson(81, 263, z=1.959964) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20, z=1.959964) == pytest.approx((0.0, 0.1611), abs=1e-4)


@given(num_packets=st.integers(1, 100_000), share=st.floats(0, 1), z=st.floats(0.1, 5))
def test_the_interval_holds_the_share_and_widens_with_confidence(num_packets: int, share: float, z: float) -> None:
    num_lost = round(share * num_packets)
    low, high = wilson(num_lost, num_packets, z=z)
    assert 0 <= low <= num_lost / num_packets + 1e-9
    assert num_lost / num_packets - 1e-9 <= high <= 1
    wider = wilson(num_lost, num_packets, z=z + 1)
    assert wider[0] <= low + 1e-12
    assert wider[1] >= high - 1e-12


def test_a_rarer_loss_needs_more_packets_within_the_time() -> None:
    assert num_packets_for(0.05, 1e9, limit_s=10) == 8_000
    assert num_packets_for(0.01, 1e9, limit_s=10) == 40_000
    assert num_packets_for(0.0001, 1e9, limit_s=2) == 40_000  # 20,000 in a second
    assert num_packets_for(0.01, 1e6, limit_s=0.1) == MIN_PACKETS


def test_what_was_requested_holds_between_the_bounds() -> None:
    measured = LossMeasurement(requested=0.01, num_packets=1000, num_lost=10, low=0.005, high=0.02)
    assert measured.holds
    assert not LossMeasurement(requested=0.03, num_packets=1000, num_lost=10, low=0.005, high=0.02).holds
