"""Halving and doubling's own promises; what every collective promises is in `tests/contract/test_collectives.py`."""

import pytest

from transports.collectives.cost import bound_s, sent_bytes
from transports.collectives.halving_doubling import HalvingDoubling
from transports.collectives.timing import alpha_beta_time_s


@pytest.mark.parametrize("num_workers", [2, 4, 8, 16])
def test_a_power_of_two_sends_as_little_as_a_ring(num_workers: int) -> None:
    collective = HalvingDoubling()
    counts = sent_bytes(collective, "all_reduce", collective.world(num_workers), 1600, 4)
    total = sum(count.payload_bytes for count in counts.values())
    assert total == 2 * (num_workers - 1) * 6400


@pytest.mark.parametrize(("num_workers", "num_rounds"), [(4, 4), (8, 6), (6, 6)])
def test_a_short_message_costs_alpha_per_round(num_workers: int, num_rounds: int) -> None:
    collective = HalvingDoubling()
    taken_s = alpha_beta_time_s(
        collective, "all_reduce", collective.world(num_workers), 16, 4, alpha_s=1.0, beta_s_per_byte=0.0
    )
    assert taken_s == pytest.approx(num_rounds)


@pytest.mark.parametrize(("size_bytes", "num_messages"), [(4096, 1), (64 * 1024, 1), (64 * 1024 + 32, 2)])
def test_an_exchange_is_cut_where_its_messages_stay_long(size_bytes: int, num_messages: int) -> None:
    """In the first round everybody sends half of it: whole, or what goes on in the next round before the rest."""
    collective = HalvingDoubling()
    steps = collective.schedule("all_reduce", collective.world(8), 0, size_bytes // 4, element_bytes=4)
    first = [step for step in steps if step.kind == "send" and step.peer == 4][:num_messages]
    assert sum(step.chunk.count for step in first) == size_bytes // 8
    sent = [step.peer for step in steps if step.kind == "send"]
    assert sent[: num_messages + 1] == [4] * num_messages + [2]


def test_a_long_one_is_near_the_bound() -> None:
    collective, world = HalvingDoubling(), HalvingDoubling().world(8)
    taken_s = alpha_beta_time_s(
        collective, "all_reduce", world, 6_250_000, 4, alpha_s=1e-4, beta_s_per_byte=8e-9, gamma_s_per_byte=0.2e-9
    )
    assert taken_s < 1.06 * bound_s("all_reduce", world=world, size_bytes=25_000_000, goodput_bps=1e9)
