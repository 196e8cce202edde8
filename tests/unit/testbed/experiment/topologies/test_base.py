"""What holds for every topology."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.experiment.placements.base import PLACEMENTS
from testbed.experiment.topologies.base import TOPOLOGIES, Fabric
from testbed.plan.paths import next_hops, paths

FILE = {
    "kind": "file",
    "switches": {"s0": 20, "s1": 20, "s2": 0, "s7": 24},
    "links": [{"between": ["s0", "s1"]}, {"between": ["s1", "s2"], "rate_factor": 0.5}, {"between": ["s7", "s2"]}],
}
INFRAGRAPH = {
    "kind": "infragraph",
    "switches": {"s0": "leaf.0", "s1": "leaf.1", "s2": "spine.0"},
    "hosts": [
        {"name": f"host.{number}", "at": f"s{number % 2}", "link": {"rate": "10gbit", "delay": "1us"}}
        for number in range(24)
    ],
    "links": [{"between": [leaf, "s2"], "link": {"rate": "40gbit"}} for leaf in ("s0", "s1")],
    "notes": ["a document"],
}
SPECS: list[dict[str, Any]] = [
    {"kind": "star"},
    {"kind": "dumbbell"},
    {"kind": "leaf_spine", "leaves": 3, "spines": 2},
    {"kind": "leaf_spine", "leaves": 5, "spines": 4, "oversubscription": 3},
    {"kind": "leaf_spine", "leaves": 2, "spines": 1, "hosts_per_leaf": 8},
    {"kind": "fat_tree", "k": 2},
    {"kind": "fat_tree", "k": 4},
    {"kind": "fat_tree", "k": 6},
    {"kind": "ring"},
    {"kind": "ring", "switches": 9},
    {"kind": "torus", "dims": [2, 2]},
    {"kind": "torus", "dims": [3, 5]},
    {"kind": "torus", "dims": [2, 3, 4]},
    FILE,
    INFRAGRAPH,
]
SPECS += [{"kind": kind} for kind in TOPOLOGIES.kinds() if kind not in {spec["kind"] for spec in SPECS}]
"""Whatever else there is, as it is by default."""


@pytest.mark.parametrize("kind", TOPOLOGIES.kinds())
def test_every_worker_has_a_place_and_every_trunk_two_switches(kind: str) -> None:
    fabric = made(next(spec for spec in SPECS if spec["kind"] == kind), 2)
    assert len(fabric.places) >= 2
    assert set(fabric.places) <= set(fabric.switches)
    assert {end for trunk in fabric.trunks for end in (trunk.first, trunk.second)} <= set(fabric.switches)


def made(spec: dict[str, Any], num_workers: int) -> Fabric:
    return TOPOLOGIES.parse(spec).fabric(num_workers)


@settings(max_examples=60)
@given(
    spec=st.sampled_from(SPECS),
    placement=st.sampled_from(PLACEMENTS.kinds()),
    num_workers=st.integers(1, 24),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_worker_reaches_every_other_without_loops(
    spec: dict[str, Any], placement: str, num_workers: int, seed: int
) -> None:
    fabric = made(spec, num_workers)
    num_workers = min(num_workers, len(fabric.places))
    network = fabric.network(PLACEMENTS.parse(placement).attach(fabric.places, num_workers, seed=seed))
    links = {(edge.first, edge.second) for edge in network.edges}
    links |= {(second, first) for first, second in links}
    hops = next_hops(network)
    assert len(hops) == num_workers
    for towards in hops.values():
        assert len(towards) == len(network.nodes) - 1
    found = paths(hops)
    assert len(found) == num_workers * (num_workers - 1)
    for (source, target), path in found.items():
        assert path.stages[0] == (source,)
        assert path.stages[-1] == (target,)
        visited = [node for stage in path.stages for node in stage]
        assert len(set(visited)) == len(visited)
        assert set(path.shares) <= links
        for earlier, later in zip(path.stages, path.stages[1:], strict=False):
            assert sum(path.shares.get((a, b), 0) for a in earlier for b in later) == 1
        # Forward and back have the same length.
        assert len(found[target, source].stages) == len(path.stages)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec["kind"])
def test_links_are_distinct_and_names_are_short(spec: dict[str, Any]) -> None:
    fabric = made(spec, 8)
    pairs = [frozenset((edge.first, edge.second)) for edge in fabric.trunks]
    assert len(set(pairs)) == len(pairs)
    assert all(len(pair) == 2 for pair in pairs)
    assert len(set(fabric.switches)) == len(fabric.switches)
    assert {name for pair in pairs for name in pair} | set(fabric.places) <= set(fabric.switches)
    assert all(len(f"{name}-eth127") <= 15 for name in fabric.switches)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec["kind"])
def test_dumped_options_parse_to_the_same_topology(spec: dict[str, Any]) -> None:
    topology = TOPOLOGIES.parse(spec)
    assert TOPOLOGIES.parse(TOPOLOGIES.dump(topology)) == topology
