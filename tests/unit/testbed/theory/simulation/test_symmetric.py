"""Steps of workers that all do the same, against the messages they are made of."""

import numpy as np
import pytest

from testbed.theory.simulation.collectives import Exchangers, HostCosts, add_collective
from testbed.theory.simulation.fair_sharing import Floats
from testbed.theory.simulation.symmetric import SymmetricExchange, messages_of
from testbed.theory.simulation.transfers import TaskGraph
from tests.unit.testbed.theory.simulation.networks import link, network
from transports.collectives.base import COLLECTIVES
from transports.collectives.cost import sent_bytes

TOPOLOGIES = ("star", "ring", {"kind": "fat_tree", "k": 4}, {"kind": "leaf_spine", "leaves": 4, "oversubscription": 3})
RACKS = {"star": 16, "ring": 1, "fat_tree": 2, "leaf_spine": 4}


def both(  # type: ignore[no-untyped-def]
    kind, num_workers, size_bytes, topology, *, delay_s=0.0, begins_s=None, costs=None, overrides=None
) -> tuple[Floats, Floats]:
    """When each worker is done by steps and by messages; checks that links carry the same."""
    per_rack = RACKS[topology if isinstance(topology, str) else topology["kind"]]
    collective = COLLECTIVES.parse(kind)
    world = collective.world(num_workers, racks=tuple(rank // per_rack for rank in range(num_workers)))
    begins_s = np.zeros(num_workers) if begins_s is None else begins_s
    made, names = network(num_workers, topology, delay_s=delay_s, overrides=overrides)
    exchangers = Exchangers(names=names, wire_bytes=float, costs=costs or HostCosts())
    steps = SymmetricExchange(made, exchangers, world)
    by_steps = steps.all_reduce(collective, size_bytes // 4, 4, begins_s, sums_floats=True)
    graph = TaskGraph(made)
    entries = [graph.work(release_s=float(each)) for each in begins_s]
    exits = add_collective(graph, exchangers, collective, "all_reduce", world, size_bytes // 4, 4, entries)
    timeline = graph.run()
    assert steps.link_bytes == pytest.approx(timeline.link_bytes, rel=1e-3)
    return by_steps, timeline.arrived_s[exits]


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("delay_s", [0.0, 1e-3])
@pytest.mark.parametrize("size_bytes", [64 * 1024, 3_000_000, 40_000_000])
def test_a_ring_by_steps_takes_as_long_as_by_messages(topology: object, delay_s: float, size_bytes: int) -> None:
    costs = HostCosts(message_s=2e-5, addition_s_per_byte=1e-10)
    by_steps, by_messages = both("ring", 16, size_bytes, topology, delay_s=delay_s, costs=costs)
    assert by_steps == pytest.approx(by_messages, rel=2e-3)


def test_a_ring_whose_links_differ_and_whose_workers_begin_late() -> None:
    overrides = {("w3", "s0"): link(rate_bps=2e8), ("s0", "w7"): link(delay_s=5e-3)}
    begins_s = np.linspace(0, 0.02, 12) ** 2 * 100
    for size_bytes in (100_000, 5_000_000):
        by_steps, by_messages = both("ring", 12, size_bytes, "star", begins_s=begins_s, overrides=overrides)
        assert by_steps.max() == pytest.approx(by_messages.max(), rel=2e-3)


def test_a_worker_goes_on_while_what_it_sent_leaves_and_sends_after_that() -> None:
    """Two rings, the second begun by each worker when it has what the first gives it; the slow link is in use all the
    while, and its sender is through with the first before that has left."""
    made, names = network(4, "star", overrides={("w1", "s0"): link(rate_bps=1e8)})
    exchangers = Exchangers(names=names, wire_bytes=float)
    collective = COLLECTIVES.parse("ring")
    world, graph = collective.world(4), TaskGraph(made)
    steps = SymmetricExchange(made, exchangers, world)
    by_steps, through = [np.zeros(4)], [[graph.work() for _ in names]]
    for _ in range(2):
        by_steps.append(steps.all_reduce(collective, 400_000, 4, by_steps[-1], sums_floats=True))
        through.append(add_collective(graph, exchangers, collective, "all_reduce", world, 400_000, 4, through[-1]))
    timeline = graph.run()
    for begun, exits in zip(by_steps, through, strict=True):
        assert begun == pytest.approx(timeline.arrived_s[exits], rel=2e-3)
    slow_s = 6 * 8 * 400_000 / 1e8  # of one ring: 6 parts of a quarter of 1.6 MB
    assert by_steps[1].max() == pytest.approx(slow_s, rel=0.01)
    assert by_steps[1][1] < 0.9 * slow_s
    assert by_steps[2].max() == pytest.approx(2 * slow_s, rel=0.01)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_hierarchy_by_steps_is_near(topology: object) -> None:
    for size_bytes in (64 * 1024, 10_000_000):
        by_steps, by_messages = both("hierarchical", 16, size_bytes, topology, delay_s=1e-4)
        assert by_steps.max() == pytest.approx(by_messages.max(), rel=0.14)


def test_skipped_steps_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, names = network(24, {"kind": "fat_tree", "k": 6}, delay_s=1e-4)
    collective = COLLECTIVES.parse("ring")
    found = []
    for steady in (1e-9, -1.0):  # no two steps are equally long to less than nothing
        monkeypatch.setattr("testbed.theory.simulation.symmetric.STEADY", steady)
        exchange = SymmetricExchange(made, Exchangers(names=names, wire_bytes=float), collective.world(24))
        found.append((exchange.all_reduce(collective, 100_000, 4, np.zeros(24), sums_floats=True), exchange.num_steps))
    (quick_s, few), (slow_s, all_of_them) = found
    assert quick_s == pytest.approx(slow_s, rel=1e-9)
    assert few < all_of_them == 46


def test_messages_are_estimated_for_more_workers() -> None:
    for kind in ("ring", "tree", "all_to_all", "recursive_doubling"):
        collective = COLLECTIVES.parse(kind)
        world = collective.world(64)
        counted = sum(each.num_messages for each in sent_bytes(collective, "all_reduce", world, 250_000, 4).values())
        assert counted / 3 < messages_of(collective, world, 1_000_000) < 3 * counted
