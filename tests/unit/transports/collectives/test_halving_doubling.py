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


def on_links(latency_s: float, rate_bps: float = 1e9) -> HalvingDoubling:
    return HalvingDoubling().with_network_info(NetworkInfo(latency_s=latency_s, rate_bps=rate_bps))


@pytest.mark.parametrize("alpha_s", [0.0, 400e-6, 1e-3, 10e-3])
def test_what_is_said_costs_nothing_on_links_that_are_known(alpha_s: float) -> None:
    """It travels while what is left of the round before does."""
    collective, size_bytes = on_links(alpha_s), 64 << 20
    taken_s = alpha_beta_time_s(
        collective, "all_reduce", collective.world(8), size_bytes // 4, 4, alpha_s=alpha_s, beta_s_per_byte=8e-9
    )
    assert taken_s == pytest.approx(2 * 7 / 8 * size_bytes * 8e-9 + 6 * alpha_s, rel=1e-3)


def test_where_more_is_left_than_travels_meanwhile_it_costs_the_rest_of_the_way() -> None:
    collective, size_bytes, alpha_s = HalvingDoubling(), 64 << 20, 10e-3
    taken_s = alpha_beta_time_s(
        collective, "all_reduce", collective.world(8), size_bytes // 4, 4, alpha_s=alpha_s, beta_s_per_byte=8e-9
    )
    left_s = 128 * 1024 * 8e-9
    assert taken_s == pytest.approx(2 * 7 / 8 * size_bytes * 8e-9 + 6 * alpha_s + 4 * (alpha_s - left_s), rel=1e-3)


@pytest.mark.parametrize(("size_bytes", "num_said"), [(200_000, 0), (500_000, 2), (4 << 20, 3)])
def test_the_first_round_is_announced_where_somebody_is_folded_into_the_other(size_bytes: int, num_said: int) -> None:
    """Member 5 of six, whose first peer gets all that worker 2 has."""
    collective = on_links(400e-6)
    steps = collective.schedule("all_reduce", collective.world(6), 5, size_bytes // 4, element_bytes=4)
    said = [step for step in steps if step.kind == "send" and step.chunk.buffer == "scratch"]
    assert len(said) == num_said
    assert all(step.peer == 3 and step.after == () for step in said[:1]), "there is nothing that it waits for itself"


@pytest.mark.parametrize(
    ("latency_s", "rate_bps", "size_bytes", "num_said"),
    [
        (400e-6, 40e6, 1 << 19, 3),  # all but the first, the shortest, and the one after that
        (400e-6, 40e6, 2 << 20, 4),
        (400e-6, 1e9, 1 << 20, 3),
        (400e-6, 1e9, 2 << 20, 4),
        (10e-3, 1e9, 16 << 20, 1),
        (10e-3, 1e9, 32 << 20, 3),
    ],
)
def test_a_round_is_long_if_the_links_take_more_than_two_round_trips_for_it(
    latency_s: float, rate_bps: float, size_bytes: int, num_said: int
) -> None:
    """2 MiB among eight at 40 Mbit/s took 1.1 to 1.4 s instead of 0.83, since its rounds were not announced."""
    collective = on_links(latency_s, rate_bps)
    steps = collective.schedule("all_reduce", collective.world(8), 3, size_bytes // 4, element_bytes=4)
    assert sum(step.kind == "send" and step.chunk.buffer == "scratch" for step in steps) == num_said


@pytest.mark.parametrize(("latency_s", "left_bytes"), [(400e-6, 50_000), (2e-3, 250_000)])
def test_a_round_is_announced_when_one_latency_of_the_round_before_is_left(latency_s: float, left_bytes: int) -> None:
    """With a half of it left, 2 MiB among eight at 40 Mbit/s took a third longer than links need."""
    collective, size_bytes = on_links(latency_s), 16 << 20
    steps = collective.schedule("all_reduce", collective.world(8), 3, size_bytes // 4, element_bytes=4)
    said = [step for step in steps if step.kind == "send" and step.chunk.buffer == "scratch"]
    assert [step.peer for step in said] == [1, 2, 1, 7]
    first = steps[steps.index(said[0]) :]
    sent = next(step for step in first if step.kind == "send" and step.chunk.buffer == "output")
    left = {each for each in sent.after if each.buffer == "output"} - set(said[0].after)
    assert sent.peer == said[0].peer
    assert sum(each.count for each in left) * 4 == left_bytes


def test_a_user_says_how_much_is_left() -> None:
    collective = COLLECTIVES.parse({"kind": "halving_doubling", "left": "8KiB"})
    assert not collective.goes_by_hosts
    assert collective.with_network_info(NetworkInfo(latency_s=1e-3, rate_bps=1e9)) == collective
    steps = collective.schedule("all_reduce", collective.world(8), 3, 1 << 18, element_bytes=4)
    assert 8 * 1024 in {4 * step.chunk.count for step in steps if step.kind == "reduce"}


def test_short_rounds_are_not_announced() -> None:
    collective = HalvingDoubling()
    steps = collective.schedule("all_reduce", collective.world(8), 3, 1 << 18, element_bytes=4)
    assert not any(step.chunk.buffer == "scratch" for step in steps)
