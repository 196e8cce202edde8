"""Limits and stragglers, as a user writes them: they show in the record, and are no fault of the emulation."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(300)]

SPEC = {
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
    argv = [sys.executable, "-m", "testbed", "run", str(path), "--output", str(tmp_path), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def test_a_quota_is_named_and_a_straggler_holds_up_the_others(tmp_path: Path) -> None:
    summary = run(tmp_path, SPEC)
    assert summary["outcome"] in {"valid", "degraded"}
    assert any("w0 was held to 0.9 cores as asked" in reason for reason in summary["reasons"])
    fast, slow = summary["workers"]
    assert (fast["slowdown_mean"], slow["slowdown_mean"]) == (1, 2)
    assert slow["last_share"] > 0.5
    assert slow["held_up_s"] > fast["held_up_s"]
    iterations = pl.read_parquet(Path(summary["record"]) / "iterations.parquet").filter(pl.col("rank") == 1)
    # Each core has its worker to itself while there is no communication: half of the time is waiting.
    alone = iterations.filter(pl.col("phase") == "compute_only")
    share = alone["cpu_s"].sum() / (alone["end_s"] - alone["start_s"]).sum()
    assert 0.2 < share < 0.6
    assert set(iterations["slowdown"]) == {2.0}
