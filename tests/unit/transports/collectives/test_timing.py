"""The cost model's links: token buckets, and links that several messages share."""

from dataclasses import replace

import pytest

from transports.collectives.base import COLLECTIVES, World
from transports.collectives.timing import FREE, Links, exchange_s

SHAPED = Links(
    s_per_byte=(1e-6,) * 4,
    paths=lambda pair: (pair[0], 2 + pair[1]),
    latency_s=lambda _: 0.0,
    burst_bytes=(1000.0,) * 4,
)


def there_and_back_s(num_bytes: int, links: Links) -> float:
    """To worker 0 and then back to worker 1, each direction over two links."""
    return exchange_s(COLLECTIVES.parse("tree"), "all_reduce", World(num_workers=2), num_bytes, 1, links, FREE)


def test_what_a_token_bucket_holds_passes_at_once_after_rest_and_nothing_else_is_faster() -> None:
    """Links on the way back rest until the first message has come."""
    without = replace(SHAPED, burst_bytes=())
    assert there_and_back_s(900, without) == pytest.approx(1800e-6)
    assert there_and_back_s(900, SHAPED) == pytest.approx(900e-6), "back in the burst"
    assert there_and_back_s(1600, SHAPED) == pytest.approx(3200e-6 - 1000e-6), "once, however many links"


def test_a_slow_way_to_a_link_leaves_the_rest_of_it_to_others() -> None:
    """Three workers send 750 bytes each over links that are together as fast as the receiver's."""
    slow = Links(
        s_per_byte=(3e-6, 3e-6, 3e-6, 3e-6, 1e-6, 1e-6, 1e-6, 1e-6),
        paths=lambda pair: (pair[0], 4 + pair[1]),
        latency_s=lambda _: 0.0,
    )
    taken_s = exchange_s(COLLECTIVES.parse("all_to_all"), "gather", World(num_workers=4), 3000, 1, slow, FREE)
    assert taken_s == pytest.approx(2.25e-3)


def test_participants_that_share_processors_wait_for_one() -> None:
    """Each of four sends to the other three and receives from them, twice: 12 messages of 1 ms, and nothing else."""
    costs = replace(FREE, message_s=1e-3)
    links = Links.star(4, rate_bps=1e15, latency_s=0.0)

    def taken_s(num_processors: int | None) -> float:
        world, collective = World(num_workers=4), COLLECTIVES.parse("all_to_all")
        return exchange_s(collective, "all_reduce", world, 16, 4, links, costs, num_processors=num_processors)

    assert taken_s(None) == taken_s(4) == taken_s(100)
    assert taken_s(1) == pytest.approx(4 * 12e-3)
    assert taken_s(2) == pytest.approx(2 * 12e-3, rel=0.1)
