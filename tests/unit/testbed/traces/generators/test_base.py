"""What every generator keeps to, for any number of ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import SpecError
from testbed.traces.derived import derived_table
from testbed.traces.generators.base import GENERATORS, blocks
from testbed.traces.networks import NetworkName
from testbed.traces.recorded import recorded_table
from testbed.traces.table import Layer, LayerTable

OPTIONS: dict[str, dict[str, object]] = {
    "data_parallel": {},
    "fsdp": {},
    "mixture_of_experts": {"tokens": "12MiB", "skew": 1.0},
    "pipeline": {"activations": "6MiB"},
    "tensor_parallel": {"activations": "6MiB"},
}
GPT2 = derived_table("gpt2", batch_size=4)


def test_every_generator_is_tested() -> None:
    assert GENERATORS.kinds() == sorted(OPTIONS)


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8, 17])
def test_any_number_of_ranks_has_a_graph_whose_computing_is_the_tables(kind: str, num_ranks: int) -> None:
    graph = GENERATORS.parse({"kind": kind, **OPTIONS[kind]}).generate(GPT2, num_ranks)
    assert graph.num_ranks == num_ranks
    computed_s = [graph.compute_s(rank) for rank in range(num_ranks)]
    if kind in ("data_parallel", "fsdp"):
        assert computed_s == pytest.approx([GPT2.compute_s] * num_ranks)
    else:
        shares = 1 if kind in ("pipeline", "tensor_parallel") else num_ranks
        assert sum(computed_s) == pytest.approx(shares * GPT2.compute_s, rel=1e-6)
    assert graph.critical_path_s() >= max(computed_s) - 1e-9


@pytest.mark.parametrize("kind", OPTIONS)
def test_one_rank_is_refused(kind: str) -> None:
    with pytest.raises(SpecError, match="1 ranks exchange nothing; allowed: 2 or more"):
        GENERATORS.parse({"kind": kind, **OPTIONS[kind]}).generate(GPT2, 1)


@pytest.mark.parametrize("kind", OPTIONS)
def test_gradients_that_are_no_number_of_elements_are_refused(kind: str) -> None:
    table = LayerTable(layers=(Layer("a", 0.1, 0.2, 8), Layer("b", 0.1, 0.2, 6)))
    with pytest.raises(SpecError, match="layer b has 6 bytes of gradients, which are float32; allowed: multiples of 4"):
        GENERATORS.parse({"kind": kind, **OPTIONS[kind]}).generate(table, 2)


def test_blocks_are_those_of_the_network_however_its_layers_are_called() -> None:
    names = [
        "wte",
        "h0.ln",
        "h0.mlp.up",
        "h1.ln",
        "h.0.ln",
        "h.0.mlp",
        "h.1.ln",
        "encoder.layer.0.a",
        "encoder.layer.0.b",
    ]
    found = blocks([Layer(name, 0.0, 0.0, 4) for name in [*names, "encoder.layer.1.a", "layer1.0.conv1", "fc"]])
    assert [(unit.name, len(unit.layers)) for unit in found] == [
        *(("wte", 1), ("h0", 2), ("h1", 1), ("h.0", 2), ("h.1", 1)),
        *(("encoder.layer.0", 2), ("encoder.layer.1", 1), ("layer1", 1), ("fc", 1)),
    ]


@pytest.mark.parametrize("name", ["gpt2", "bert_base"])
def test_a_recorded_network_has_the_blocks_of_the_derived_one(name: NetworkName) -> None:
    fewest = len(blocks(derived_table(name).layers))
    assert len(blocks(recorded_table(name, device="h100", batch_size=8).layers)) == pytest.approx(fewest, abs=2)
    assert fewest >= 12


@given(st.sampled_from(sorted(OPTIONS)), st.integers(2, 6), st.sampled_from(["float16", "float64"]))
def test_the_element_type_is_that_of_every_exchange(kind: str, num_ranks: int, element_type: str) -> None:
    options = {"kind": kind, **OPTIONS[kind], "type": element_type}
    graph = GENERATORS.parse(options).generate(GPT2, num_ranks)
    assert {graph.node(place).element_type for match in graph.matches for place in match} == {element_type}


@pytest.mark.parametrize(
    ("kind", "options"), [("mixture_of_experts", {"experts": "x"}), ("tensor_parallel", {"by_rows": "x"})]
)
def test_names_that_no_layer_has_are_refused(kind: str, options: dict[str, str]) -> None:
    table = LayerTable(layers=GPT2.layers)
    with pytest.raises(SpecError, match="no layer is called x; layers are wte"):
        GENERATORS.parse({"kind": kind, **OPTIONS[kind], **options}).generate(table, 2)
