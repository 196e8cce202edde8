"""Closed forms are what the cost model says where hosts cost nothing."""

import pytest

from testbed.theory.even_exchanges import EVEN_EXCHANGES, BetweenWorkers
from transports.collectives.base import COLLECTIVES, World
from transports.collectives.costs import FREE
from transports.collectives.network_info import NetworkInfo
from transports.collectives.timing import Links, exchange_s


@pytest.mark.parametrize("size_bytes", [64 << 10, 1 << 20, 8_000_000, 100_000_000])
@pytest.mark.parametrize(("rate_bps", "latency_s"), [(1e9, 0.0), (1e9, 1e-3), (25e9, 1e-4), (10e9, 5e-3)])
@pytest.mark.parametrize("num_workers", [2, 4, 8, 16])
@pytest.mark.parametrize("name", list(EVEN_EXCHANGES))
def test_a_closed_form_is_the_cost_models_time(
    name: BetweenWorkers, num_workers: int, rate_bps: float, latency_s: float, size_bytes: int
) -> None:
    links = Links.star(num_workers, rate_bps=rate_bps, latency_s=latency_s)
    world, collective = World(num_workers=num_workers), COLLECTIVES.parse(name)
    collective = collective.with_network_info(NetworkInfo(latency_s=latency_s, rate_bps=rate_bps))
    said_s = exchange_s(collective, "all_reduce", world, size_bytes // 4, 4, links, FREE)
    found_s = EVEN_EXCHANGES[name](num_workers, size_bytes, rate_bps=rate_bps, latency_s=latency_s)
    assert found_s == pytest.approx(said_s, rel=0.001)
