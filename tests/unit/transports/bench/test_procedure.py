"""What comes before an operation that is timed."""

import pytest

from transports.bench.procedure import appointment_s, rest_s
from transports.collectives.network_info import NetworkInfo


def test_ranks_that_leave_a_barrier_nearly_at_once_make_no_appointment() -> None:
    assert appointment_s(4, None) is None
    assert appointment_s(4, 0.1e-3) is None


@pytest.mark.parametrize(("num_ranks", "num_messages"), [(1, 1), (2, 2), (3, 3), (4, 3), (8, 4)])
def test_whoever_leaves_last_hears_of_the_appointment_before(num_ranks: int, num_messages: int) -> None:
    assert appointment_s(num_ranks, 20e-3) == pytest.approx(num_messages * 21e-3)


def test_links_rest_until_their_shapers_have_caught_up() -> None:
    info = NetworkInfo(latency_s=0.0, rate_bps=1e8, burst_bytes=15_000, frame_bytes=10_000)
    assert rest_s(info) == pytest.approx(2e-3)


def test_links_that_nobody_shapes_do_not_rest() -> None:
    assert rest_s(None) == 0.0
    assert rest_s(NetworkInfo(latency_s=0.0, rate_bps=1e8)) == 0.0
