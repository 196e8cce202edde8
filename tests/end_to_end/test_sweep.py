"""`testbed sweep` for real: killed it goes on; two points, one table, one page; and again, which runs nothing."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed.record.reader import load
from tests.here import Done, invoke

pytestmark = [pytest.mark.privileged, pytest.mark.quiet, pytest.mark.timeout(300)]  # runs again what stood on no cores

SPEC = """
name: two-points
workers: 2
workload: {kind: training, iterations: 3, compute_only: 2, warmup: 2, batch_size: 4,
           pace: {forward: 100ms, backward: 200ms}}
metrics: {port: 0}
sweep: {link.rate: [50mbit, 100mbit]}
"""


def words(folder: Path, *more: str) -> list[str]:
    (folder / "spec.yaml").write_text(SPEC)
    return ["sweep", str(folder / "spec.yaml"), "--output", str(folder / "results"), *more]


def sweep(folder: Path, *more: str) -> Done:
    return invoke(*words(folder, *more))


def kill_in_the_second_run(folder: Path) -> bool:
    """kill -9 of a sweep when its first run has left its record and its second has begun; whether the first one's
    result stands, which it does not where other programs held the cores."""
    with subprocess.Popen(
        [sys.executable, "-m", "testbed", *words(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline_s = time.monotonic() + 120
        while len(list((folder / "results").glob("two-points-*/logs"))) < 2:
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        process.kill()
    (summary,) = (folder / "results").glob("*/summary.json")
    return bool(json.loads(summary.read_text())["outcome"] != "invalid")


def test_a_killed_sweep_goes_on_its_points_are_compared_and_are_not_run_again(tmp_path: Path) -> None:
    while not kill_in_the_second_run(tmp_path):
        shutil.rmtree(tmp_path / "results")
    done = sweep(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 run with a result reused" in done.stderr
    assert "[1/1] link.rate=50mbit" in done.stderr
    assert "50mbit" in done.stdout
    (page,) = (tmp_path / "results").glob("two-points-sweep-*/sweep.html")
    assert page.with_name("sweep.csv").exists()
    assert "(sweep-figures/iteration.svg)" in page.with_name("sweep.md").read_text()
    again = sweep(tmp_path, "--json")
    assert (again.returncode, again.stderr) == (0, "")
    document = json.loads(again.stdout)
    assert document["finished"]
    slow, fast = document["points"]
    assert slow["allreduce_time_s"] > 1.7 * fast["allreduce_time_s"]
    for point in (slow, fast):
        assert point["outcome"] in {"valid", "degraded"}
        assert load(Path(point["runs"][-1]["record"])).summary.spec_sha256 == point["spec_sha256"]
    summaries = list((tmp_path / "results").glob("*/summary.json"))
    assert len(summaries) == sum(len(point["runs"]) for point in document["points"]), "none was made twice"
