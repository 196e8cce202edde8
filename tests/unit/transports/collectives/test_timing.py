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


def one_way_s(num_bytes: int, links: Links) -> float:
    """From worker 0 to worker 1."""
    return exchange_s(COLLECTIVES.parse("tree"), "broadcast", World(num_workers=2), num_bytes, 1, links, FREE)


def test_what_a_token_bucket_holds_passes_at_once_and_nothing_else_is_faster() -> None:
    assert one_way_s(900, SHAPED) == 0.0, "in the burst"
    assert one_way_s(1600, SHAPED) == pytest.approx(600e-6)
    whole_s = one_way_s(10_000, replace(SHAPED, burst_bytes=()))
    assert one_way_s(10_000, SHAPED) == pytest.approx(whole_s - 1000e-6), "once, however many links and bytes"


def test_a_slow_way_to_a_link_leaves_the_rest_of_it_to_others() -> None:
    """Three workers send to the fourth over links that are together as fast as its own."""
    slow = Links(
        s_per_byte=(3e-6, 3e-6, 3e-6, 3e-6, 1e-6, 1e-6, 1e-6, 1e-6),
        paths=lambda pair: (pair[0], 4 + pair[1]),
        latency_s=lambda _: 0.0,
    )
    taken_s = exchange_s(COLLECTIVES.parse("all_to_all"), "gather", World(num_workers=4), 3000, 1, slow, FREE)
    assert taken_s == pytest.approx(9e-3, rel=1e-2)
