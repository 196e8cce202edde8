from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.spec.experiment import validate
from testbed.topologies.base import TOPOLOGIES


def test_switches_places_and_links_are_as_written() -> None:
    fabric = TOPOLOGIES.parse(
        {
            "kind": "file",
            "switches": {"s0": 2, "s5": 1},
            "links": [{"between": ["s0", "s5"], "rate_factor": 0.25}],
        }
    ).fabric(3)
    assert fabric.switches == ("s0", "s5")
    assert fabric.places == ("s0", "s0", "s5")
    assert [(edge.name, edge.rate_factor) for edge in fabric.trunks] == [("s0-s5", 0.25)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "topology.switches: required"),
        ({"switches": {"core": 2}}, "topology.switches: 'core' is no switch's name; allowed: s0"),
        ({"switches": {"s0": -1}}, "topology.switches.s0: "),
        ({"switches": {"s0": 1, "s1": 1}}, "topology: links: no path leads from s0 to s1"),
        (
            {"switches": {"s0": 1}, "links": [{"between": ["s0", "s9"]}]},
            "topology: links.0.between: there is no switch 's9'; allowed: s0",
        ),
        (
            {"switches": {"s0": 1}, "links": [{"between": ["s0", "s0"]}]},
            "topology.links.0.between: a link joins two switches",
        ),
        (
            {"switches": {"s0": 1, "s1": 1}, "links": [{"between": ["s0", "s1"]}, {"between": ["s1", "s0"]}]},
            "topology: links.1.between: s1 and s0 are linked already",
        ),
        (
            {"switches": {"s0": 1, "s1": 1}, "links": [{"between": ["s0", "s1"], "rate": 1}]},
            "topology.links.0.rate: unknown key; allowed: between, rate_factor",
        ),
        ({"switches": {"s0": 1}, "links": [{"between": ["s0"]}]}, "topology.links.0.between"),
        ({"switches": ["s0"]}, "topology.switches: "),
        ({"switches": {"s0": 1}, "links": [{"between": ["s0", "s0"], "rate_factor": 0}]}, "rate_factor"),
        ({"switches": {"s0": 1}, "nodes": []}, "topology.nodes: unknown key; allowed: links, switches"),
    ],
)
def test_bad_input_names_the_field_and_what_is_allowed(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as raised:
        validate({"name": "x", "topology": {"kind": "file", **options}})
    assert words in str(raised.value)
