"""What a document of InfraGraph becomes as a topology, and what is refused or said of the rest."""

import json
from pathlib import Path
from typing import Any

import pytest
from infragraph.blueprints.devices.generic.generic_switch import Switch
from infragraph.blueprints.devices.nvidia.dgx import NvidiaDGX
from infragraph.blueprints.fabrics.clos_fat_tree_fabric import ClosFatTreeFabric

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, load, validate
from testbed.experiment.sweep import load_sweep
from testbed.experiment.topologies.infragraph import InfraGraph
from testbed.plan.plan import make_plan
from testbed.theory.simulation.simulate import scaled, simulate
from tests.infragraphs import FAT_TREE, edge, link, two_leaves

WORKLOAD = {"kind": "synthetic", "layers": ["4MB", "4MB"], "forward": "100us", "backward": "200us"}


def written(document: Any, folder: Path) -> dict[str, Any]:
    """The topology as a spec says it."""
    path = folder / "graph.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return {"kind": "infragraph", "path": str(path)}


def experiment(topology: dict[str, Any], **keys: Any) -> Experiment:
    return validate({"name": "x", "topology": topology, "workload": WORKLOAD, **keys})


def read(document: Any, folder: Path, **options: Any) -> InfraGraph:
    topology = experiment({**written(document, folder), **options}).topology
    assert isinstance(topology, InfraGraph)
    return topology


def refused(document: Any, folder: Path, **options: Any) -> str:
    with pytest.raises(SpecError) as raised:
        read(document, folder, **options)
    assert str(raised.value).startswith("topology: path: ")
    return str(raised.value)


def without(document: dict[str, Any], *edges: int) -> dict[str, Any]:
    return document | {"edges": [each for number, each in enumerate(document["edges"]) if number not in edges]}


def test_hosts_links_are_places_switches_are_numbered_and_links_are_as_the_document_says(tmp_path: Path) -> None:
    topology = read(two_leaves(), tmp_path)
    assert topology.switches == {"s0": "leaf.0", "s1": "leaf.1", "s2": "spine.0"}
    assert [(host.name, host.at) for host in topology.hosts] == [
        ("host.0.nic.0", "s0"),
        ("host.0.nic.1", "s0"),
        ("host.1.nic.0", "s1"),
        ("host.1.nic.1", "s1"),
    ]
    made = make_plan(experiment(written(two_leaves(), tmp_path), link={"rate": "10mbit", "delay": "7us"}, dilation=600))
    requested = {hop: (each.spec.rate_bps, each.spec.delay_s) for hop, each in made.requested.items()}
    assert requested["w1", "s0"] == requested["s0", "w1"] == (100e9, 1.5e-6)
    assert requested["s0", "s2"] == (400e9, 7e-6), "two of 200 Gbit/s; the latency is the spec's, nobody else said one"
    assert requested["s2", "s1"] == (200e9, 7e-6)
    assert made.network_info.rate_bps < 100e9


def test_everything_taken_for_something_is_said(tmp_path: Path) -> None:
    notes = "\n".join(read(two_leaves(), tmp_path).assumptions())
    assert "2 hosts (server) have 4 places for workers: each link to a switch is one" in notes
    assert "the inside of devices (nvlink) is not modelled" in notes
    assert "1 pairs of switches are joined by several links, which here are one with the sum of their rates" in notes
    assert "no latency is given for uplink: the spec's link.delay is theirs" in notes
    assert "link.rate is of none of them" in notes
    assert "accelerators" not in notes


def test_a_host_may_be_one_place_with_the_sum_of_its_links(tmp_path: Path) -> None:
    topology = read(two_leaves(), tmp_path, place="host")
    assert [(host.name, host.at, host.link.rate_bps) for host in topology.hosts] == [
        ("host.0", "s0", 200e9),
        ("host.1", "s1", 200e9),
    ]
    assert any("the hosts have 4 accelerators" in note for note in topology.assumptions())
    keys = {"workers": 4, "workers_per_host": 2, "dilation": 600}
    made = make_plan(experiment({**written(two_leaves(), tmp_path), "place": "host"}, **keys))
    assert made.requested["h1", "s1"].spec.rate_bps == 200e9


def test_places_on_one_switch_may_have_different_links(tmp_path: Path) -> None:
    document = two_leaves()
    document["links"].append(link("slow", 25, us=9))
    document["edges"][0] = edge("host[0] nic[0]", "leaf[0] port[0]", "access")
    document["edges"].append(edge("host[0] nic[1]", "leaf[0] port[1]", "slow"))
    spec = experiment(written(document, tmp_path), dilation=600, placement="spread")
    made = make_plan(spec)
    rates = {first.node: made.requested[first.node, second.node].spec.rate_bps for first, second in made.links[:4]}
    assert rates == {"w0": 100e9, "w1": 100e9, "w2": 25e9, "w3": 100e9}


