"""Halving and doubling's own promises; what every collective promises is in `tests/contract/test_collectives.py`."""

import pytest

from transports.collectives.base import COLLECTIVES
from transports.collectives.cost import bound_s, sent_bytes
from transports.collectives.halving_doubling import HalvingDoubling
from transports.collectives.network_info import NetworkInfo
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


@pytest.mark.parametrize("num_workers", [4, 6, 8])
def test_a_long_round_begins_when_the_other_has_said_that_it_is_through_with_the_one_before(num_workers: int) -> None:
    """So that nobody is sent to by two, whoever is late."""
    collective, size_bytes = HalvingDoubling(), 64 << 20
    world = collective.world(num_workers)
    for worker in range(num_workers):
        steps = collective.schedule("all_reduce", world, worker, size_bytes // 4, element_bytes=4)
        peers = list(dict.fromkeys(step.peer for step in steps if step.chunk.buffer == "scratch"))
        said = {step.chunk: step.peer for step in steps if step.kind == "receive" and step.chunk.buffer == "scratch"}
        waiting = [step for step in steps if any(each in said for each in step.after)]
        assert all(said[each] == step.peer for step in waiting for each in step.after if each in said)
        if num_workers == 6 and worker in (0, 2):
            assert not peers, "others take part for these"
        else:
            assert {step.peer for step in waiting} == set(peers)
            assert all(step.kind == "send" and step.chunk.buffer == "output" for step in waiting)


def test_what_is_said_costs_nothing_where_a_message_takes_longer_than_the_way() -> None:
    collective, world, size_bytes = HalvingDoubling(), HalvingDoubling().world(8), 64 << 20

    def taken_s(alpha_s: float) -> float:
        return alpha_beta_time_s(
            collective, "all_reduce", world, size_bytes // 4, 4, alpha_s=alpha_s, beta_s_per_byte=8e-9
        )

    bytes_s = 2 * 7 / 8 * size_bytes * 8e-9
    assert taken_s(1e-3) == pytest.approx(bytes_s + 6 * 1e-3, rel=1e-3)
    message_s = 512 * 1024 * 8e-9
    assert taken_s(10e-3) == pytest.approx(bytes_s + 6 * 10e-3 + 4 * (10e-3 - message_s), rel=1e-3)


@pytest.mark.parametrize(("size_bytes", "num_said"), [(100_000, 0), (200_000, 1), (4 << 20, 3)])
def test_the_first_round_is_announced_where_somebody_is_folded_into_the_other(size_bytes: int, num_said: int) -> None:
    """Member 5 of six, whose first peer gets all that worker 2 has."""
    collective = HalvingDoubling()
    steps = collective.schedule("all_reduce", collective.world(6), 5, size_bytes // 4, element_bytes=4)
    said = [step for step in steps if step.kind == "send" and step.chunk.buffer == "scratch"]
    assert len(said) == num_said
    assert all(step.peer == 3 and step.after == () for step in said[:1]), "there is nothing that it waits for itself"


def test_short_rounds_are_not_announced() -> None:
    collective = HalvingDoubling()
    steps = collective.schedule("all_reduce", collective.world(8), 3, 1 << 18, element_bytes=4)
    assert not any(step.chunk.buffer == "scratch" for step in steps)


@pytest.mark.parametrize(
    ("latency_s", "rate_bps", "announced_bytes"),
    [(400e-6, 40e6, 64 << 10), (400e-6, 1e9, 200_000), (10e-3, 1e9, 512 << 10)],
)
def test_what_is_announced_goes_by_what_the_links_carry_in_two_round_trips(
    latency_s: float, rate_bps: float, announced_bytes: int
) -> None:
    """2 MiB among eight at 40 Mbit/s took 1.4 s instead of 0.8, since no round of it was longer than 1 MiB but one."""
    known = HalvingDoubling().with_network_info(NetworkInfo(latency_s=latency_s, rate_bps=rate_bps))
    assert known.announced_bytes == announced_bytes


def test_an_announcement_costs_nothing_on_links_that_are_known() -> None:
    size_bytes, alpha_s, rate_bps = 4 << 20, 400e-6, 1e9
    known = HalvingDoubling().with_network_info(NetworkInfo(latency_s=alpha_s, rate_bps=rate_bps))
    taken_s = [
        alpha_beta_time_s(
            each, "all_reduce", each.world(8), size_bytes // 4, 4, alpha_s=alpha_s, beta_s_per_byte=8 / rate_bps
        )
        for each in (known, HalvingDoubling())
    ]
    steps = [
        list(each.schedule("all_reduce", each.world(8), 0, size_bytes // 4, element_bytes=4))
        for each in (known, HalvingDoubling())
    ]
    assert len(steps[0]) > len(steps[1]), "some more are announced"
    assert taken_s[0] == pytest.approx(taken_s[1], rel=1e-3)


def test_a_user_may_have_announced_what_is_short() -> None:
    requested = COLLECTIVES.parse({"kind": "halving_doubling", "announced": "8KiB"})
    collective = requested.with_network_info(NetworkInfo(latency_s=1e-3, rate_bps=1e9))
    steps = collective.schedule("all_reduce", collective.world(8), 3, 1 << 15, element_bytes=4)
    assert any(step.chunk.buffer == "scratch" for step in steps)
