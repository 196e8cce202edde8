from pathlib import Path
from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import load, validate
from testbed.experiment.topologies.base import TOPOLOGIES
from testbed.plan.plan import make_plan


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
            "topology.links.0.rate: unknown key; allowed: between, link, rate_factor",
        ),
        ({"switches": {"s0": 1}, "links": [{"between": ["s0"]}]}, "topology.links.0.between"),
        ({"switches": ["s0"]}, "topology.switches: "),
        (
            {"switches": {"s0": 1}, "links": [{"between": ["s0", "s1"], "rate_factor": 2, "link": {"rate": "1gbit"}}]},
            "topology.links.0: both `rate_factor` and `link.rate` say how fast it is",
        ),
        (
            {"switches": {"s0": 1}, "links": [{"between": ["s0", "s1"], "link": {"rat": "1gbit"}}]},
            "topology.links.0.link.rat: unknown key; allowed: best_effort, delay",
        ),
        ({"path": "/nonexistent/net.yaml"}, "topology: path: cannot read /nonexistent/net.yaml: No such file"),
        ({"path": "/dev/null"}, "topology: path: /dev/null is not a network; allowed: a mapping with `switches`"),
        ({"path": "net.yaml", "switches": {"s0": 1}}, "topology: path: switches can be written here or in the file"),
        ({"switches": {"s0": 1}, "links": [{"between": ["s0", "s0"], "rate_factor": 0}]}, "rate_factor"),
        ({"switches": {"s0": 1}, "nodes": []}, "topology.nodes: unknown key; allowed: links, path, switches"),
    ],
)
def test_bad_input_names_the_field_and_what_is_allowed(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as raised:
        validate({"name": "x", "topology": {"kind": "file", **options}})
    assert words in str(raised.value)


def test_a_link_of_the_file_has_its_own_settings_which_the_spec_overrides() -> None:
    links = [{"between": ["s0", "s1"], "link": {"rate": "1gbit", "delay": "5ms"}}]
    topology = {"kind": "file", "switches": {"s0": 1, "s1": 1}, "links": links}
    made = make_plan(validate({"name": "x", "workers": 2, "topology": topology, "links": {"s1->s0": {"delay": "7ms"}}}))
    requested = {direction.hop: direction.requested for direction in made.directions}
    assert (requested["s0", "s1"].rate_bps, requested["s0", "s1"].delay_s) == (1e9, 5e-3)
    assert (requested["s1", "s0"].rate_bps, requested["s1", "s0"].delay_s) == (1e9, 7e-3)
    assert requested["w0", "s0"].delay_s == 0


def test_a_misspelt_option_beside_a_path_is_refused(tmp_path: Path) -> None:
    """It was dropped with the path once the file had been read."""
    (tmp_path / "net.yaml").write_text("switches: {s0: 2}\n")
    with pytest.raises(SpecError, match=r"topology\.hosts: unknown key"):
        validate({"name": "x", "topology": {"kind": "file", "path": str(tmp_path / "net.yaml"), "hosts": 2}})


def test_a_network_in_a_file_of_its_own_is_written_into_the_resolved_spec(tmp_path: Path) -> None:
    (tmp_path / "net.yaml").write_text("switches: {s0: 1, s1: 1}\nlinks: [{between: [s0, s1], link: {delay: 1ms}}]\n")
    spec = tmp_path / "spec.yaml"
    spec.write_text("name: x\nworkers: 2\ntopology: {kind: file, path: net.yaml}\n")
    experiment = load(spec)
    assert experiment.dump()["topology"]["switches"] == {"s0": 1, "s1": 1}
    written = "{kind: file, switches: {s0: 1, s1: 1}, links: [{between: [s0, s1], link: {delay: 1ms}}]}"
    spec.write_text(f"name: x\nworkers: 2\ntopology: {written}\n")
    assert load(spec).sha256() == experiment.sha256()
    (tmp_path / "net.yaml").unlink()
    assert validate(experiment.dump()) == experiment