def test_the_package_s_fat_tree_is_simulated_as_ours(tmp_path: Path) -> None:
    """Exactly, since switches and links come in the same order: flows hash to the same paths."""
    imported = written(FAT_TREE().serialize("json"), tmp_path)
    link = {"rate": "100gbit", "delay": "1us"}
    for num_workers in (8, 16):
        theirs, ours = (
            simulate(scaled(experiment(topology, link=link), num_workers))
            for topology in (imported, {"kind": "fat_tree", "k": 4})
        )
        assert theirs.iteration_time_s == pytest.approx(ours.iteration_time_s, rel=1e-3)
        assert theirs.exchanged_s == pytest.approx(ours.exchanged_s, rel=1e-3)
        assert theirs.busiest == ours.busiest
    assert theirs.assumptions
    assert not ours.assumptions


def test_dgx_hosts_are_their_links_or_one_place_each(tmp_path: Path) -> None:
    document = ClosFatTreeFabric(Switch(port_count=16), NvidiaDGX("dgx_h100"), 2, []).serialize("json")
    assert len(read(document, tmp_path).hosts) == 128
    hosts = read(document, tmp_path, place="host").hosts
    assert len(hosts) == 16
    assert {host.link.rate_bps for host in hosts} == {800e9}


def test_more_workers_than_places_are_refused_with_the_number(tmp_path: Path) -> None:
    spec = experiment(written(two_leaves(), tmp_path))
    with pytest.raises(SpecError, match=r"5 do not fit the 4 places of topology infragraph; allowed: a document with"):
        simulate(scaled(spec, 5))


def test_nics_without_accelerators_are_hosts_only_where_nobody_has_accelerators(tmp_path: Path) -> None:
    document = two_leaves()
    document["devices"][0]["components"][0] |= {"choice": "cpu"}
    assert len(read(document, tmp_path).hosts) == 4
    document = two_leaves()
    disk = {"name": "disk", "components": [{"name": "nic", "count": 1, "choice": "nic"}], "links": [], "edges": []}
    document["devices"].append(disk)
    document["instances"].append({"name": "store", "device": "disk", "count": 1})
    document["edges"].append(edge("store[0] nic[0]", "spine[0] port[2]", "access"))
    topology = read(document, tmp_path)
    assert len(topology.hosts) == 4
    assert any(note.startswith("disk have a nic and no accelerator") for note in topology.assumptions())


