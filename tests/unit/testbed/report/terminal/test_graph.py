import io

from rich.console import Console

from testbed.report.terminal.graph import exchanges, graph_json, render_graph
from testbed.traces.graph import Collective, Compute, Graph, Receive, Send

NODE = Collective("all_to_all", 30, "float16", "world", splits=(10, 20))
GRAPH = Graph(
    ranks=(
        (Compute(0.5), NODE, Send(1, 8, "int32")),
        (NODE._replace(num_elements=5, splits=(5, 0)), Receive(0, 8, "int32")),
    ),
    groups={"world": (0, 1)},
)


def test_exchanges_are_counted_once_and_ranks_one_by_one() -> None:
    assert exchanges(GRAPH) == {("all_to_all", "float16", 60): 1, ("message", "int32", 32): 1}
    found = graph_json(GRAPH, "g")
    assert found["critical_path_s"] == 0.5
    assert found["ranks"] == [
        {"rank": 0, "num_nodes": 3, "compute_s": 0.5, "num_collectives": 1, "num_messages": 1, "message_bytes": 32},
        {"rank": 1, "num_nodes": 2, "compute_s": 0, "num_collectives": 1, "num_messages": 0, "message_bytes": 0},
    ]


def test_a_person_reads_the_same() -> None:
    output = io.StringIO()
    render_graph(GRAPH, "g.json", Console(file=output, width=120))
    text = output.getvalue()
    assert "g.json  a graph of 2 ranks and 5 nodes" in text
    assert "groups: world (2 ranks)" in text
    assert "500 ms where exchanges take no time" in text
    assert "all_to_all" in text
