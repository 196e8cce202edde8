"""Simulated schedules against closed forms: within a thousandth."""

from math import log2
from typing import Any

import pytest

from testbed.theory.even_exchanges import halving_doubling_s
from testbed.theory.simulation.collectives import Exchangers, HostCosts, add_collective
from testbed.theory.simulation.transfers import TaskGraph
from tests.unit.testbed.theory.simulation.networks import RATE_BPS, network
from transports.collectives.base import COLLECTIVES, Collective, Operation
from transports.collectives.network_info import NetworkInfo

BYTES_PER_S = RATE_BPS / 8
CLOSE = 1e-3


def simulated_s(
    collective: Collective | str | dict[str, Any],
    num_workers: int,
    size_bytes: int,
    *,
    delay_s: float = 0.0,
    operation: Operation = "all_reduce",
    costs: HostCosts | None = None,
) -> float:
    """On a star whose links each have that delay."""
    parsed = collective if isinstance(collective, Collective) else COLLECTIVES.parse(collective)
    world = parsed.world(num_workers)
    star, names = network(num_workers, delay_s=delay_s, num_servers=world.num_servers)
    graph = TaskGraph(star)
    exchangers = Exchangers(names=names, wire_bytes=float, costs=costs or HostCosts())
    entries = [graph.work() for _ in names]
    add_collective(graph, exchangers, parsed, operation, world, size_bytes // 4, 4, entries)
    return graph.run().makespan_s


@pytest.mark.parametrize("num_workers", [2, 4, 8, 16])
@pytest.mark.parametrize("delay_s", [0.0, 1e-3])
def test_ring(num_workers: int, delay_s: float) -> None:
    size_bytes = 16_000 * num_workers  # so short that a part is one message
    expected_s = 2 * (num_workers - 1) * (size_bytes / num_workers / BYTES_PER_S + 2 * delay_s)
    assert simulated_s("ring", num_workers, size_bytes, delay_s=delay_s) == pytest.approx(expected_s, rel=CLOSE)


@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_segments_of_a_ring_hide_latency(num_workers: int) -> None:
    size_bytes = num_workers * 20 * 512 * 1024
    part_s = size_bytes / num_workers / BYTES_PER_S
    expected_s = 2 * (num_workers - 1) * part_s + 2 * 1e-3  # the way of the last message alone
    assert simulated_s("ring", num_workers, size_bytes, delay_s=1e-3) == pytest.approx(expected_s, rel=CLOSE)


@pytest.mark.parametrize("num_workers", [2, 4, 8, 16])
@pytest.mark.parametrize("delay_s", [0.0, 1e-3])
def test_halving_doubling_in_rounds(num_workers: int, delay_s: float) -> None:
    size_bytes = 800_000  # no round so long that it is announced
    expected_s = 2 * ((num_workers - 1) / num_workers * size_bytes / BYTES_PER_S + log2(num_workers) * 2 * delay_s)
    found_s = simulated_s("halving_doubling", num_workers, size_bytes, delay_s=delay_s)
    assert found_s == pytest.approx(expected_s, rel=CLOSE)


@pytest.mark.parametrize("num_workers", [4, 8, 16])
@pytest.mark.parametrize("delay_s", [0.0, 1e-3, 20e-3])
def test_halving_doubling_in_rounds_that_are_announced(num_workers: int, delay_s: float) -> None:
    size_bytes = 64 << 20
    known = NetworkInfo(latency_s=2 * delay_s, rate_bps=RATE_BPS)
    collective = COLLECTIVES.parse("halving_doubling").with_network_info(known)
    found_s = simulated_s(collective, num_workers, size_bytes, delay_s=delay_s)
    expected_s = halving_doubling_s(num_workers, size_bytes, rate_bps=RATE_BPS, latency_s=2 * delay_s)
    assert found_s == pytest.approx(expected_s, rel=CLOSE)


@pytest.mark.parametrize("num_workers", [2, 4, 8, 16])
def test_tree_reduces_and_broadcasts(num_workers: int) -> None:
    size_bytes, delay_s = 32_000, 1e-3
    one_s = size_bytes / BYTES_PER_S
    levels = int(log2(num_workers))
    reduced_s = simulated_s("tree", num_workers, size_bytes, delay_s=delay_s, operation="reduce")
    assert reduced_s == pytest.approx(levels * (one_s + 2 * delay_s), rel=CLOSE)
    broadcast_s = simulated_s("tree", num_workers, size_bytes, delay_s=delay_s, operation="broadcast")
    # A parent's messages to its children share its link, and end together.
    assert broadcast_s == pytest.approx(sum(range(levels + 1)) * one_s + levels * 2 * delay_s, rel=CLOSE)


@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_one_parameter_server(num_workers: int) -> None:
    size_bytes = 10_000_000
    expected_s = 2 * (num_workers * size_bytes / BYTES_PER_S + 2 * 1e-3)
    found_s = simulated_s("parameter_server", num_workers, size_bytes, delay_s=1e-3)
    assert found_s == pytest.approx(expected_s, rel=CLOSE)


@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_recursive_doubling(num_workers: int) -> None:
    size_bytes = 32_000
    expected_s = log2(num_workers) * (size_bytes / BYTES_PER_S + 2 * 1e-3)
    found_s = simulated_s("recursive_doubling", num_workers, size_bytes, delay_s=1e-3)
    assert found_s == pytest.approx(expected_s, rel=CLOSE)


def test_hosts_cost_time_for_messages_and_additions() -> None:
    free_s = simulated_s("ring", 2, 32_000)
    costs = HostCosts(message_s=1e-4, addition_s_per_byte=1e-9)
    assert simulated_s("ring", 2, 32_000, costs=costs) == pytest.approx(free_s + 2 * 1e-4 + 16_000 * 1e-9, rel=CLOSE)


@pytest.mark.parametrize("kind", [kind for kind in COLLECTIVES.kinds() if kind != "in_network"])
def test_every_collective_ends_and_loses_nothing(kind: str) -> None:
    parsed = COLLECTIVES.parse(kind)
    assert simulated_s(parsed, 5, 200_000) >= 200_000 / BYTES_PER_S * (1 - CLOSE)
