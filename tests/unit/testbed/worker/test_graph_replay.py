# mypy: disable-error-code="no-untyped-call"
"""Replayed graphs, over real sockets on loopback: what is exchanged, in which order, and how long computing lasts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from testbed.traces.formats.graph import graph_text
from testbed.traces.graph import Collective, Compute, Graph, Node, Receive, Send
from tests.training_ranks import Worker, trained

LENGTHS = {"warmup": 2, "iterations": 2}
GROUPS = {"world": (0, 1, 2), "pair": (1, 2)}


def replayed(graph: Graph, folder: Path, *, dilation: float = 1.0, **more: Any) -> list[Worker]:
    path = folder / "graph.json"
    path.write_text(graph_text(graph))
    spec = {"workload": {"kind": "replay", "trace": str(path), **LENGTHS}, **more}
    return trained(spec, graph.num_ranks, dilation=dilation)


def whole(operation: Any, count: int, element_type: str = "float32", **more: Any) -> Collective:
    return Collective(operation, count, element_type, "world")._replace(**more)


def everything() -> Graph:
    """Every operation, every element type of a reduction, a group of some, messages short and long."""
    shared: list[Node] = [
        whole("all_reduce", 3000),
        whole("all_reduce", 17, "float16"),
        whole("all_reduce", 30, "int64"),
        whole("all_reduce", 3, "bool"),
        whole("reduce_scatter", 300, "bfloat16"),
        whole("all_gather", 30, "float64"),
        whole("broadcast", 1000, root=1),
        whole("reduce", 1000, root=2),
        whole("gather", 33, root=1),
        whole("scatter", 33, root=0),
        whole("all_to_all", 30, "uint8"),
        whole("barrier", 0, "uint8"),
    ]
    splits = [(10, 20, 30), (0, 0, 5), (7, 0, 0)]
    messages: list[list[Node]] = [
        [Send(1, 50_000, "float32", 1), Send(1, 10, "float32", 2), Receive(2, 0, "float32"), Compute(0.01)],
        [
            Receive(0, 10, "float32", 2),
            Receive(0, 50_000, "float32", 1),
            Collective("all_reduce", 64, "float32", "pair"),
        ],
        [Send(0, 0, "float32"), Collective("all_reduce", 64, "float32", "pair")],
    ]
    ranks = []
    for rank, (counts, own) in enumerate(zip(splits, messages, strict=True)):
        uneven = whole("all_to_all", sum(counts), splits=counts, after=(rank,))
        ranks.append((*shared, uneven, *own))
    return Graph(ranks=tuple(ranks), groups=GROUPS)


def test_every_exchange_of_the_graph_happens_in_every_iteration(tmp_path: Path) -> None:
    graph = everything()
    workers = replayed(graph, tmp_path)
    number = {place: index for index, match in enumerate(graph.matches) for place in match}
    for rank, worker in enumerate(workers):
        assert worker.barriers == ["warmup", "measure", "done"]
        nodes = {number[rank, at]: node for at, node in enumerate(graph.ranks[rank]) if not isinstance(node, Compute)}
        for phase, length in (("warmup", 2), ("measured", 2)):
            assert [iteration.index for iteration in worker.phase(phase)] == list(range(length))
            for iteration in worker.phase(phase):
                sizes = {bucket.sequence: bucket.size_bytes for bucket in iteration.buckets}
                assert sizes == {sequence: node.size_bytes for sequence, node in nodes.items()}


def due(worker: Worker) -> Sequence[Any]:
    return worker.phase("measured")


def test_computing_lasts_as_long_as_the_graph_says_and_waits_for_what_it_needs(tmp_path: Path) -> None:
    graph = Graph(
        ranks=(
            (Compute(0.05), Send(1, 1, "float32", after=(0,)), Compute(0.01, after=(0,))),
            (Receive(0, 1, "float32"), Compute(0.02, after=(0,)), Compute(0.03)),
        ),
        groups={},
    )
    first, second = replayed(graph, tmp_path)
    for iteration in due(first):
        assert iteration.pace_s == pytest.approx(0.06)
        assert iteration.forward_stall_s == pytest.approx(0, abs=1e-6), "nothing to wait for"
        assert iteration.forward_end_s - iteration.start_s == pytest.approx(0.06, abs=1e-6)
    for iteration in due(second):
        assert iteration.pace_s == pytest.approx(0.05)
        assert iteration.end_s >= iteration.start_s + 0.05
    lasting_s = [iteration.end_s - iteration.start_s for iteration in due(second)]
    assert max(lasting_s) >= 0.05 + 0.02 - 0.02, "it waits for the message, which is sent after 50 ms"


def test_a_device_that_waits_for_nothing_has_no_stall_at_all(tmp_path: Path) -> None:
    """The smallest one would say that communication reaches into the next forward pass. Of a third of a power of two
    and of twice as much, one is rounded up where it is added to a clock, however long the machine is up."""
    lengths_s = 2**-8 / 3, 2**-7 / 3
    exchange = Collective("all_reduce", 10, "float32", "both", after=(0,))
    ranks = tuple((Compute(each_s), exchange) for each_s in lengths_s)
    for worker in replayed(Graph(ranks=ranks, groups={"both": (0, 1)}), tmp_path):
        assert [each.forward_stall_s for each in (*worker.phase("warmup"), *due(worker))] == [0.0] * 4


def test_iterations_follow_each_other_without_a_gap(tmp_path: Path) -> None:
    graph = Graph(ranks=((Compute(0.02),), (Compute(0.01),)), groups={})
    for worker in replayed(graph, tmp_path):
        earlier, later = due(worker)
        assert later.start_s == earlier.end_s


def test_stragglers_and_dilation_lengthen_computing(tmp_path: Path) -> None:
    graph = Graph(ranks=((Compute(0.02),), (Compute(0.02),)), groups={})
    for worker in replayed(graph, tmp_path, dilation=3.0):
        assert all(iteration.end_s - iteration.start_s == pytest.approx(0.06) for iteration in due(worker))


def test_a_peer_that_is_lost_is_named(tmp_path: Path) -> None:
    """The message is received, and the second one never sent: refused when it is read, so that nobody waits."""
    graph = Graph(ranks=((Send(1, 4, "int32"),), (Receive(0, 4, "int32"),)), groups={})
    path = tmp_path / "graph.json"
    path.write_text(graph_text(graph).replace('"send", "peer": 1', '"send", "peer": 0'))
    with pytest.raises(Exception, match="rank 0, node 0: rank 0 of 2 exchanges no messages with rank 0"):
        trained({"workload": {"kind": "replay", "trace": str(path), **LENGTHS}}, 2)


def test_an_exchange_begins_at_once_though_nobody_waits_for_it(tmp_path: Path) -> None:
    """Of several in a row, each on a group that is idle: the communication thread would leave them for 2 ms to whoever
    may come and wait."""
    nodes: tuple[Node, ...] = tuple(
        Collective("all_reduce", 16, "float32", "both", after=(number - 1,) if number else ()) for number in range(40)
    )
    workers = replayed(Graph(ranks=(nodes, nodes), groups={"both": (0, 1)}), tmp_path)
    shortest_s = min(each.end_s - each.start_s for worker in workers for each in due(worker))
    assert shortest_s < 40 * 1.5e-3


def test_groups_of_the_same_ranks_have_no_common_order(tmp_path: Path) -> None:
    """With one communicator for both, rank 0 would begin with the second one's operation, rank 1 with the first's."""
    first, second = (Collective("all_reduce", count, "float32", name) for name, count in (("a", 1000), ("b", 500)))
    late = Compute(0.02)
    ranks = (
        (late, first._replace(after=(0,)), second),
        (first, late, second._replace(after=(1,))),
    )
    for worker in replayed(Graph(ranks=ranks, groups={"a": (0, 1), "b": (0, 1)}), tmp_path):
        assert sorted(bucket.size_bytes for each in due(worker) for bucket in each.buckets) == [2000, 2000, 4000, 4000]
