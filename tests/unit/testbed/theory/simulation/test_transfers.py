import os
import time

import numpy as np
import pytest

from testbed.theory.simulation.transfers import StuckError, TaskGraph
from tests.unit.testbed.theory.simulation.networks import RATE_BPS, network

NUM_FLOWS = int(os.environ.get("TESTBED_SIMULATED_FLOWS", "5000"))
"""100000 for the full campaign: a fat tree of 1,024 hosts, about a minute."""
BUDGET_S = 60.0
"""Of a processor, the network and its paths included."""
BYTES_PER_S = RATE_BPS / 8


def test_two_flows_share_and_the_longer_one_then_has_the_link() -> None:
    star, names = network(3)
    graph = TaskGraph(star)
    short = graph.transfer(graph.path(names[0], names[2]), 1e6, 0.001)
    long = graph.transfer(graph.path(names[1], names[2]), 3e6, 0.0)
    timeline = graph.run()
    assert timeline.sent_s[short] == pytest.approx(2e6 / BYTES_PER_S)
    assert timeline.arrived_s[short] == pytest.approx(2e6 / BYTES_PER_S + 0.001)
    assert timeline.sent_s[long] == pytest.approx(4e6 / BYTES_PER_S)
    assert timeline.link_bytes[star.number(("s0", "w2"))] == pytest.approx(4e6)


def test_what_follows_starts_when_the_other_has_left_or_arrived() -> None:
    star, names = network(2)
    graph = TaskGraph(star)
    path = graph.path(names[0], names[1])
    first = graph.transfer(path, 1e6, 0.5, release_s=1.0)
    on_sent, on_arrival = graph.transfer(path, 1e6, 0.0), graph.work(0.25, resource=0)
    graph.after_sent(first, on_sent)
    graph.after(first, on_arrival)
    timeline = graph.run()
    assert timeline.start_s[on_sent] == pytest.approx(1 + 1e6 / BYTES_PER_S)
    assert timeline.arrived_s[on_arrival] == pytest.approx(1 + 1e6 / BYTES_PER_S + 0.5 + 0.25)
    assert timeline.critical_path() == [first, on_arrival]


def test_a_resource_does_one_thing_at_a_time() -> None:
    star, _ = network(2)
    graph = TaskGraph(star)
    tasks = [graph.work(1.0, resource=3) for _ in range(4)]
    elsewhere = graph.work(1.0, resource=4)
    timeline = graph.run()
    assert sorted(timeline.arrived_s[tasks]) == [1, 2, 3, 4]
    assert timeline.arrived_s[elsewhere] == 1
    assert len(timeline.critical_path()) == 4


def test_what_waits_for_itself_is_an_error() -> None:
    star, _ = network(2)
    graph = TaskGraph(star)
    first, second = graph.work(), graph.work()
    graph.after(first, second)
    graph.after(second, first)
    with pytest.raises(StuckError, match="2 of 2"):
        graph.run()


def test_a_limit_is_shared_like_a_link() -> None:
    star, names = network(4)
    graph = TaskGraph(star)
    limit = graph.limit(RATE_BPS / 2)
    tasks = [graph.transfer(graph.path(names[pair], names[pair + 1], limit), 1e6, 0.0) for pair in (0, 2)]
    timeline = graph.run()
    assert timeline.sent_s[tasks] == pytest.approx([4e6 / BYTES_PER_S] * 2)


def random_flows(num_hosts: int, num_flows: int) -> TaskGraph:
    fat, names = network(num_hosts, "fat_tree")
    random = np.random.default_rng(1)
    graph = TaskGraph(fat)
    for _ in range(num_flows):
        source, target = random.choice(num_hosts, 2, replace=False)
        graph.transfer(graph.path(names[source], names[target]), float(random.exponential(1e6)), 1e-5)
    return graph


def test_a_coarse_resolution_is_near_the_exact_times() -> None:
    exact, coarse = (random_flows(128, 1500).run(resolution=resolution) for resolution in (0.0, 0.01))
    assert coarse.makespan_s == pytest.approx(exact.makespan_s, rel=0.01)
    assert float(coarse.arrived_s.mean()) == pytest.approx(float(exact.arrived_s.mean()), rel=0.01)
    assert np.median(np.abs(coarse.arrived_s / exact.arrived_s - 1)) < 0.01


def test_many_flows_keep_every_link_within_its_rate() -> None:
    begun_s = time.process_time()
    graph = random_flows(1024 if NUM_FLOWS >= 100_000 else 128, NUM_FLOWS)
    timeline = graph.run(resolution=0.01)
    assert time.process_time() - begun_s < BUDGET_S
    assert np.isfinite(timeline.arrived_s).all()
    busy_s = 8 * timeline.link_bytes / graph.network.rates_bps
    assert busy_s.max() <= timeline.makespan_s <= 1.5 * busy_s.max()


def test_a_connection_sends_one_after_the_other() -> None:
    """Two messages of one connection, and one of another, share a link by halves and not by thirds."""
    star, _ = network(3)
    graph = TaskGraph(star)
    both, other = graph.path("w0", "w1"), graph.path("w0", "w2")
    first, second = (graph.transfer(both, 1_000_000, 0.0) for _ in range(2))
    apart = graph.transfer(other, 1_000_000, 0.0)
    graph.on_connection("w0", "w1", first)
    graph.on_connection("w0", "w1", second)
    graph.on_connection("w0", "w2", apart)
    timeline = graph.run()
    assert timeline.arrived_s[[first, apart, second]] == pytest.approx([0.016, 0.016, 0.024])
