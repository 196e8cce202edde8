"""A spec's network, written as a document of InfraGraph and read again, is the same network."""

import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from infragraph import Infrastructure, QueryRequest
from infragraph.infragraph_service import InfraGraphService

from testbed.errors import SpecError
from testbed.experiment.experiment import Experiment, validate
from testbed.plan.infrastructure import infragraph
from testbed.plan.plan import make_plan
from testbed.theory.simulation.simulate import grown, scaled, simulate

SYNTHETIC = {"kind": "synthetic", "layers": ["1MiB"], "forward": "10ms", "backward": "20ms"}


def experiment(**keys: Any) -> Experiment:
    return validate({"name": "x.y", "workload": SYNTHETIC, **keys})


def again(written: Experiment, folder: Path, **keys: Any) -> Experiment:
    """The same spec with the document in the topology's place; of the network, the spec says something else."""
    path = folder / "graph.json"
    path.write_text(json.dumps(infragraph(written).document))
    topology = {"kind": "infragraph", "path": str(path)}
    changed = {"topology": topology, "placement": "packed", "links": {}, "link": {"rate": "3mbit", "delay": "9ms"}}
    return validate({**written.dump(), **changed, **keys})


def links_of(spec: Experiment) -> Counter[Any]:
    """Rates and delays between nodes, by the workers that are nearest: names of switches may differ."""
    made = make_plan(spec)
    return Counter((each.spec.rate_bps, each.spec.delay_s) for each in made.requested.values())


def on_paths(spec: Experiment) -> dict[tuple[str, str], Any]:
    """Of each pair of workers: the numbers of nodes at each stage, and rate and delay of every hop on the way."""
    made = make_plan(spec)
    settings_ = {hop: (each.spec.rate_bps, each.spec.delay_s) for hop, each in made.requested.items()}
    return {
        pair: (
            [len(stage) for stage in path.stages],
            sorted((settings_[hop], share) for hop, share in path.shares.items()),
        )
        for pair, path in made.paths.items()
    }


RATES = st.integers(1_000, 800_000_000).map(lambda kilobits: f"{kilobits}kbit")
DELAYS = st.integers(0, 1_000_000).map(lambda micros: f"{micros}us")
TOPOLOGIES = st.sampled_from(
    [
        {"kind": "star"},
        {"kind": "dumbbell", "bottleneck": 0.5},
        {"kind": "leaf_spine", "leaves": 3, "spines": 2, "oversubscription": 2},
        {"kind": "fat_tree", "k": 4},
        {"kind": "ring"},
        {"kind": "torus", "dims": [2, 3]},
        {
            "kind": "file",
            "switches": {"s3": 3, "s0": 3, "s7": 0},
            "links": [{"between": ["s3", "s7"], "link": {"rate": "77mbit", "delay": "3ms"}}, {"between": ["s7", "s0"]}],
        },
    ]
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    topology=TOPOLOGIES,
    placement=st.sampled_from(["packed", "spread", "random"]),
    rate=st.integers(3_000, 80_000_000).map(lambda kilobits: f"{kilobits}kbit"),
    delay=DELAYS,
    special=st.tuples(RATES, DELAYS),
    workers=st.integers(2, 6),
)
def test_what_is_exported_and_imported_plans_the_same(
    topology: dict[str, Any],
    placement: str,
    rate: str,
    delay: str,
    special: tuple[str, str],
    workers: int,
    tmp_path: Path,
) -> None:
    spec = experiment(
        topology=topology,
        placement=placement,
        workers=workers,
        link={"rate": rate, "delay": delay},
        links={"w1-s*": {"rate": special[0], "delay": special[1]}},
    )
    read = again(spec, tmp_path)
    for (rate_bps, delay_s), (other_bps, other_s) in zip(
        sorted(links_of(spec).elements()), sorted(links_of(read).elements()), strict=True
    ):
        assert rate_bps == pytest.approx(other_bps, rel=1e-15, abs=0)
        assert delay_s == pytest.approx(other_s, rel=1e-15, abs=0)
    ours, theirs = on_paths(spec), on_paths(read)
    assert {pair: stages for pair, (stages, _) in ours.items()} == {
        pair: stages for pair, (stages, _) in theirs.items()
    }
    for pair, (_, hops) in ours.items():
        for ((rate_bps, delay_s), share), ((other_bps, other_s), other) in zip(hops, theirs[pair][1], strict=True):
            assert (rate_bps, delay_s, share) == (pytest.approx(other_bps, rel=1e-15), pytest.approx(other_s), other)


