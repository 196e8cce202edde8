"""Sweeps over the machines of a real Ray cluster. Its machines are nodes on this one, each with a slot's directory of
its own, which is what lets two runs go on at once on one machine here and nowhere else.

A machine's death is played by SIGKILL of its raylet: Ray's processes end, and what they had started is left behind,
which is harder to get right than a machine that is off.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from testbed.runner.engines._cluster import RESOURCE
from testbed.runner.engines._slot import DIRECTORY_VARIABLE

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(300)]

HERE: Final = Path(__file__).resolve().parent
SMALL: Final = {"num_cpus": 0, "object_store_memory": 80 * 2**20, "include_dashboard": False}
SPEC: Final[dict[str, Any]] = {
    "name": "x",
    "workers": 2,
    "sweep": {"link.rate": ["100mbit", "200mbit", "1gbit"]},
    "repeat": 2,
}
REAL: Final = """
name: two-machines
workers: 2
workload: {kind: training, iterations: 3, compute_only: 2, warmup: 2, batch_size: 4}
metrics: {port: null}
sweep: {link.rate: [50mbit, 100mbit]}
"""


class Node(NamedTuple):
    slot: Path
    node: Any

    @property
    def actor(self) -> int:
        """The process that holds its slot."""
        return int((self.slot / "lock").read_text())


class Machines:
    """A cluster and what happens on its machines."""

    def __init__(self, folder: Path, cluster: Any) -> None:
        self.folder = folder
        self.gates = folder / "gates"
        self.gates.mkdir()
        self.output = folder / "results"
        self.output.mkdir()
        self.cluster = cluster
        self.nodes: list[Node] = []
        self.sweeps: list[subprocess.Popen[bytes]] = []

    def add(self, **environment: str) -> Node:
        slot = self.folder / f"slot-{len(self.nodes)}"
        variables = {DIRECTORY_VARIABLE: str(slot), "XDG_DATA_HOME": str(self.gates), **environment}
        self.nodes.append(Node(slot, self.cluster.add_node(resources={RESOURCE: 1}, env_vars=variables, **SMALL)))
        self.cluster.wait_for_nodes()
        return self.nodes[-1]

    def kill(self, node: Node) -> None:
        if (node.slot / "lock").exists():
            os.kill(node.actor, signal.SIGKILL)  # with the raylet; by itself it would notice after a while
        self.cluster.remove_node(node.node, allow_graceful=False)

    def sweep(self, **keys: Any) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, str(HERE / "cheap_sweep.py"), self.cluster.address, str(self.output)]
        with (self.folder / f"said-{len(self.sweeps)}").open("wb") as said:
            self.sweeps.append(subprocess.Popen([*argv, json.dumps({**SPEC, **keys})], stdout=said, stderr=said))
        return self.sweeps[-1]

    def said(self) -> str:
        return (self.folder / f"said-{len(self.sweeps) - 1}").read_text()

    def close(self, moment: str) -> None:
        (self.gates / moment).touch()

    def open(self, moment: str) -> None:
        (self.gates / moment).unlink()

    def reached(self, moment: str, node: Node) -> bool:
        """Whether a run on that node has come to the gate."""
        return any(path.read_text() == str(node.slot) for path in self.gates.glob(f"reached-{moment}-*"))

    def document(self) -> dict[str, Any]:
        for path in self.output.glob("x-sweep-*/sweep.json"):
            read: dict[str, Any] = json.loads(path.read_text())
            return read
        return {"points": [], "notes": []}

    def runs(self) -> list[dict[str, Any]]:
        return [run for point in self.document()["points"] for run in point["runs"]]

    def finish(self) -> dict[str, Any]:
        """Of the sweep that was started last. Each point has its runs, once each, and was nowhere twice at a time."""
        status = self.sweeps[-1].wait(150)
        assert status == 0, self.said()
        document = self.document()
        assert document["finished"]
        assert [len(point["runs"]) for point in document["points"]] == [2, 2, 2], self.said()
        records = [run["record"] for run in self.runs()]
        assert len(set(records)) == 6
        assert {str(path.parent) for path in self.output.glob("*/summary.json")} == set(records)
        assert all(len(list(Path(record).rglob("w0.log"))) == 1 for record in records)
        for lives in self.lives().values():
            for (_, ended_s), (begun_s, _) in itertools.pairwise(lives):
                assert begun_s > ended_s
        return document

    def lives(self) -> dict[str, list[tuple[float, float]]]:
        """When runs of each point went on, from their first instant to the last they were seen alive at."""
        found: dict[str, list[tuple[float, float]]] = {}
        for path in self.gates.glob("life-*"):
            begun_s = int(path.name.split("-")[1]) / 1e9
            found.setdefault(json.loads(path.read_text())["spec_sha256"], []).append((begun_s, path.stat().st_mtime))
        return {spec: sorted(lives) for spec, lives in found.items()}

    def processes(self) -> list[str]:
        """What runs or keeps a run below this folder."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(self.folder / "slot-") in command:
                found.append(command.replace("\0", " "))
        return found


