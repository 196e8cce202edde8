"""The bytes that a graph's iteration is expected to put on each link."""

from pathlib import Path
from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.plan.graph_traffic import graph_traffic
from testbed.plan.plan import Plan, make_plan
from testbed.traces.derived import derived_table
from testbed.traces.formats.graph import graph_text
from testbed.traces.generators.base import GENERATORS
from testbed.traces.graph import Collective, Graph, Receive, Send
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES

TCP = CHANNELS.parse("tcp")
RING = COLLECTIVES.parse("ring")
TABLE = derived_table("gpt2", batch_size=4)
GOODPUT = 1448 / 1514


def planned(graph: Graph, folder: Path, **more: Any) -> Plan:
    path = folder / "graph.json"
    path.write_text(graph_text(graph))
    spec = {"name": "x", "workers": graph.num_ranks, "workload": {"kind": "replay", "trace": str(path)}, **more}
    return make_plan(validate(spec))


def traffic(*ranks: Any, groups: dict[str, tuple[int, ...]]) -> dict[tuple[str, str], int]:
    return graph_traffic(Graph(ranks=tuple(map(tuple, ranks)), groups=groups), RING, TCP, (), 1500).wire


@pytest.mark.parametrize("num_ranks", [4, 8])
def test_fsdp_sends_three_times_the_parameters_around_the_ring(num_ranks: int, tmp_path: Path) -> None:
    plan = planned(GENERATORS.parse("fsdp").generate(TABLE, num_ranks), tmp_path)
    expected = 3 * TABLE.size_bytes * (num_ranks - 1) / num_ranks / GOODPUT
    for direction in plan.directions:
        assert direction.expected_bytes == pytest.approx(expected, rel=0.002)


def test_a_pipeline_sends_activations_to_its_neighbours(tmp_path: Path) -> None:
    generator = GENERATORS.parse({"kind": "pipeline", "activations": "6MiB", "micro_batches": 8})
    plan = planned(generator.generate(TABLE, 4), tmp_path)
    expected = {direction.name: direction.expected_bytes for direction in plan.directions}
    one_way = 8 * 6 * 2**20 / GOODPUT
    assert expected["w0 -> s0"] == pytest.approx(one_way, rel=0.002)
    assert expected["w1 -> s0"] == pytest.approx(2 * one_way, rel=0.002)
    assert expected["s0 -> w3"] == pytest.approx(one_way, rel=0.002)


def test_experts_get_what_the_skew_says(tmp_path: Path) -> None:
    """Tokens alone: forward and backward, to experts and from them, at twelve layers of experts."""
    generator = GENERATORS.parse({"kind": "mixture_of_experts", "tokens": "12MiB", "skew": 1})
    with_tokens = planned(generator.generate(TABLE, 4), tmp_path)
    dense = sum(layer.size_bytes for layer in TABLE.layers if ".mlp." not in layer.name)
    share = [(1 / (rank + 1)) / (1 + 1 / 2 + 1 / 3 + 1 / 4) for rank in range(4)]
    found = {direction.name: direction.expected_bytes for direction in with_tokens.directions}
    for rank in range(4):
        tokens = 2 * 12 * 12 * 2**20 * ((1 - share[rank]) + 3 * share[rank])
        assert found[f"w{rank} -> s0"] == pytest.approx((tokens + 1.5 * dense) / GOODPUT, rel=0.002)


def test_a_group_of_some_sends_among_its_members_alone() -> None:
    node = Collective("all_reduce", 100_000, "float16", "two")
    found = traffic([], [node], [], [node], groups={"two": (1, 3)})
    assert set(found) == {("w1", "w3"), ("w3", "w1")}
    assert found["w1", "w3"] == pytest.approx(200_000 / GOODPUT, rel=0.01)


def test_a_root_is_the_rank_and_not_its_place_in_the_group() -> None:
    node = Collective("gather", 200, "uint8", "two", root=3)
    assert set(traffic([], [node], [], [node], groups={"two": (1, 3)})) == {("w1", "w3")}


def test_a_long_message_is_announced_and_accepted_and_a_short_one_is_not() -> None:
    for count, comes_back in ((16 * 1024, False), (16 * 1024 + 1, True), (0, False)):
        found = traffic([Send(1, count, "float32")], [Receive(0, count, "float32")], groups={})
        assert (("w1", "w0") in found) == comes_back
        assert found["w0", "w1"] >= 4 * count


def test_short_messages_of_a_collective_may_take_a_segment_each(tmp_path: Path) -> None:
    """Activations of single tokens: 14 messages of 512 bytes around the ring, each after the receipt of one before."""
    generator = GENERATORS.parse({"kind": "tensor_parallel", "activations": "4KiB"})
    graph = generator.generate(TABLE, 8)
    nodes = [node for node in graph.ranks[0] if isinstance(node, Collective)]
    assert {(node.operation, 4 * node.num_elements) for node in nodes} == {("all_reduce", 4096)}
    alone = len(nodes) * 14 * TCP.wire_bytes(512 + TCP.header_bytes, 1500).forward
    for direction in planned(graph, tmp_path).directions:
        assert direction.expected_bytes is not None
        assert direction.expected_bytes < alone / 1.05
        assert direction.expected_bytes + direction.split_bytes == alone


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"fusion": "none"}, "fusion: is for gradients"),
        ({"compression": "fp16"}, "compression: is for gradients"),
        ({"stack": "gloo"}, "stack: gloo has no groups"),
        ({"collective": "in_network"}, "collective: in_network adds elsewhere"),
        ({"collective": {"kind": "parameter_server", "servers": 1}}, "collective: parameter_server adds elsewhere"),
        ({"synchronisation": {"kind": "local_sgd", "every": 2}}, "synchronisation: local_sgd is for gradients"),
        ({"workers": 3}, "workers: 3 cannot replay a graph of 2 ranks"),
    ],
)
def test_what_would_mean_nothing_to_a_graph_is_refused(more: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=problem):
        planned(GENERATORS.parse("fsdp").generate(TABLE, 2), tmp_path, **more)


@pytest.mark.parametrize("option", ["batch_size", "compute_only", "device", "verify_gradients"])
def test_options_of_layers_are_refused(option: str, tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text(graph_text(GENERATORS.parse("fsdp").generate(TABLE, 2)))
    value = {"batch_size": 3, "compute_only": 4, "device": "v100", "verify_gradients": True}[option]
    with pytest.raises(SpecError, match=f"workload: {option}: "):
        validate({"name": "x", "workers": 2, "workload": {"kind": "replay", "trace": str(path), option: value}})


def test_a_resolved_spec_holds_the_graph(tmp_path: Path) -> None:
    experiment = planned(GENERATORS.parse("fsdp").generate(TABLE, 2), tmp_path).experiment
    (tmp_path / "graph.json").unlink()
    assert validate(experiment.dump()) == experiment
    assert experiment.workload.graph() is not None
