"""Graphs as JSON: read back as they were written, or refused with file and node."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.traces.derived import derived_table
from testbed.traces.formats.base import File, TraceError, read_table, read_trace
from testbed.traces.formats.graph import graph_text, parse_graph
from testbed.traces.generators.mixture_of_experts import MixtureOfExperts
from testbed.traces.generators.pipeline import Pipeline
from testbed.traces.graph import Graph, GraphError

TABLE = derived_table("gpt2", batch_size=1)
MIXTURE = MixtureOfExperts(tokens="1MiB", skew=1).generate(TABLE, 2)
PIPELINE = Pipeline(activations="1MiB", micro_batches=2).generate(TABLE, 2)
TEXT = graph_text(PIPELINE)


def parsed(text: str) -> Graph:
    return parse_graph(text, File(Path("g.json"), b""))


def exchanged(graph: Graph) -> list[Any]:
    return [[node[1:] if hasattr(node, "duration_s") else node for node in nodes] for nodes in graph.ranks]


@pytest.mark.parametrize("graph", [MIXTURE, PIPELINE])
def test_a_graph_is_read_back_as_it_was_written(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text(graph_text(graph))
    again = read_trace(path)
    assert isinstance(again, Graph)
    assert (again.groups, exchanged(again)) == (graph.groups, exchanged(graph))
    assert again.critical_path_s() == pytest.approx(graph.critical_path_s())


def test_a_graph_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text(TEXT)
    with pytest.raises(TraceError, match=r"g\.json is a graph of 2 ranks, and a table of layers is needed"):
        read_table(path)


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ({"kind": "compute"}, "rank 0, node 0: duration_us is None"),
        ({"kind": "compute", "duration_us": True}, "duration_us is True"),
        ({"kind": "compute", "duration_us": -1}, "it computes for -1e-06 s"),
        ({"kind": "compute", "duration_us": 1, "peer": 1}, "compute has no peer"),
        ({"kind": "sum"}, "kind 'sum' is not known; allowed: compute, collective, send, receive"),
        ({"kind": "send", "peer": 1, "type": "float32"}, "num_elements is None"),
        ({"kind": "send", "peer": "1", "type": "float32", "num_elements": 1}, "peer is '1'"),
        ({"kind": "compute", "duration_us": 1, "after": 0}, "after is 0, which is not a list"),
        ({"kind": "compute", "duration_us": 1, "after": [0]}, "waits for itself"),
        ([], "it is a mapping, not list"),
    ],
)
def test_a_wrong_node_is_named(node: object, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text(json.dumps({"format": "testbed graph", "version": 1, "groups": {}, "ranks": [[node], []]}))
    with pytest.raises(TraceError, match=problem) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}: rank 0, node 0")


@pytest.mark.parametrize("change", ["version", "groups", "ranks", "format"])
def test_what_is_missing_at_the_top_is_said(change: str) -> None:
    data = json.loads(TEXT)
    del data[change]
    with pytest.raises(TraceError, match=r"g\.json: "):
        parsed(json.dumps(data))


@given(st.integers(0, len(TEXT) - 1))
def test_a_graph_that_is_cut_off_is_refused(length: int) -> None:
    if TEXT[length:].strip():
        with pytest.raises(TraceError, match=r"g\.json: no whole JSON"):
            parsed(TEXT[:length])


@given(st.data())
@settings(max_examples=200)
def test_whatever_is_changed_the_graph_is_valid_or_refused_with_its_place(data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(TEXT)))
    text = TEXT[:begin] + data.draw(st.text(alphabet='0123456789-.,:{}[]"eE ainfkd', max_size=4)) + TEXT[begin + 2 :]
    try:
        parsed(text)
        outcome = "valid"
    except (TraceError, GraphError) as error:
        outcome = str(error)
    assert outcome.startswith(("valid", "g.json: ", "rank ", "group ", "a graph has"))
