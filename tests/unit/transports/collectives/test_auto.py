"""Auto: the same choice everywhere, and a good one."""

import pytest
from pydantic import ValidationError

from transports.collectives.auto import NEAR, Auto
from transports.collectives.base import COLLECTIVES, World
from transports.collectives.cost import sent_bytes
from transports.collectives.costs import Costs
from transports.collectives.network_info import NetworkInfo
from transports.collectives.timing import alpha_beta_time_s

LINK = Auto().with_network_info(NetworkInfo(latency_s=50e-6, rate_bps=956e6))


def kind(auto: Auto, num_workers: int, size_bytes: int) -> str:
    return auto.chosen(auto.world(num_workers), size_bytes // 4, element_bytes=4).kind


@pytest.mark.parametrize("num_workers", [2, 3, 4, 7, 8, 16])
def test_short_buffers_take_few_rounds_and_long_ones_few_bytes(num_workers: int) -> None:
    assert kind(LINK, num_workers, 4) == "recursive_doubling"
    # Of three workers one has to hand its values over before, and to wait for the result after: a round more.
    assert kind(LINK, num_workers, 4096) == ("all_to_all" if num_workers == 3 else "recursive_doubling")
    assert kind(LINK, num_workers, 25_000_000) == "ring"


def test_a_long_way_makes_rounds_dear() -> None:
    near, far = (
        Auto().with_network_info(NetworkInfo(latency_s=latency_s, rate_bps=1e9)) for latency_s in (50e-6, 50e-3)
    )
    assert kind(near, 16, 4_000_000) == "ring"
    assert kind(far, 16, 4_000_000) != "ring"


def test_far_away_connections_begin_slowly() -> None:
    """25 MB at 1 Gbit/s and a round-trip time of 10 ms, idle before, measured with TCP cubic on 2026-11-23: the ring
    took 0.379 s, all_to_all 0.368 s and 0.418 s. (halving_doubling took 0.46 to 0.52 s before its
    long rounds were announced, decision 131.)"""
    far = Auto().with_network_info(NetworkInfo(latency_s=5e-3, rate_bps=956e6))
    world = far.world(4)
    assert far.cost_s("ring", world, 25_000_000) == pytest.approx(0.379, rel=0.05)
    assert far.cost_s("all_to_all", world, 25_000_000) == pytest.approx(0.385, rel=0.1)
    assert far.chosen(world, 6_250_000, element_bytes=4).kind == "ring"


@pytest.mark.parametrize(
    ("num_workers", "size_bytes", "best"),
    [(4, 2**20, "all_to_all"), (4, 4 * 2**20, "ring"), (4, 25_000_000, "ring"), (8, 25_000_000, "ring")],
)
def test_far_away_concurrent_senders_overflow_a_queue(num_workers: int, size_bytes: int, best: str) -> None:
    """The same links, one operation after another, all_to_all and ring: 1 MiB among four 23 and 39 ms, 4 MiB 60 and
    63 ms, 25 MB 322 and 321 ms; 25 MB among eight, where hundreds of segments are lost, 689 and 457 ms."""
    assert kind(Auto().with_network_info(NetworkInfo(latency_s=5e-3, rate_bps=956e6)), num_workers, size_bytes) == best


@pytest.mark.parametrize(
    ("num_workers", "size_bytes", "best"),
    [
        (4, 2**12, "recursive_doubling"),
        (4, 2**14, "recursive_doubling"),
        (8, 2**12, "recursive_doubling"),
        (8, 2**14, "recursive_doubling"),
        (8, 2**16, "halving_doubling"),
    ],
)
def test_participants_that_share_two_cores_send_few_messages(num_workers: int, size_bytes: int, best: str) -> None:
    """At 1 Gbit/s, measured in turns (medians of 21, milliseconds): ring, halving_doubling, recursive_doubling and
    all_to_all of 64 KiB among eight 3.4, 2.5, 3.4 and 3.8."""
    shared = Costs(num_cores=2)
    busy = Auto().with_network_info(
        NetworkInfo(latency_s=50e-6, rate_bps=956e6, burst_bytes=14_300, frame_bytes=45 * 1448, costs=shared)
    )
    assert kind(busy, num_workers, size_bytes) == best


@pytest.mark.parametrize("size_bytes", [4, 2**14, 2**18, 2**20, 2**24])
@pytest.mark.parametrize("latency_s", [50e-6, 5e-3])
def test_a_candidate_that_cannot_be_the_cheapest_is_not_priced_and_would_not_have_been_taken(
    size_bytes: int, latency_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    priced: list[str] = []
    cost_s = Auto.cost_s

    def noting(auto: Auto, kind: str, world: World, size_bytes: int) -> float:
        priced.append(kind)
        return cost_s(auto, kind, world, size_bytes)

    monkeypatch.setattr(Auto, "cost_s", noting)
    # An option of its own: choices are remembered by all of them.
    auto = Auto().with_network_info(
        NetworkInfo(latency_s=latency_s, rate_bps=1e9, burst_bytes=15_001, frame_bytes=65_160)
    )
    world = auto.world(8)
    taken = kind(auto, 8, size_bytes)
    costs_s = {each: cost_s(auto, each, world, size_bytes) for each in auto.candidates}
    assert taken == next(each for each in auto.candidates if costs_s[each] <= NEAR * min(costs_s.values()))
    if size_bytes == 2**24:
        assert "recursive_doubling" not in priced, "it moves three times the buffer"


def test_what_the_spec_says_is_not_overruled() -> None:
    requested = Auto.model_validate({"latency": "5ms", "rate": "10mbit"})
    with_network_info = requested.with_network_info(NetworkInfo(latency_s=1.0, rate_bps=1.0))
    assert (with_network_info.latency_s, with_network_info.rate_bps) == (requested.latency_s, requested.rate_bps)
    costs = Costs(message_s=1e-3, addition_s_per_byte=1e-9)
    measured = Auto().with_network_info(NetworkInfo(latency_s=1.0, rate_bps=1.0, queue_bytes=5e4, costs=costs))
    assert (measured.overhead_s, measured.queue_bytes) == (1e-3, 50_000)
    assert measured.addition_bps == pytest.approx(8e9)
    assert (
        Auto.model_validate({"rate": "10mbit"}).with_network_info(NetworkInfo(latency_s=1.0, rate_bps=1.0)).latency_s
        == 1.0
    )


def test_the_options_survive_the_way_to_the_workers() -> None:
    for auto in (Auto(), LINK):
        assert COLLECTIVES.parse(COLLECTIVES.dump(auto)) == auto


def test_the_schedule_is_that_of_the_chosen_one() -> None:
    world = LINK.world(4)
    for num_elements in (1, 1_000_000):
        chosen = LINK.chosen(world, num_elements, element_bytes=4)
        assert sent_bytes(LINK, "all_reduce", world, num_elements, 4) == sent_bytes(
            chosen, "all_reduce", world, num_elements, 4
        )


@pytest.mark.parametrize("num_workers", [2, 4, 5, 8])
def test_the_choice_is_near_the_best_by_the_alpha_beta_model_of_whole_schedules(num_workers: int) -> None:
    """Where ten segments fill the path: that model knows no windows."""
    auto = Auto.model_validate({"overhead": "0s"}).with_network_info(NetworkInfo(latency_s=50e-6, rate_bps=1e9))
    world = auto.world(num_workers)
    for num_elements in (1, 4096, 65_536, 1_000_000):
        times_s = {
            each: alpha_beta_time_s(
                COLLECTIVES.parse(each), "all_reduce", world, num_elements, 4, alpha_s=50e-6, beta_s_per_byte=8e-9
            )
            for each in auto.candidates
        }
        assert times_s[kind(auto, num_workers, 4 * num_elements)] <= 1.3 * min(times_s.values())


@pytest.mark.parametrize("candidate", ["ring", "halving_doubling"])
def test_a_large_buffer_is_priced_in_fewer_messages_and_costs_the_same(
    candidate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    priced_s = LINK.cost_s(candidate, LINK.world(4), 300_000_000)
    monkeypatch.setattr("transports.collectives.auto.NUM_PRICED_SEGMENTS", 10**9)
    assert LINK.cost_s(candidate, LINK.world(4), 300_000_000) == pytest.approx(priced_s, rel=0.02)


@pytest.mark.parametrize(
    ("candidates", "what"),
    [
        ([], "one or more of"),
        (["auto"], "one or more of"),
        (["gloo"], "one or more of"),
        (["parameter_server"], "serve"),
        (["in_network"], "needs an aggregator"),
        (["ring", "in_network"], "needs an aggregator"),
    ],
)
def test_candidates_that_cannot_be_are_refused(candidates: list[str], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        Auto.model_validate({"candidates": candidates})


def test_candidates_know_the_links_as_well() -> None:
    """A tree may have more under way where the way is long."""
    far = Auto.model_validate({"candidates": ("tree",)}).with_network_info(NetworkInfo(latency_s=10e-3, rate_bps=1e9))
    chosen = far.chosen(far.world(4), 2_500_000, element_bytes=4)
    assert chosen == COLLECTIVES.parse({"kind": "tree", "credit": "5MB"})
    assert far.cost_s("tree", far.world(4), 10_000_000) < 0.65, "0.73 with a credit of 128 KiB"
