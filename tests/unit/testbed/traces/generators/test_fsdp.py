from collections import Counter

from testbed.traces.generators.fsdp import Fsdp
from testbed.traces.graph import Collective, Compute, Graph
from testbed.traces.table import Layer, LayerTable

TABLE = LayerTable(
    layers=(Layer("a.x", 1.0, 2.0, 40), Layer("a.y", 1.0, 2.0, 4), Layer("b.x", 3.0, 4.0, 80), Layer("c", 1.0, 1.0, 0)),
    update_s=8.0,
)


def names(graph: Graph) -> list[str]:
    return [node.name for node in graph.ranks[0]]


def test_a_blocks_parameters_are_gathered_twice_and_its_gradients_scattered_once_padded_to_equal_parts() -> None:
    graph = Fsdp().generate(TABLE, 4)
    nodes = [node for node in graph.ranks[0] if isinstance(node, Collective)]
    assert Counter((node.operation, node.num_elements) for node in nodes) == {
        ("all_gather", 12): 2,  # 11 parameters
        ("all_gather", 20): 2,
        ("reduce_scatter", 12): 1,
        ("reduce_scatter", 20): 1,
    }
    assert graph.ranks[0] == graph.ranks[3]


def test_a_gather_goes_while_the_unit_before_computes_and_stands_before_its_scatter() -> None:
    assert names(Fsdp().generate(TABLE, 2)) == [
        "parameters a forward",
        "forward a",
        "parameters b forward",
        "forward b",
        "forward c",
        "parameters b backward",
        "backward c",
        "parameters a backward",
        "backward b",
        "gradients b",
        "backward a",
        "gradients a",
        "update of a part",
    ]


def test_two_units_parameters_are_there_at_a_time() -> None:
    layers = tuple(Layer(f"h{number}", 1.0, 1.0, 400) for number in range(4))
    nodes = Fsdp().generate(LayerTable(layers=layers), 2).ranks[0]
    gathered = {node.name: node.after for node in nodes if isinstance(node, Collective)}
    where = {node.name: number for number, node in enumerate(nodes)}
    assert gathered["parameters h1 forward"] == ()
    assert gathered["parameters h2 forward"] == (where["forward h0"],)
    assert gathered["parameters h3 forward"] == (where["forward h1"],)


def test_each_layer_can_be_a_unit_and_the_update_is_of_a_part() -> None:
    graph = Fsdp(unit="layer").generate(TABLE, 2)
    assert sum(isinstance(node, Collective) for node in graph.ranks[0]) == 9
    last = graph.ranks[0][-1]
    assert isinstance(last, Compute)
    assert last.duration_s == 4.0
