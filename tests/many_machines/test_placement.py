"""One emulation over two machines whose agents a real Ray places: two nodes of a cluster, each in a network namespace
of its own that plays a machine. The command runs on the first."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from testbed.hosts.clean import clean
from testbed.runner.engines._cluster import RESOURCE
from testbed.runner.engines._slot import DIRECTORY_VARIABLE
from testbed.system.processes import processes_of_run
from testbed.system.run_state import RUN_ROOT, run_ids
from tests.bystanders import wait_until
from tests.rack import run
from tests.underlay import ADDRESSES, Underlay
from tests.verdicts import assert_no_fault_of_the_links

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(300)]

ADDRESS: Final = f"{ADDRESSES[0]}:6379"
SHORT: Final = [
    *("--set", "workload.pace={forward: 50ms, backward: 100ms}"),
    *("--set", "workload.warmup=2", "--set", "workload.compute_only=1", "--set", "metrics.port=0"),
]


class Cluster:
    """A Ray node on each machine, with a slot's directory of its own."""

    def __init__(self, stack: ExitStack, underlay: Underlay, folder: Path) -> None:
        self.underlay = underlay
        self.folder = folder
        # Paths of Ray's sockets are long enough as they are.
        sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray", dir="/tmp"))
        for index, address in enumerate(ADDRESSES):
            run(underlay.pids[index], "ip route add default dev u")  # by which Ray finds its own address
            where = (
                ["--head", "--port", "6379", "--temp-dir", sockets, "--include-dashboard", "false"]
                if index == 0
                else ["--address", ADDRESS]
            )
            small = ["--num-cpus", "0", "--object-store-memory", str(80 * 2**20)]
            given = ["--node-ip-address", address, "--resources", json.dumps({RESOURCE: 1}), *small, "--block"]
            with (folder / f"ray-{index}.log").open("wb") as log:
                node = subprocess.Popen(
                    [*self.entering(index), sys.executable, "-m", "ray.scripts.scripts", "start", *where, *given],
                    env={
                        **os.environ,
                        "RAY_USAGE_STATS_ENABLED": "0",
                        DIRECTORY_VARIABLE: str(folder / f"slot-{index}"),
                    },
                    stdout=log,
                    stderr=log,
                )
            stack.callback(node.wait, 60)
            stack.callback(node.terminate)
            wait_until(lambda log=folder / f"ray-{index}.log": "Ray runtime started" in log.read_text(), "Ray starts")

    def entering(self, index: int) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.underlay.pids[index]}/ns/net", "--"]

    def argv(self, *more: str) -> list[str]:
        machines = self.underlay.file(["s0", "w0", "w1"], ["w2", "w3"], placed=True)
        return [
            *(*self.entering(0), sys.executable, "-m", "testbed", "run", "experiments/quickstart.yaml"),
            *("--output", str(self.folder / "results"), "--machines", str(machines)),
            *("--engine", f"{{kind: ray, address: '{ADDRESS}'}}", *SHORT, *more),
        ]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, Underlay(stack, tmp_path), tmp_path)


def test_agents_are_placed_by_ray_and_hold_the_machines_slots(cluster: Cluster) -> None:
    argv = cluster.argv("--set", "workload.iterations=6", "--json")
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 4}, done.stderr
    summary = json.loads(done.stdout)
    reasons = [reason for reason in summary["reasons"] if "differed by" not in reason]  # which a busy machine makes
    assert_no_fault_of_the_links(summary["outcome"], reasons)
    for link in summary["links"]:
        assert link["bytes"] == pytest.approx(link["expected_bytes"], rel=0.01)
    assert (cluster.folder / "slot-0" / "lock").exists()
    assert (cluster.folder / "slot-1" / "lock").exists()
    assert processes_of_run(summary["run_id"]) == []


def test_an_actor_that_is_killed_ends_its_agent_and_the_run(cluster: Cluster) -> None:
    process = subprocess.Popen(
        cluster.argv("--set", "workload.iterations=500"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: _run_of(process.pid) is not None, "it begins")
        wait_until(lambda: _trains(process.pid), "it trains")
        run_id = _run_of(process.pid)
        os.kill(int((cluster.folder / "slot-1" / "lock").read_text()), signal.SIGKILL)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "the agent of machine m1" in said
    finally:
        process.kill()
        process.communicate()
    assert run_id is not None
    clean(run_id)
    assert processes_of_run(run_id) == []
    wait_until(lambda: not any(":12B5" in line for line in cluster.underlay.sockets()), "links between are gone")


def _run_of(pid: int) -> str | None:
    """The run whose coordinator that is."""
    for run_id in run_ids():
        state = RUN_ROOT / run_id / "state.json"
        if state.exists() and json.loads(state.read_text())["coordinator"]["pid"] == pid:
            return run_id
    return None


def _trains(pid: int) -> bool:
    run_id = _run_of(pid)
    path = None if run_id is None else RUN_ROOT / run_id / "status.json"
    return path is not None and path.exists() and json.loads(path.read_text())["phase"] == "measured"
