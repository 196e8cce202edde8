"""`testbed sweep` for real: two points, one table, one page; and again, which runs nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.record.reader import load

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(300)]

SPEC = """
name: two-points
workers: 2
workload: {kind: training, iterations: 3, compute_only: 2, warmup: 2, batch_size: 4}
metrics: {port: 0}
sweep: {link.rate: [50mbit, 100mbit]}
"""


def sweep(folder: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    (folder / "spec.yaml").write_text(SPEC)
    argv = [sys.executable, "-m", "testbed", "sweep", str(folder / "spec.yaml"), "--output", str(folder / "results")]
    return subprocess.run([*argv, *more], capture_output=True, text=True, timeout=200, check=False)


def test_two_points_run_are_compared_and_are_not_run_again(tmp_path: Path) -> None:
    done = sweep(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[2/2] link.rate=100mbit" in done.stderr
    assert "50mbit" in done.stdout
    (page,) = (tmp_path / "results").glob("two-points-sweep-*/sweep.html")
    assert page.with_name("sweep.csv").exists()
    again = sweep(tmp_path, "--json")
    assert (again.returncode, again.stderr) == (0, "")
    slow, fast = json.loads(again.stdout)["points"]
    assert slow["allreduce_time_s"] > 1.7 * fast["allreduce_time_s"]
    for point in (slow, fast):
        assert point["outcome"] in {"valid", "degraded"}
        assert load(Path(point["runs"][0]["record"])).summary.spec_sha256 == point["spec_sha256"]
