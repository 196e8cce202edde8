"""A training of four workers on two machines, which two namespaces play: bytes, rates, and what the verdict says when
the network between is too slow."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from testbed.hosts.clean import clean
from testbed.record.reader import load
from testbed.record.status import read_status
from testbed.store.documents import origin_here
from testbed.store.reuse import unlike
from testbed.system.processes import processes_of_run
from testbed.system.run_state import RUN_ROOT, run_ids
from tests.bystanders import wait_until
from tests.here import invoke
from tests.underlay import Underlay
from tests.verdicts import assert_no_fault_of_the_links

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(300)]

SHORT = [
    *("--set", "workload.pace={forward: 50ms, backward: 100ms}"),
    *("--set", "workload.iterations=6", "--set", "workload.warmup=2", "--set", "workload.compute_only=1"),
    *("--set", "metrics.port=0"),
]


@pytest.fixture
def underlay(tmp_path: Path) -> Iterator[Underlay]:
    with ExitStack() as stack:
        yield Underlay(stack, tmp_path)


def words(underlay: Underlay, output: Path, *more: str) -> list[str]:
    machines = underlay.file(["s0", "w0", "w1"], ["w2", "w3"])
    return ["run", "experiments/quickstart.yaml", "--output", str(output), "--machines", str(machines), *SHORT, *more]


def run(underlay: Underlay, output: Path, *more: str) -> dict[str, Any]:
    done = invoke(*words(underlay, output, *more, "--json"))
    assert done.returncode in {0, 4}, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 4) == (summary["outcome"] == "invalid")
    return summary


def test_four_workers_train_on_two_machines(underlay: Underlay, tmp_path: Path) -> None:
    before = underlay.sent_bytes(0)
    summary = run(underlay, tmp_path / "results")
    reasons = [reason for reason in summary["reasons"] if "differed by" not in reason]  # which a busy machine makes
    assert_no_fault_of_the_links(summary["outcome"], reasons)
    assert len(summary["links"]) == 8
    for link in summary["links"]:
        assert link["bytes"] == pytest.approx(link["expected_bytes"], rel=0.01)
        assert link["measured_rate_bps"] == pytest.approx(link["rate_bps"], rel=0.01)
    crossing = [link for link in summary["links"] if {link["from"], link["to"]} & {"w2", "w3"}]
    assert [link["rate_measured_on"] for link in crossing if link["from"] == "w2"] == ["w2 -> s0"]
    inner = sum(link["bytes"] for link in crossing if link["from"] == "s0")
    assert underlay.sent_bytes(0) - before > inner
    (note,) = (note for note in summary["notes"] if "that 2 links need" in note)
    assert "packets of 1600 bytes of 1550" in note
    record = load(Path(summary["record"]))
    assert [len(measured) for measured in record.environment["underlay"]] == [2, 2]
    assert unlike(Path(summary["record"]), origin_here())[0].endswith("one of 2 machines)"), (
        "it stands for no other run"
    )
    assert record.plan["spread"]["links_between"] == ["w2-s0", "w3-s0"]
    wait_until(lambda: underlay.sockets() == [], "the kernel closes the sockets of links")


def test_a_network_that_is_slower_than_the_sum_is_invalid_before_it_costs_a_run(
    underlay: Underlay, tmp_path: Path
) -> None:
    underlay.slow_down("150mbit")
    summary = run(underlay, tmp_path / "results")
    assert summary["outcome"] == "invalid"
    said = summary["reasons"][0]
    assert "carried 14" in said or "carried 15" in said, "what arrives where others use the cores"
    assert "the 2 links over it need 207mbit (200mbit together" in said
    assert summary["links"] == []


def test_a_network_that_becomes_slower_than_the_sum_is_invalid(underlay: Underlay, tmp_path: Path) -> None:
    """Both links are slower than it and were measured so, one after the other."""
    slowed = threading.Event()

    def slow_down() -> None:
        wait_until(lambda: _phase(os.getpid()) == "measured" or slowed.is_set(), "it trains")
        underlay.slow_down("150mbit")

    slowing = threading.Thread(target=slow_down)
    slowing.start()
    try:
        summary = run(underlay, tmp_path / "results")
    finally:
        slowed.set()
        slowing.join()
    assert summary["outcome"] == "invalid"
    (said,) = (reason for reason in summary["reasons"] if "the network from machine m0 to m1 carried" in reason)
    assert "carried 14" in said or "carried 15" in said
    assert len(summary["links"]) == 8


@pytest.mark.parametrize("whom", ["agent", "coordinator"])
def test_whoever_is_killed_nothing_is_left(underlay: Underlay, tmp_path: Path, whom: str) -> None:
    argv = [sys.executable, "-m", "testbed", *words(underlay, tmp_path / "results", "--set", "workload.iterations=500")]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: _phase(process.pid) == "measured", "it trains")
        run_id = _run_of(process.pid)
        assert run_id is not None
        processes = json.loads((RUN_ROOT / run_id / "state.json").read_text())["processes"]
        (agent,) = (each["pid"] for each in processes if each["name"] == "machine m1")
        if whom == "agent":
            os.kill(agent, signal.SIGKILL)
            _, said = process.communicate(timeout=60)
            assert process.returncode == 1
            assert f"the agent of machine m1 (pid {agent}) has ended" in said
            assert "(w2, w3)" in said
    finally:
        process.kill()
        process.communicate()
    assert clean(run_id).remaining == []
    assert processes_of_run(run_id) == []
    assert run_id not in run_ids()
    wait_until(lambda: underlay.sockets() == [], "the kernel closes the sockets of links")


def _run_of(pid: int) -> str | None:
    """The run whose coordinator that is."""
    for run_id in run_ids():
        with suppress(FileNotFoundError, KeyError):
            if json.loads((RUN_ROOT / run_id / "state.json").read_text())["coordinator"]["pid"] == pid:
                return run_id
    return None


def _phase(pid: int) -> str | None:
    run_id = _run_of(pid)
    status = None if run_id is None else read_status(run_id)
    return None if status is None else status.phase
