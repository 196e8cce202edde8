"""Recursive doubling's own promises; what every collective promises is in `tests/contract/test_collectives.py`."""

import pytest

from transports.collectives.cost import sent_bytes
from transports.collectives.recursive_doubling import RecursiveDoubling
from transports.collectives.timing import alpha_beta_time_s


@pytest.mark.parametrize(("num_workers", "num_rounds"), [(2, 1), (4, 2), (8, 3), (16, 4)])
def test_everybody_sends_everything_once_a_round(num_workers: int, num_rounds: int) -> None:
    collective = RecursiveDoubling()
    counts = sent_bytes(collective, "all_reduce", collective.world(num_workers), 1000, 4)
    assert all(count.payload_bytes == 4000 for count in counts.values())
    assert len(counts) == num_workers * num_rounds


@pytest.mark.parametrize(("num_workers", "num_rounds"), [(4, 2), (8, 3), (5, 3), (9, 4), (7, 4)])
def test_a_short_message_costs_alpha_per_round(num_workers: int, num_rounds: int) -> None:
    collective = RecursiveDoubling()
    taken_s = alpha_beta_time_s(
        collective, "all_reduce", collective.world(num_workers), 1, 4, alpha_s=1.0, beta_s_per_byte=0.0
    )
    assert taken_s == pytest.approx(num_rounds)
