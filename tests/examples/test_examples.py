"""The examples that need packages of others, unchanged under `testbed exec`: with gloo and with ours the same losses.

`make test-examples` installs what they need beside `.venv` (examples/requirements.txt) and runs this with it.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from testbed.system.run_state import RUN_ROOT

pytestmark = pytest.mark.privileged
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PYTHON = str(ROOT / ".venv-examples" / "bin" / "python")
LOSS = re.compile(r"\[w(\d)\] (?:rank|epoch|step) (\d+) loss ([0-9.]+)")


def execute(output: Path, command: list[str], *options: str, link: str = "200mbit") -> tuple[str, dict[str, Any]]:
    """What the workers printed, and the summary."""
    fixed = ["--workers", "2", "--link", link, "--output", str(output)]
    argv = [PYTHON, "-m", "testbed", "exec", *fixed, *options, "--", PYTHON, *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=170, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = output.glob("*/summary.json")
    summary: dict[str, Any] = json.loads(path.read_text())
    assert summary["outcome"] != "invalid", summary["reasons"]
    assert not (RUN_ROOT / summary["run_id"]).exists()
    return done.stdout, summary


def losses(printed: str) -> dict[tuple[str, str], float]:
    """By worker and the number of the step."""
    return {(worker, step): float(loss) for worker, step, loss in LOSS.findall(printed)}


SCRIPTS = {
    "accelerate": ["with_accelerate.py"],
    "fabric": ["with_fabric.py"],
    "deepspeed-1": ["with_deepspeed.py", "--stage", "1"],
    "deepspeed-2": ["with_deepspeed.py", "--stage", "2"],
    "deepspeed-3": ["with_deepspeed.py", "--stage", "3"],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_losses_are_the_same_with_gloo_and_with_ours(tmp_path: Path, name: str) -> None:
    script, *arguments = SCRIPTS[name]
    command = [str(EXAMPLES / script), *arguments]
    gloo, _ = execute(tmp_path / "gloo", command)
    ours, summary = execute(tmp_path / "ours", command, "--backend", "testbed")
    assert summary["command"]["redirected"] == ["gloo"]
    assert all(link["bytes"] > 10_000 for link in summary["links"])
    assert len(losses(gloo)) >= 2
    assert losses(ours) == pytest.approx(losses(gloo), rel=1e-6)


@pytest.mark.parametrize("algorithm", ["local_sgd", "diloco"])
def test_torchft_makes_its_groups_with_gloo_and_with_ours(tmp_path: Path, algorithm: str) -> None:
    found = {}
    for group in ("gloo", "testbed"):
        command = [str(EXAMPLES / "with_torchft.py"), "--algorithm", algorithm, "--group", group]
        printed, summary = execute(tmp_path / group, command)
        assert all(link["bytes"] > 10_000 for link in summary["links"])
        found[group] = losses(printed)
    assert set(found["gloo"]) == {("0", "0"), ("1", "1")}
    assert found["testbed"] == pytest.approx(found["gloo"], rel=1e-6)


def test_hivemind_averages_between_peers(tmp_path: Path) -> None:
    printed, summary = execute(tmp_path, [str(EXAMPLES / "with_hivemind.py")])
    assert printed.count("averaged with 2 peers") == 2
    assert all(link["bytes"] > 2 * 2112 for link in summary["links"]), "parameters cross every link"
