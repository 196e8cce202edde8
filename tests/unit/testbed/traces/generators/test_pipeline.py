import pytest

from testbed.errors import SpecError
from testbed.traces.generators.pipeline import Pipeline
from testbed.traces.graph import Compute, Graph, Send
from testbed.traces.table import Layer, LayerTable


def table(*times_s: float) -> LayerTable:
    return LayerTable(layers=tuple(Layer(f"h{number}", at_s, 2 * at_s, 4) for number, at_s in enumerate(times_s)))


def passes(graph: Graph, rank: int) -> str:
    words = [node.name.split() for node in graph.ranks[rank] if isinstance(node, Compute)]
    return " ".join(f"{way[0][0]}{way[1]}" for way in words if way[0] != "update")


def test_stages_go_one_forward_one_backward_as_in_the_paper() -> None:
    graph = Pipeline(activations="1KiB", micro_batches=5).generate(table(1, 1, 1), 3)
    assert passes(graph, 2) == "f0 b0 f1 b1 f2 b2 f3 b3 f4 b4"
    assert passes(graph, 1) == "f0 f1 b0 f2 b1 f3 b2 f4 b3 b4"
    assert passes(graph, 0) == "f0 f1 f2 b0 f3 b1 f4 b2 b3 b4"


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (4, 2), (4, 8), (8, 8), (3, 16)])
def test_the_bubble_is_that_of_the_paper_where_stages_are_alike(stages: int, micro_batches: int) -> None:
    """(p - 1) / m of the ideal time, Narayanan et al. 2021, section 2.2."""
    graph = Pipeline(activations="1KiB", micro_batches=micro_batches).generate(table(*[1.0] * stages), stages)
    ideal_s = 3.0
    assert graph.critical_path_s() == pytest.approx(ideal_s * (1 + (stages - 1) / micro_batches))


def test_neighbours_exchange_each_micro_batch_once_each_way() -> None:
    graph = Pipeline(activations="1KiB", micro_batches=6).generate(table(1, 1, 1), 3)
    sent = [(match[0][0], match[1][0]) for match in graph.matches]
    assert {pair: sent.count(pair) for pair in sent} == {(0, 1): 6, (1, 0): 6, (1, 2): 6, (2, 1): 6}
    assert {node.size_bytes for nodes in graph.ranks for node in nodes if isinstance(node, Send)} == {1024}


def test_the_slowest_stage_is_as_fast_as_may_be() -> None:
    graph = Pipeline(activations="1KiB").generate(table(5, 1, 1, 1, 1, 1), 2)
    assert [graph.compute_s(rank) for rank in range(2)] == pytest.approx([15, 15])
    graph = Pipeline(activations="1KiB").generate(table(1, 1, 1, 9, 1), 3)
    assert [graph.compute_s(rank) for rank in range(3)] == pytest.approx([9, 27, 3])


def test_fewer_layers_than_stages_are_refused() -> None:
    with pytest.raises(SpecError, match="2 layers are not enough for 3 stages"):
        Pipeline(activations="1KiB").generate(table(1, 1), 3)
