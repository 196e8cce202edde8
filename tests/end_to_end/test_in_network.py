"""In-network aggregation of a real run's gradients: loss, bytes and counters; and what happens when it dies."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import switch_agg
from switch_agg.control.service import ControlClient
from testbed.deployment.aggregator_control import sockets
from tests.here import invoke, summary_of

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(300)]

DISSECTOR = Path(switch_agg.__file__).parent / "wireshark" / "switch_agg.lua"
RACKS = "topology={kind: leaf_spine, leaves: 2, spines: 1}"
SHORT = (
    *("workload.iterations=4", "workload.compute_only=1", "workload.warmup=3", "workload.batch_size=8"),
    "workload.pace={forward: 50ms, backward: 100ms}",
)
"""Three iterations of warm-up: this network's last layers begin at zero, and a block that was zero before and is not
any more is done again. By the fourth iteration all have been."""


def words(output: Path, *settings: str) -> list[str]:
    overrides = [word for setting in (*SHORT, "metrics.port=0", *settings) for word in ("--set", setting)]
    spec = "experiments/quickstart.yaml"
    return ["run", spec, "--json", "--output", str(output), *overrides]


def run(output: Path, *settings: str, options: Sequence[str] = ()) -> dict[str, Any]:
    return summary_of(invoke(*words(output, *settings), *options))


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("ring"), "collective=ring")


@pytest.mark.parametrize("dataplane", ["ebpf", pytest.param("reference", marks=pytest.mark.slow)])
def test_the_switch_adds_and_training_goes_as_around_a_ring(
    ring: dict[str, Any], tmp_path: Path, dataplane: str
) -> None:
    summary = run(tmp_path, f"collective={{kind: in_network, dataplane: {dataplane}}}")
    (aggregator,) = summary["aggregators"]
    assert aggregator["lost"] is None
    assert aggregator["bad"] == 0
    assert aggregator["chunks"] > 1000
    latency = aggregator["slot_latency"]
    assert (latency is None) == (summary["allreduce"]["missing"] is not None), "withheld together"
    if latency is not None:
        assert 1000 < latency["num_chunks"] <= 4 * aggregator["chunks"], "of every worker, measured iterations alone"
        assert 0 < latency["median_s"] <= latency["p99_s"] <= latency["edges_s"][-1]
    assert not any("add up" in reason for reason in summary["reasons"])
    assert summary["loss"]["last"] == pytest.approx(ring["loss"]["last"], rel=0.01)
    assert summary["parameters_sha256"] is not None, "all workers end with the same bits"
    links = {(link["from"], link["to"]): link for link in summary["links"]}
    for worker in range(4):
        for direction in ((f"w{worker}", "s0"), ("s0", f"w{worker}")):
            # Each chunk once; what a busy machine makes workers repeat comes on top.
            assert links[direction]["bytes"] >= 0.99 * links[direction]["expected_bytes"]
    # Of each byte of floats 1080/1024 cross a link, and of a ring's 2(N-1)/N x 1514/1448: two thirds. In the steady
    # state no chunk is done again for its exponent.
    float_bytes = summary["allreduce"]["size_bytes"] * summary["num_iterations"]
    (expected_bytes,) = {links[f"w{worker}", "s0"]["expected_bytes"] for worker in range(4)}
    again_bytes = 1080 * aggregator["repeated"]
    parts = f"{expected_bytes} = {float_bytes} of floats, {again_bytes} of chunks done again, the rest headers"
    assert (expected_bytes - again_bytes) / float_bytes == pytest.approx(1080 / 1024, rel=0.002), parts
    assert again_bytes < 0.01 * expected_bytes, parts
    assert expected_bytes / ring["links"][0]["expected_bytes"] == pytest.approx(0.67, rel=0.015), parts


def test_wireshark_reads_what_crossed_a_link(tmp_path: Path) -> None:
    summary = run(tmp_path, "collective=in_network", "workers=2", options=("--capture", "w1-s0"))
    (captured,) = summary["captures"]
    assert captured["num_dropped"] == 0
    fields = ("ip.src", "frame.len", "switch_agg.kind", "switch_agg.chunk", "switch_agg.epoch")
    wanted = [word for field in fields for word in ("-e", field)]
    argv = ["tshark", "-r", str(Path(summary["record"], captured["file"])), "-X", f"lua_script:{DISSECTOR}"]
    argv += ["-Y", "switch_agg && !_ws.malformed", "-T", "fields", *wanted]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120).stdout
    rows = [line.split("\t") for line in shown.splitlines()]
    data = [row for row in rows if row[2] == "9"]
    (aggregator,) = summary["aggregators"]
    sources = {row[0] for row in data}
    assert len(sources) == 2, "contributions one way, results the other"
    for source in sources:
        # Chunks cross the link in messages, as TCP's segments do, and nothing but whole chunks of one epoch. What was
        # captured of each ends behind its first chunk's header.
        of_one = [(divmod(int(row[1]) - 42, 1038), int(row[3], 0)) for row in data if row[0] == source]
        assert {rest for (_, rest), _ in of_one} == {0}
        assert max(count for (count, _), _ in of_one) > 1
        assert sum(count for (count, _), _ in of_one) >= aggregator["chunks"]
        assert {first for _, first in of_one} <= set(range(aggregator["chunks"]))
    assert len({row[4] for row in data}) == 1
    assert {row[2] for row in rows} >= {"9", "2", "3"}, "the worker joined and left"


@pytest.mark.slow
def test_a_tree_adds_the_same_and_each_of_its_links_carries_each_chunk_once(
    ring: dict[str, Any], tmp_path: Path
) -> None:
    summary = run(tmp_path, RACKS, "collective={kind: in_network, at: tree}")
    root, *leaves = summary["aggregators"]
    assert (root["at"], root["children"], root["parent"]) == ("s2", ["a1", "a2"], None)
    assert [(leaf["at"], leaf["children"], leaf["parent"]) for leaf in leaves] == [
        ("s0", ["w0", "w1"], "a0"),
        ("s1", ["w2", "w3"], "a0"),
    ]
    assert root["chunks"] == leaves[0]["chunks"] == leaves[1]["chunks"] > 1000
    assert not any("add up" in reason for reason in summary["reasons"])
    assert summary["loss"]["last"] == pytest.approx(ring["loss"]["last"], rel=0.01)
    assert summary["parameters_sha256"] is not None, "all workers end with the same bits"
    links = {(link["from"], link["to"]): link for link in summary["links"]}
    for hop in (("w0", "s0"), ("s1", "w3"), ("s0", "s2"), ("s2", "s1")):
        assert links[hop]["expected_bytes"] == links["w0", "s0"]["expected_bytes"]
        assert links[hop]["bytes"] >= 0.99 * links[hop]["expected_bytes"]


@pytest.mark.slow
def test_two_jobs_and_a_straggler_share_a_switch(tmp_path: Path) -> None:
    tenants = "[{workers: [x0, x1], num_slots: 32, size: 64KiB}]"
    summary = run(
        tmp_path,
        "hosts={x0: {at: s0}, x1: {at: s0}, w3: {slowdown: 20}}",
        "workload.pace={forward: 20ms, backward: 40ms}",  # of the straggler 1.2 s, and a chunk waits for 10 ms
        f"collective={{kind: in_network, dataplane: reference, partial_after: 10ms, tenants: {tenants}}}",
    )
    (aggregator,) = summary["aggregators"]
    (tenant,) = aggregator["tenants"]
    assert (tenant["workers"], tenant["num_slots"]) == (["x0", "x1"], 32)
    assert tenant["reductions"] > 0
    assert aggregator["partial"] > 0
    assert any("without a straggler's contribution" in note for note in summary["notes"])
    assert not any("add up" in reason for reason in summary["reasons"]), "every sum of the other job was right"
    assert summary["parameters_sha256"] is not None, "all workers end with the same bits"


@pytest.mark.parametrize(
    "settings",
    [(), pytest.param((RACKS, "collective.at=tree"), marks=pytest.mark.slow)],
    ids=["the only one", "a leaf of a tree"],
)
def test_when_an_aggregator_is_killed_the_ring_goes_on(tmp_path: Path, settings: tuple[str, ...]) -> None:
    settings = (
        "collective={kind: in_network, dataplane: reference}",
        "timeout=6s",
        "workload.iterations=8",
        *settings,
    )
    argv = [sys.executable, "-m", "testbed", *words(tmp_path, *settings)]
    argv.remove("--json")  # progress goes to standard output then
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        assert started.stdout is not None
        said = []
        for line in started.stdout:
            said.append(line)
            # Said when the first worker is through the first of eight iterations, of 0.4 s at least on these links.
            if line.startswith("measured"):
                os.kill(aggregators_of(started.pid)[-1], signal.SIGKILL)
                break
        said.append(started.stdout.read())
    assert started.returncode in {0, 4}, "".join(said)
    (record,) = (path.parent for path in tmp_path.glob("*/summary.json"))
    summary = json.loads((record / "summary.json").read_text())
    assert "signal 9" in summary["aggregators"][-1]["lost"]
    assert any("went around the ring" in reason for reason in summary["reasons"])
    assert summary["num_iterations"] == 8
    assert summary["parameters_sha256"] is not None, "all workers end with the same bits"


@pytest.mark.slow
def test_a_reset_in_mid_run_is_noticed_and_the_ring_goes_on(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "testbed", *words(tmp_path, "collective=in_network", "workload.iterations=8")]
    argv.remove("--json")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        assert started.stdout is not None
        said = []
        for line in started.stdout:
            said.append(line)
            if line.startswith("measured"):
                (record,) = tmp_path.iterdir()
                (control,) = sockets("-".join(record.name.split("-")[-2:]))
                with ControlClient(control) as client:  # `switch-agg reset 0 --control ...`, and in time
                    (served,) = client.status().jobs
                    assert served.job.num_elements == 256
                    assert client.reset(0) != served.epoch
                break
        said.append(started.stdout.read())
    assert started.returncode in {0, 4}, "".join(said)
    summary = json.loads((record / "summary.json").read_text())
    assert any("went around the ring" in reason and "reset the job" in reason for reason in summary["reasons"])
    assert summary["num_iterations"] == 8
    assert summary["parameters_sha256"] is not None, "all workers end with the same bits"


def aggregators_of(coordinator: int) -> list[int]:
    """The aggregators' processes among the run's, in the order in which they were started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            ours = b"testbed.worker.aggregator" in (path / "cmdline").read_bytes().split(b"\0")
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if ours and parent == coordinator:
            found.append(int(path.name))
    return sorted(found)
