"""What every generator keeps to, for any number of ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import SpecError
from testbed.traces.derived import derived_table
from testbed.traces.generators.base import GENERATORS
from testbed.traces.table import LayerTable

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