def test_a_thousand_workers_are_exported_and_simulated_as_before(tmp_path: Path) -> None:
    spec = experiment(topology="fat_tree", link={"rate": "10gbit", "delay": "1us"})
    large = grown(scaled(spec, 128))
    found = infragraph(large)
    assert (found.num_hosts, found.num_switches) == (128, 80)
    path = tmp_path / "large.json"
    path.write_text(json.dumps(found.document))
    imported = experiment(topology={"kind": "infragraph", "path": str(path)})
    assert simulate(scaled(imported, 128)).iteration_time_s == simulate(scaled(spec, 128)).iteration_time_s


def test_the_formats_own_service_takes_it_and_finds_the_paths() -> None:
    document = infragraph(experiment(topology={"kind": "fat_tree", "k": 4}, workers=16)).document
    infrastructure = Infrastructure().deserialize(json.dumps(document))
    infrastructure.validate()
    service = InfraGraphService()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        service.set_graph(infrastructure)
    query = QueryRequest()
    query.shortest_path_query.name = "across"
    query.shortest_path_query.source = "host_1.0.nic.0"
    query.shortest_path_query.destination = "host_1.15.nic.0"
    nodes = [node.name for node in service.query_graph(query).shortest_path_query.nodes]
    switches = list(dict.fromkeys(name.rsplit(".", 2)[0] for name in nodes if name.startswith("switch")))
    assert len(switches) == 5, "edge, aggregation, core, aggregation, edge"
    assert service.get_networkx_graph().edges["host_1.0.nic.0", "switch.0.port.0"]["bandwidth"] == "0.1 Gbps"


def test_workers_on_shared_hosts_are_accelerators_of_it(tmp_path: Path) -> None:
    spec = experiment(workers=5, workers_per_host=2, topology="dumbbell")
    found = infragraph(spec)
    assert [(each["name"], each["count"]) for each in found.document["instances"]] == [
        ("host_2", 2),
        ("host_1", 1),
        ("switch", 2),
    ]
    assert "2 workers share a host: say workers_per_host again with the document" in found.left_out
    assert links_of(again(spec, tmp_path)) == links_of(spec)


def test_what_the_format_cannot_say_is_said(tmp_path: Path) -> None:
    found = infragraph(
        experiment(
            link={"rate": "10mbit", "delay": "1ms", "loss": "1%", "jitter": "100us"},
            changes=[{"at": "1s", "link": "w1-s0", "rate": "5mbit"}],
            storage={"kind": "full_read", "data": "1MB"},
            collective={"kind": "parameter_server", "placement": "dedicated"},
        )
    )
    assert found.left_out == (
        "left out: the storage node",
        "left out: parameter servers",
        "the format has no words for jitter, loss of links",
        "links are as they are at the start, without `changes`",
    )
    assert found.num_hosts == 4
    assert infragraph(experiment()).left_out == ()


def test_directions_that_differ_are_refused() -> None:
    with pytest.raises(SpecError, match=r"links: w1 -> s0 has rate 5mbit, and back it has 100mbit"):
        infragraph(experiment(links={"w1->s0": {"rate": "5mbit"}}))
    with pytest.raises(SpecError, match=r"links: w1 -> s0 has delay 0ns, and back it has 1ms"):
        infragraph(experiment(links={"s0->w1": {"delay": "1ms"}}))
