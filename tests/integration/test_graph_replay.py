"""A graph that is replayed on real links: its bytes, on every link, are what the plan expects of it."""

from pathlib import Path

import pytest
from rich.console import Console

from testbed.calibration.cache import Mode
from testbed.errors import SpecError
from testbed.experiment.experiment import validate
from testbed.record.reader import load
from testbed.report.chrome_trace import chrome_trace
from testbed.report.layer_table import recorded_table
from testbed.report.terminal.summary import LiveProgress
from testbed.runner.run import run_experiment
from testbed.traces.formats.graph import graph_text
from testbed.traces.graph import Collective, Compute, Graph, Node, Receive, Send
from tests.verdicts import assert_no_fault_of_the_links

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(240)]


def everything() -> Graph:
    """What FSDP, pipelines and experts exchange, and a group of some, in one iteration of three ranks."""
    sends = {0: 1, 1: 2}
    ranks = []
    for rank in range(3):
        splits = [(100_000, 50_000, 25_000), (0, 0, 0), (200_000, 10, 0)][rank]
        nodes: list[Node] = [
            Compute(0.01, "forward"),
            Collective("all_gather", 300_000, "float32", "world", name="parameters"),
            Compute(0.02, "backward", (0, 1)),
            Collective("reduce_scatter", 300_000, "float32", "world", name="gradients", after=(2,)),
            Collective("all_to_all", sum(splits), "float16", "world", splits=splits, name="tokens", after=(2,)),
        ]
        if rank in sends:
            nodes.append(Send(sends[rank], 250_000, "float32", 1, "activations", (0,)))
            nodes.append(Collective("all_reduce", 150_000, "float32", "pair", name="of two"))
        if rank - 1 in sends:
            nodes.append(Receive(rank - 1, 250_000, "float32", 1, "activations"))
        ranks.append(tuple(nodes))
    return Graph(ranks=tuple(ranks), groups={"world": (0, 1, 2), "pair": (0, 1)})


def test_every_link_carries_the_graphs_bytes(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text(graph_text(everything()))
    experiment = validate(
        {
            "name": "graph",
            "workers": 3,
            "link": {"rate": "300mbit"},
            "workload": {"kind": "replay", "trace": str(path), "warmup": 2, "iterations": 6},
            "metrics": {"port": None},
        }
    )
    progress = LiveProgress(Console(quiet=True), enabled=False)
    ran = run_experiment(experiment, output=tmp_path / "out", progress=progress, calibration_mode=Mode.CLASS)
    record = load(Path(ran.record))
    summary = record.summary
    assert_no_fault_of_the_links(summary.outcome, summary.reasons)
    assert len(summary.links) == 6
    for link in summary.links:
        assert link.expected_bytes is not None
        assert link.bytes == pytest.approx(link.expected_bytes, rel=0.01), f"{link.from_} -> {link.to}"
    assert summary.pace is not None
    assert summary.pace.pace_s == pytest.approx(0.03)
    assert summary.compute_time_s == pytest.approx(0.03, rel=0.05)
    assert summary.scaling_factor is None, "one rank alone does not do the same work"
    with pytest.raises(SpecError, match="a graph was replayed, which has no layers"):
        recorded_table(record)
    named = [event for event in chrome_trace(record)["traceEvents"] if "Collective name" in event.get("args", {})]
    gathered = next(event["args"] for event in named if event["name"] == "parameters")
    assert (gathered["Collective name"], gathered["dtype"], gathered["Group size"]) == ("_allgather_base", "Float", 3)
    assert (gathered["In msg nelems"], gathered["Out msg nelems"]) == (100_000, 300_000)
