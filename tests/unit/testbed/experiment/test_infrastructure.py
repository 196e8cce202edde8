"""Documents of InfraGraph are expanded as the format's own service expands them, and what it passes over is refused."""

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from infragraph.infragraph_service import InfraGraphService

from testbed.experiment.infrastructure import Expanded, read_infrastructure
from tests.infragraphs import BLUEPRINTS, FAT_TREE, edge, two_leaves


def read(document: Any, folder: Path, name: str = "graph.json") -> Expanded:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read_infrastructure(path)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The small document with something else at `links.0.name`."""
    document: Any = copy.deepcopy(two_leaves())
    *parents, last = path.split(".")
    found = document
    for part in parents:
        found = found[int(part) if isinstance(found, list) else part]
    if isinstance(found, list):
        found.insert(int(last), value)
    else:
        found[last] = value
    return document


@pytest.mark.parametrize("name", BLUEPRINTS)
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_every_cable_is_an_edge_of_the_formats_own_graph(name: str, suffix: str, tmp_path: Path) -> None:
    blueprint = BLUEPRINTS[name]()
    graph = read(blueprint.serialize(suffix), tmp_path, f"graph.{suffix}")
    service = InfraGraphService()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of components that nothing is joined to
        service.set_graph(blueprint)
    theirs = {
        frozenset((first, second)): (data["link"], data.get("bandwidth"))
        for first, second, data in service.get_networkx_graph().edges(data=True)
        if first.split(".")[:2] != second.split(".")[:2]
    }
    ours = {}
    for cable in graph.cables:
        if cable.first.at != cable.second.at:
            unit, value = cable.link.bandwidth.given or ("", 0)
            assert unit == "gigabits_per_second"
            ours[frozenset((cable.first.text, cable.second.text))] = (cable.link.name, f"{float(value):g} Gbps")
    assert {ends: link for ends, (link, _) in ours.items()} == {ends: link for ends, (link, _) in theirs.items()}
    for ends, (_, bandwidth) in theirs.items():
        assert float(str(bandwidth).split()[0]) == float(ours[ends][1].split()[0])


def test_components_are_counted_through_devices_in_devices(tmp_path: Path) -> None:
    document = two_leaves()
    document["devices"].append(
        {"name": "rack", "components": [{"name": "server", "count": 4, "choice": "device"}], "links": [], "edges": []}
    )
    graph = read(document, tmp_path)
    assert graph.number_of(graph.devices["rack"], "xpu") == 8
    assert graph.number_of(graph.devices["rack"], "nic") == 8
    document["instances"].append({"name": "row", "device": "rack", "count": 1})
    document["instances"][1]["count"] = 3
    document["edges"].append(edge("row rack.server[3].nic[1]", "leaf[2] port[0]", "access"))
    assert read(document, tmp_path).cables[-1].first.text == "row.0.server.3.nic.1"


def test_indices_are_slices_of_python_and_open_ones_take_what_the_other_end_has(tmp_path: Path) -> None:
    found = [(cable.first.text, cable.second.text) for cable in read(two_leaves(), tmp_path).cables]
    assert found == [
        ("host.0.nic.0", "leaf.0.port.0"),
        ("host.0.nic.1", "leaf.0.port.1"),
        ("host.1.nic.0", "leaf.1.port.0"),
        ("host.1.nic.1", "leaf.1.port.1"),
        ("leaf.0.port.2", "spine.0.port.0"),
        ("leaf.0.port.3", "spine.0.port.1"),
        ("leaf.1.port.2", "spine.0.port.3"),
    ]


def test_what_the_service_gives_back_is_read_with_a_word_on_annotations(tmp_path: Path) -> None:
    service = InfraGraphService()
    service.set_graph(FAT_TREE())
    graph = read(service.populate_infragraph_dict(service.get_networkx_graph(), "full"), tmp_path)
    assert graph.annotated
    assert len(graph.cables) == 48


@pytest.mark.parametrize(
    ("bandwidth", "rate_bps"),
    [
        ({"gigabits_per_second": 0.1}, 1e8),
        ({"choice": "gigabytes_per_second", "gigabytes_per_second": 12.5}, 1e11),
        ({}, None),
        ({"choice": "gigatransfers_per_second"}, None),
    ],
)
def test_bandwidths_are_bits_per_second(bandwidth: dict[str, Any], rate_bps: float | None, tmp_path: Path) -> None:
    graph = read(changed("links.0.physical", {"bandwidth": bandwidth, "latency": {"ns": 300}}), tmp_path)
    assert graph.document.links[0].bandwidth.rate_bps == rate_bps
    assert graph.document.links[0].latency.delay_s == 3e-7


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("edges.0.link", "ethernet", "edges.0.link: there is no link 'ethernet'; allowed: access, uplink"),
        ("edges.0.ep1.instance", "hots[0]", "edges.0.ep1.instance: there is no instance 'hots'; allowed: host, leaf"),
        ("edges.0.ep1.instance", "host[2]", "edges.0.ep1.instance: 'host[2]' is out of range; there are 2"),
        ("edges.0.ep1.instance", "host[-3]", "'host[-3]' is out of range"),
        ("edges.0.ep1.instance", "host[0", "edges.0.ep1.instance: 'host[0' is no name with indices"),
        ("edges.0.ep1.component", "nic[0:4]", "edges.0.ep1.component: 'nic[0:4]' is out of range; there are 2"),
        ("edges.0.ep1.component", "nic[1:1]", "'nic[1:1]' is out of range"),
        ("edges.0.ep1.component", "nic[::0]", "'nic[::0]' is out of range"),
        ("edges.0.ep1.component", "eth[0]", "there is no component of device server 'eth'; allowed: gpu, nic"),
        ("edges.0.ep1.component", "nic[0].port[0]", "goes on behind a component that is no device"),
        ("edges.0.ep1.component", "server", "'server' names no component; allowed: gpu, nic"),
        ("edges.0.ep1.component", "nic[0]", "edges.0: one2one pairs 1 ends with 2; allowed: as many on both sides"),
        ("edges.0.scheme", "ring", "edges.0.scheme: the format's own service makes no edges of `ring`"),
        ("edges.0.scheme", "mesh", "edges.0.scheme: allowed: 'one2one', 'many2many' or 'ring'"),
        ("edges.0.colour", "red", "edges.0.colour: unknown key"),
        ("instances.0.device", "servers", "instances.0.device: there is no device 'servers'; allowed: server, box"),
        ("instances.0.count", 0, "instances.0.count: allowed: at least 1"),
        ("instances.0.count", True, "instances.0.count: "),
        ("instances.1.name", "host", "instances.1.name: 'host' stands twice"),
        ("links.1.name", "access", "links.1.name: 'access' stands twice"),
        ("devices.0.components.1.choice", "gpu", "devices.0.components.1.choice: allowed: 'custom', 'device'"),
        ("devices.0.components.1.choice", "device", "devices.0.components.1.name: there is no device 'nic'"),
        (
            "devices.0.components.0",
            {"name": "server", "count": 1, "choice": "device"},
            "devices.0.components.0: device server contains itself",
        ),
        (
            "links.0.physical.bandwidth.choice",
            "gigabytes_per_second",
            "links.0.physical.bandwidth: choice is gigabytes",
        ),
        ("links.0.physical.latency.ms", 1, "links.0.physical.latency: choice is None, and given ms and us"),
    ],
)
def test_bad_input_names_the_field_and_what_is_allowed(path: str, value: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="graph") as raised:
        read(changed(path, value), tmp_path)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("[]", "g.yaml", "is no InfraGraph document"),
        ("{", "g.json", "is not JSON"),
        ('{"name": "a", "name": "b"}', "g.json", "'name' stands twice"),
        ("name: a\nname: b", "g.yaml", "'name' stands twice"),
    ],
)
def test_what_is_no_document_is_refused(text: str, name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="g") as raised:
        read(text, tmp_path, name)
    assert words in str(raised.value)


@pytest.mark.parametrize("name", ["nowhere.json", "nowhere.yaml"])
def test_a_file_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"cannot read .*{name}: No such file"):
        read_infrastructure(tmp_path / name)


def test_many_errors_are_counted(tmp_path: Path) -> None:
    document = two_leaves() | {"edges": [{}] * 4}
    with pytest.raises(ValueError, match="and 11 more errors"):
        read(document, tmp_path)


def test_yaml_and_json_say_the_same(tmp_path: Path) -> None:
    assert read(yaml.safe_dump(two_leaves()), tmp_path, "g.yaml").cables == read(two_leaves(), tmp_path).cables
