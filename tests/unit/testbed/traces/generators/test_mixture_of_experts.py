import pytest

from testbed.traces.generators.mixture_of_experts import MixtureOfExperts
from testbed.traces.graph import Collective, Graph
from testbed.traces.table import Layer, LayerTable

TABLE = LayerTable(
    layers=(
        Layer("h0.attention", 1.0, 2.0, 400),
        Layer("h0.mlp.up", 1.0, 2.0, 4000),
        Layer("h0.mlp.down", 1.0, 2.0, 4000),
        Layer("h1.attention", 1.0, 2.0, 400),
    )
)


def collectives(graph: Graph, rank: int) -> list[Collective]:
    return [node for node in graph.ranks[rank] if isinstance(node, Collective)]


def test_tokens_go_to_experts_and_back_forward_and_backward_and_only_the_rest_is_reduced() -> None:
    graph = MixtureOfExperts(tokens="4KiB").generate(TABLE, 4)
    assert [node.operation for node in collectives(graph, 0)] == [
        *["all_to_all"] * 2,
        "all_reduce",
        *["all_to_all"] * 2,
        "all_reduce",
    ]
    assert {node.num_elements for node in collectives(graph, 0) if node.operation == "all_reduce"} == {100}


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 3.0])
def test_the_skew_is_the_one_stated_and_what_comes_goes_back(skew: float) -> None:
    generator = MixtureOfExperts(tokens="48MiB", skew=skew)
    splits = generator.splits(4)
    assert sum(splits) == 12 * 2**20
    for rank in range(4):
        assert splits[rank] / splits[0] == pytest.approx((rank + 1) ** -skew, rel=1e-5)
    graph = generator.generate(TABLE, 4)
    for rank in range(4):
        there, back = (node for node in collectives(graph, rank)[:2])
        assert there.splits == splits
        assert back.splits == (splits[rank],) * 4


def test_experts_compute_as_long_as_they_have_tokens() -> None:
    graph = MixtureOfExperts(tokens="4MiB", skew=1.0).generate(TABLE, 2)
    # dense layers 2 + 4 s on each rank; experts 2 + 4 s in proportion to 2/3 and 1/3 of all tokens, of two ranks' worth
    assert [graph.compute_s(rank) for rank in range(2)] == pytest.approx([6 + 6 * 4 / 3, 6 + 6 * 2 / 3], rel=1e-5)
