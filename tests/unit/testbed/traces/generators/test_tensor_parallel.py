from testbed.traces.derived import derived_table
from testbed.traces.generators.tensor_parallel import TensorParallel
from testbed.traces.graph import Collective


def test_a_transformers_block_adds_activations_twice_in_each_pass() -> None:
    graph = TensorParallel(activations="6MiB").generate(derived_table("gpt2", batch_size=4), 4)
    nodes = [node for node in graph.ranks[0] if isinstance(node, Collective)]
    assert [node.operation for node in nodes] == ["all_reduce"] * 4 * 12
    assert {node.size_bytes for node in nodes} == {6 * 2**20}