def until(true: Callable[[], object], limit_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    made = Cluster(initialize_head=True, head_node_args=SMALL)
    yield made
    made.shutdown()


@pytest.fixture
def machines(tmp_path: Path, cluster: Any) -> Iterator[Machines]:
    made = Machines(tmp_path, cluster)
    with ExitStack() as stack:
        for _ in range(2):
            made.add()
        stack.callback(
            lambda: [cluster.remove_node(node.node) for node in made.nodes if node.node in cluster.worker_nodes]
        )
        stack.callback(lambda: [each.kill() for each in made.sweeps if each.poll() is None])
        yield made
    until(lambda: not made.processes())


@pytest.mark.parametrize("moment", ["begun", "writing", "written", "accepted"])
def test_a_machine_that_is_killed_costs_what_ran_on_it_another_attempt(machines: Machines, moment: str) -> None:
    """Before, while and after its record is written, and when that has been taken in."""
    first, second = machines.nodes
    if moment != "accepted":
        machines.close(moment)
    machines.sweep()
    if moment == "accepted":
        until(lambda: any(run["machine"] != machines.runs()[0]["machine"] for run in machines.runs()))
    else:
        until(lambda: machines.reached(moment, first) and machines.reached(moment, second))
    before = [run["record"] for run in machines.runs()]
    machines.kill(second)
    if moment != "accepted":
        machines.open(moment)
    document = machines.finish()
    assert set(before) <= {run["record"] for run in machines.runs()}
    lost = [note for note in document["notes"] if ": lost: " in note]
    assert len(lost) == 1 if moment != "accepted" else len(lost) <= 1
    assert any(note.startswith("without ") for note in document["notes"])
    # With what was accepted its machine may have died before its next run's first instant.
    num_lives = sum(len(lives) for lives in machines.lives().values())
    assert num_lives == 7 if moment != "accepted" else 6 <= num_lives <= 6 + len(lost)
    assert not machines.processes()


def test_runs_see_a_login_s_environment_and_priority(machines: Machines) -> None:
    machines.sweep()
    document = machines.finish()
    assert document["notes"] == []
    assert len(Counter(run["machine"] for run in machines.runs())) == 2
    for path in machines.gates.glob("life-*"):
        about = json.loads(path.read_text())
        assert [key for key in about["environment"] if key.startswith(("RAY", "PYTHON", "OMP", "TESTBED"))] == []
        assert (about["nice"], about["oom_score_adj"]) == (0, 0)
    again = machines.sweep()
    assert again.wait(60) == 0
    assert "6 runs with a result reused" in machines.said()


def test_a_result_that_comes_too_late_is_refused_and_said(machines: Machines) -> None:
    """The machine falls silent when its run is all but done, and is heard of when the point has gone elsewhere."""
    _, second = machines.nodes
    machines.close("written")
    machines.sweep()
    until(lambda: all(machines.reached("written", node) for node in machines.nodes))
    os.kill(second.actor, signal.SIGSTOP)
    machines.open("written")
    until(lambda: ": lost: " in machines.said() or "lost: attempt" in machines.said())
    os.kill(second.actor, signal.SIGCONT)
    document = machines.finish()
    (note,) = (note for note in document["notes"] if "refused when it came back" in note)
    assert "its run has left a record" in note
    assert len(list(machines.output.glob("*/summary.json"))) == 6


def test_a_sweep_that_is_killed_goes_on_with_the_same_command(machines: Machines) -> None:
    machines.close("begun")
    killed = machines.sweep()
    until(lambda: all(machines.reached("begun", node) for node in machines.nodes))
    killed.kill()
    killed.wait()
    machines.sweep()
    until(lambda: len(list(machines.gates.glob("reached-begun-*"))) == 4)
    machines.open("begun")
    machines.finish()
    (path,) = machines.output.glob("x-sweep-*/attempts.json")
    ends = Counter(attempt["end"] for attempt in json.loads(path.read_text())["attempts"])
    assert ends == {"lost": 2, "accepted": 6}


def test_another_sweep_does_not_get_a_slot_that_is_in_use(machines: Machines) -> None:
    machines.close("begun")
    machines.sweep()
    until(lambda: all(machines.reached("begun", node) for node in machines.nodes))
    other = machines.sweep(seed=2)
    assert other.wait(120) != 0
    assert machines.said().count("another sweep has the slot") == 4, "as it happened, and as why nothing can be done"
    machines.sweeps.pop()
    machines.open("begun")
    assert machines.sweeps[-1].wait(120) == 0


def test_a_machine_that_is_not_like_this_one_is_left_out_and_said(machines: Machines) -> None:
    bare = machines.folder / "bin"
    bare.mkdir()
    for program in ("sh", "setpriv", "unshare", "git", "true"):
        (bare / program).symlink_to(str(shutil.which(program)))
    machines.kill(machines.nodes[1])
    machines.add(PATH=str(bare))
    machines.sweep()
    document = machines.finish()
    (note,) = document["notes"]
    assert note.startswith("without ")
    assert "other delay backends (" in note
    assert len({run["machine"] for run in machines.runs()}) == 1


def test_real_runs_on_two_machines_interrupted_and_gone_on_with(machines: Machines) -> None:
    spec = machines.folder / "spec.yaml"
    spec.write_text(REAL)
    engine = f"{{kind: ray, address: '{machines.cluster.address}'}}"
    argv = [sys.executable, "-m", "testbed", "sweep", str(spec), "--output", str(machines.output), "--engine", engine]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: len(list(machines.folder.glob("slot-*/attempts/*/records/*/logs"))) == 2)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "0 of 2 runs done and kept" in errors
    assert not machines.processes()
    done = subprocess.run([*argv, "--json"], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode in (0, 4), done.stderr  # two at once on one machine may be too much for it
    document = json.loads(done.stdout)
    assert document["finished"]
    machines_used = {run["machine"] for point in document["points"] for run in point["runs"]}
    assert len(machines_used) == 2
    for point in document["points"]:
        for run in point["runs"]:
            assert (Path(run["record"]) / "report.html").is_file()
            assert (Path(run["record"]) / "iterations.parquet").is_file()


@pytest.mark.parametrize(("address", "why"), [("127.0.0.1:9", "refused"), ("ray://127.0.0.1:10001", "Ray's client")])
def test_no_cluster_is_said_with_what_to_do(tmp_path: Path, address: str, why: str) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(REAL)
    argv = [sys.executable, "-m", "testbed", "sweep", str(spec), "--output", str(tmp_path), "--engine"]
    done = subprocess.run(
        [*argv, f"{{kind: ray, address: '{address}'}}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert "no Ray cluster to connect to" in done.stderr
    assert why in done.stderr
    assert "ray start --head --resources" in done.stderr
