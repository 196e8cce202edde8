"""Timeouts that cannot be kept, and those that can."""

import re
from pathlib import Path
from typing import Any

import pytest

from testbed.experiment.experiment import validate
from testbed.plan.plan import make_plan
from testbed.plan.silence import out_of_time
from testbed.traces.formats.graph import graph_text
from testbed.traces.graph import Compute, Graph, Node, Receive, Send


def late(**keys: Any) -> str:
    return "\n".join(out_of_time(make_plan(validate({"name": "x", "workers": 2, **keys}))))


@pytest.mark.parametrize(
    "workload",
    [
        {"kind": "training", "pace": {"forward": "10s", "backward": "20s"}},
        {"kind": "synthetic", "layers": "resnet50", "forward": "10s", "backward": "20s"},
    ],
)
def test_computing_as_long_as_the_timeout_is_refused(workload: dict[str, Any]) -> None:
    assert late(workload=workload) == (
        "timeout: 30s is how long a worker may say nothing, and computing an iteration takes 30s; allowed: more than "
        "that"
    )
    assert not late(workload=workload, timeout="31s")


def test_computing_that_takes_as_long_as_it_takes_is_not() -> None:
    assert not late(timeout="1s")


@pytest.mark.parametrize(
    ("keys", "size_bytes", "least_s"),
    [
        ({}, 2_000_000, 3.346),
        ({"compression": "bf16"}, 1_000_000, 1.673),
        # With help from a switch each byte crosses a worker's link once.
        ({"workers": 4, "collective": {"kind": "in_network"}}, 2_000_000, 3.5),
    ],
)
def test_an_exchange_that_the_links_cannot_do_in_time_is_refused(
    keys: dict[str, Any], size_bytes: int, least_s: float
) -> None:
    workload = {"kind": "synthetic", "layers": ["2MB", "1MB"], "forward": "1ms", "backward": "1ms"}
    spec: dict[str, Any] = {"link": {"rate": "5mbit"}, "workload": workload, "fusion": "layers", **keys}
    found = re.fullmatch(
        r"timeout: 1s is how long an exchange may take, and the ([0-9,]+) bytes of the largest need at least "
        r"([0-9.]+)s on these links; allowed: more than that, or smaller buckets \(fusion\)",
        late(timeout="1s", **spec),
    )
    assert found is not None
    assert int(found[1].replace(",", "")) == pytest.approx(size_bytes, rel=0.01)
    assert float(found[2]) == pytest.approx(least_s, rel=0.05)
    assert not late(timeout="5s", **spec)


def test_a_rank_that_waits_for_others_longer_than_the_timeout_is_refused(tmp_path: Path) -> None:
    """No rank computes for so long, and the last stage of a pipeline's first receive waits for all before it."""
    ranks: list[tuple[Node, ...]] = [(Compute(12.0), Send(1, 4, "float32", after=(0,)))]
    ranks += [(Receive(0, 4, "float32"), Compute(12.0, after=(0,)), Send(2, 4, "float32", after=(1,)))]
    ranks += [(Receive(1, 4, "float32"), Compute(12.0, after=(0,)))]
    (tmp_path / "pipeline.json").write_text(graph_text(Graph(ranks=tuple(ranks), groups={})))
    workload = {"kind": "replay", "trace": str(tmp_path / "pipeline.json")}
    found = late(workers=3, workload=workload, timeout="20s")
    assert "in the trace a rank waits 24s in one for the computing of others" in found
    assert not late(workers=3, workload=workload, timeout="25s")
