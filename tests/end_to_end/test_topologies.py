"""Training over more than one switch: the bytes of every link still add up."""

from pathlib import Path
from typing import Any

import pytest

from tests.here import invoke, summary_of
from tests.verdicts import assert_no_fault_of_the_links

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(300)]


def run(output: Path, *overrides: str) -> dict[str, Any]:
    words = ["run", "experiments/quickstart.yaml", "--output", str(output), "--json"]
    # Small batches leave the cores to communication: the verdict shall be about the links.
    short: tuple[str, ...] = ("workload.iterations=4", "workload.compute_only=2", "workload.batch_size=8")
    short += ("workload.warmup=2", "link.rate=200mbit", "metrics.port=0")
    for override in (*short, *overrides):
        words += ["--set", override]
    summary = summary_of(invoke(*words))
    assert_no_fault_of_the_links(summary["outcome"], summary["reasons"])
    assert summary["num_iterations"] == 4
    return summary


def by_direction(summary: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(link["from"], link["to"]): link for link in summary["links"]}


@pytest.mark.slow
def test_a_dumbbell_carries_what_the_schedule_says_on_every_link(tmp_path: Path) -> None:
    summary = run(tmp_path, "topology=dumbbell", "placement=spread")
    links = by_direction(summary)
    assert len(links) == 10
    for link in links.values():
        assert link["bytes"] == pytest.approx(link["expected_bytes"], rel=0.01)
    # All four flows of the ring cross, two each way, on a link as fast as a worker's.
    across = links["s0", "s1"]
    assert across["expected_bytes"] == pytest.approx(2 * links["w0", "s0"]["expected_bytes"], rel=1e-3)
    assert across["utilization_busy"] > 1.5 * links["w0", "s0"]["utilization_busy"]
    assert summary["allreduce"]["time_s"] > 0.98 * summary["allreduce"]["schedule_bound_s"]


@pytest.mark.slow
def test_leaf_and_spine_carry_what_the_schedule_says_where_hashes_do_not_decide(tmp_path: Path) -> None:
    links = by_direction(run(tmp_path, "topology=leaf_spine"))
    assert len(links) == 16
    for (sender, receiver), link in links.items():
        if "w" in sender + receiver:
            assert link["bytes"] == pytest.approx(link["expected_bytes"], rel=0.01)
        else:
            assert link["expected_bytes"] is None
            assert link["bytes"] >= 0
    # Whatever the hashes chose, the uplinks of a leaf together carry the one flow that leaves it.
    for leaf in ("s0", "s1"):
        uplinks = sum(links[leaf, spine]["bytes"] for spine in ("s2", "s3"))
        assert uplinks == pytest.approx(links["w0", "s0"]["expected_bytes"], rel=0.04)  # acknowledgements included
