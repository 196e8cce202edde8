"""Who sits where, and what does not fit."""

import itertools
import re
from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.plan.plan import Plan, make_plan

TWO_BY_TWO = {"switches": {"s0": 2, "s1": 2}, "links": [{"between": ["s0", "s1"]}]}


def plan(**keys: Any) -> Plan:
    return make_plan(validate({"name": "x", **keys}))


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        ({"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4}, "at most 8, or more `leaves` or `hosts_per_leaf`"),
        ({"kind": "fat_tree", "k": 2}, "9 do not fit the 2 places of topology fat_tree; allowed: at most 2"),
        ({"kind": "ring", "switches": 8}, "more `switches`"),
        ({"kind": "torus", "dims": [2, 4]}, "larger `dims`"),
        ({"kind": "file", "switches": {"s0": 8}}, "more places in `switches`"),
        ({"kind": "dumbbell", "bottleneck": 0.001}, "the link s0-s1 would have 100kbit"),
    ],
)
def test_a_topology_that_does_not_fit_is_refused_with_what_is_allowed(topology: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=re.escape(words)):
        plan(workers=9, topology=topology)


def test_workers_on_one_switch_are_in_one_rack() -> None:
    assert plan().world.racks == (0, 0, 0, 0)
    assert plan(topology="dumbbell").world.racks == (0, 0, 1, 1)
    assert plan(topology="dumbbell", placement="spread").world.racks == (0, 1, 0, 1)


def test_dedicated_servers_have_nodes_and_links_of_their_own() -> None:
    made = plan(workers=3, collective={"kind": "parameter_server", "servers": 2})
    assert made.participants == ("w0", "w1", "w2", "ps0", "ps1")
    assert {node.role for node in made.nodes if node.name.startswith("ps")} == {"server"}
    pushed = set(itertools.product(("w0", "w1", "w2"), ("ps0", "ps1")))
    assert set(made.traffic) == pushed | {(server, worker) for worker, server in pushed}
    each = {direction.hop[0]: direction.expected_bytes for direction in made.directions if direction.hop[1] == "s0"}
    assert each["ps0"] == pytest.approx(1.5 * made.prediction.gradient_bytes * 1514 / 1448, rel=0.01)
    entries = {process["name"]: process["entry"] for process in made.to_json()["processes"]}
    assert entries["w2"] == "testbed.worker.agent:main"
    assert entries["ps1"] == "testbed.worker.parameter_server:main"


def test_servers_need_places_as_workers_do() -> None:
    with pytest.raises(SpecError, match="workers: 3 and 3 parameter servers do not fit the 4 places"):
        plan(workers=3, collective={"kind": "parameter_server", "servers": 3}, topology={"kind": "file", **TWO_BY_TWO})


def test_co_located_servers_need_no_nodes_and_baselines_no_servers() -> None:
    assert len(plan(collective={"kind": "parameter_server", "placement": "co_located"}).participants) == 4
    with pytest.raises(SpecError, match=r"stack: gloo .* no use for collective parameter_server"):
        plan(collective="parameter_server", stack="gloo")
