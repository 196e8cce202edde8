"""When all ranks begin."""

import pytest

from transports.bench.procedure import appointment_s


def test_ranks_that_leave_a_barrier_nearly_at_once_make_no_appointment() -> None:
    assert appointment_s(4, None) is None
    assert appointment_s(4, 0.1e-3) is None


@pytest.mark.parametrize(("num_ranks", "num_messages"), [(1, 1), (2, 2), (3, 3), (4, 3), (8, 4)])
def test_whoever_leaves_last_hears_of_the_appointment_before(num_ranks: int, num_messages: int) -> None:
    assert appointment_s(num_ranks, 20e-3) == pytest.approx(num_messages * 21e-3)
