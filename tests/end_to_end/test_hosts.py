"""Limits and stragglers, as a user writes them: they show in the record, and are no fault of the emulation."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from tests.here import invoke, summary_of
from tests.verdicts import assert_no_fault_of_the_links

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(300)]

SPEC: dict[str, Any] = {
    "name": "hosts",
    "workers": 2,
    "link": {"rate": "400mbit"},
    "hosts": {"w0": {"cpu": 0.9, "pin": [0]}, "w1": {"slowdown": 2, "pin": [1]}},
    "workload": {"kind": "training", "batch_size": 32, "warmup": 2, "iterations": 6, "compute_only": 3},
    "metrics": {"port": 0},
}


def run(tmp_path: Path, spec: dict[str, Any]) -> dict[str, Any]:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    summary = summary_of(invoke("run", path, "--output", tmp_path, "--json"))
    assert_no_fault_of_the_links(summary["outcome"], summary["reasons"])
    return summary


def test_background_is_counted_apart_from_the_training_and_no_fault(tmp_path: Path) -> None:
    flows = [
        {"kind": "constant", "from": "w0", "to": "w1", "rate": "40mbit"},
        {"kind": "bulk", "from": "w1", "to": "w0"},
    ]
    # Small batches leave the cores to communication: the verdict shall be about the links.
    workload = {**SPEC["workload"], "batch_size": 8}
    changes = {"name": "background", "hosts": {}, "link": {"rate": "100mbit"}, "workload": workload}
    summary = run(tmp_path, {**SPEC, **changes, "background": flows})
    constant, bulk = summary["background"]
    assert constant["sent_bps"] == pytest.approx(40e6, rel=0.03)
    assert bulk["received_bps"] > 10e6
    for link in summary["links"]:
        assert link["bytes"] == pytest.approx(link["expected_bytes"], rel=0.02)
        assert link["background_utilization"] > 0.05


@pytest.mark.slow
def test_a_quota_is_named_and_a_straggler_holds_up_the_others(tmp_path: Path) -> None:
    summary = run(tmp_path, SPEC)
    assert any("w0 was held to 0.9 cores as requested" in note for note in summary["notes"])
    fast, slow = summary["workers"]
    assert (fast["slowdown_mean"], slow["slowdown_mean"]) == (1, 2)
    assert slow["last_share"] > 0.5
    assert slow["straggler_wait_s"] > fast["straggler_wait_s"]
    iterations = pl.read_parquet(Path(summary["record"]) / "iterations.parquet").filter(pl.col("rank") == 1)
    # At least half of the time is waiting, and waiting uses no core.
    alone = iterations.filter(pl.col("phase") == "compute_only")
    assert alone["cpu_s"].sum() < 0.6 * (alone["end_s"] - alone["start_s"]).sum()
    assert set(iterations["slowdown"]) == {2.0}