def test_what_was_read_is_written_into_the_resolved_spec(tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text(json.dumps(two_leaves()))
    (tmp_path / "spec.yaml").write_text("name: x\ntopology: {kind: infragraph, path: graph.json}\n")
    resolved = load(tmp_path / "spec.yaml")
    (tmp_path / "graph.json").unlink()
    again = validate(resolved.dump())
    assert again == resolved
    assert again.sha256() == resolved.sha256()
    assert again.topology.assumptions()


def test_a_sweep_over_a_rate_that_no_link_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text(json.dumps(two_leaves()))
    spec = tmp_path / "spec.yaml"
    swept = "name: x\ntopology: {kind: infragraph, path: graph.json}\nsweep: {%s: [1gbit, 2gbit]}\n"
    spec.write_text(swept % "link.rate")
    with pytest.raises(SpecError, match=r"link\.rate: topology infragraph says the rate of every link"):
        load_sweep(spec)
    spec.write_text(swept % "'links.w*-s*.rate'")
    rates = [next(iter(point.experiment.links.values())).rate_bps for point in load_sweep(spec).points]
    assert rates == [1e9, 2e9]


def test_bad_graphs_name_the_documents_field(tmp_path: Path) -> None:
    def say(document: dict[str, Any], **options: Any) -> str:
        return refused(document, tmp_path, **options)

    document = two_leaves()
    assert "edges: no path through switches leads from leaf.0 to leaf.1" in say(without(document, 3))
    assert "instances: host.1 have no link to a switch" in say(without(document, 1))
    assert "edges.4: leaf.1.port.2 and spine.0.port.3 are joined by edges.3 already" in say(
        document | {"edges": [*document["edges"], document["edges"][3]]}
    )
    other = edge("host[0] nic[0]", "spine[0] port[2]", "access")
    assert "edges.4: host.0.nic.0 is an end of edges.0 already, and a nic has one cable" in say(
        document | {"edges": [*document["edges"], other]}
    )
    direct = edge("host[0] gpu[0]", "host[1] gpu[0]", "access")
    assert "edges.4: host.0.gpu.0 and host.1.gpu.0 are both of hosts" in say(
        document | {"edges": [*document["edges"], direct]}
    )
    for gigabits in (0, -1, 801, float("nan"), float("inf")):
        found = say(document | {"links": [link("access", gigabits), link("uplink", 200)]})
        assert "links.0.physical.bandwidth: " in found
        assert "allowed: 1mbit to 800gbit" in found
    assert "links.1.physical.bandwidth: required, because edges.2" in say(
        document | {"links": [link("access", 100), {"name": "uplink"}]}
    )
    transfers = {"name": "uplink", "physical": {"bandwidth": {"gigatransfers_per_second": 32}}}
    assert "links.1.physical.bandwidth: gigatransfers_per_second do not say bits" in say(
        document | {"links": [link("access", 100), transfers]}
    )
    assert "links.0.physical.latency: -1e-06 s; allowed: 0 to 1 s" in say(
        document | {"links": [link("access", 100, us=-1), link("uplink", 200)]}
    )
    assert "2 links of leaf.0 and spine.0 together have 1tbit; allowed: at most 800gbit" in say(
        document | {"links": [link("access", 100), link("uplink", 500)]}
    )
    assert "instances: all are hosts" in say({**document, "instances": document["instances"][:1], "edges": []})
    assert "devices: none has a component of type xpu or nic" in say(
        {**document, "instances": document["instances"][1:], "edges": document["edges"][2:]}
    )


def test_unequal_parallel_links_and_hosts_on_two_switches_are_no_single_link(tmp_path: Path) -> None:
    document = two_leaves()
    document["edges"][2:3] = [
        edge("leaf[0] port[2]", "spine[0] port[0]", "uplink"),
        edge("leaf[0] port[3]", "spine[0] port[1]", "access"),
    ]
    assert "edges.3: parallel links of leaf.0 and spine.0 are of access, uplink, which differ" in refused(
        document, tmp_path
    )
    document = two_leaves()
    document["edges"][0] = edge("host[0] nic[0:2]", "leaf[0:2] port[0]", "access")
    document["edges"][1] = edge("host[1] nic[0:2]", "leaf[0:2] port[1]", "access")
    assert [host.at for host in read(document, tmp_path).hosts] == ["s0", "s1", "s0", "s1"]
    assert "host.0 is linked to leaf.0, leaf.1, and a place has one link" in refused(document, tmp_path, place="host")


def test_loops_and_shared_ports_are_said(tmp_path: Path) -> None:
    document = two_leaves()
    document["edges"].append(edge("spine[0] port[0]", "spine[0] port[2]", "uplink"))
    notes = "\n".join(read(document, tmp_path).assumptions())
    assert "1 edges join a device with itself, and are left out like its inside" in notes
    assert "1 ports are ends of several edges" in notes


def test_a_misspelt_option_beside_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"topology\.plase: unknown key; allowed: hosts, links, name, notes, path, place"
    ):
        read(two_leaves(), tmp_path, plase="host")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"place": "host"}, "topology: place: it says how a document is read"),
        (
            {"path": "g.yaml", "switches": {"s0": "a"}},
            "topology: path: switches can be written here or in the document",
        ),
        ({"path": "g.yaml", "place": "gpu"}, "topology: place: 'gpu' is not known; allowed: nic, host"),
        ({"path": "/nonexistent/g.yaml"}, "topology: path: cannot read /nonexistent/g.yaml: No such file"),
        ({"switches": {"leaf": "a"}, "hosts": [{"name": "h", "at": "s0"}]}, "'leaf' is no switch's name"),
        (
            {"switches": {"s0": "a"}, "hosts": [{"name": "h", "at": "s1", "link": {"rate": "1gbit"}}]},
            "hosts.0.at: there is no switch 's1'; allowed: s0",
        ),
        ({"switches": {"s0": "a"}, "hosts": [{"name": "h", "at": "s0"}]}, "hosts.0.link.rate: required"),
        (
            {
                "switches": {"s0": "a", "s1": "b"},
                "hosts": [{"name": "h", "at": "s0", "link": {"rate": "1gbit"}}],
                "links": [{"between": ["s0", "s1"]}],
            },
            "links.0.link.rate: required",
        ),
        ({}, "topology.switches: required"),
    ],
)
def test_bad_options_name_the_field_and_what_is_allowed(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as raised:
        validate({"name": "x", "topology": {"kind": "infragraph", **options}})
    assert words in str(raised.value)
