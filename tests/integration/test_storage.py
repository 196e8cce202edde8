"""Workers read from a storage node over links that are shaped, measured and counted as all others."""

import json
import signal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from testbed.calibration.cache import Mode
from testbed.control import control_pb2 as messages
from testbed.errors import RunFailedError
from testbed.experiment.experiment import validate
from testbed.hosts.base import Process
from testbed.machine.doctor import plan_here
from testbed.plan.storage import StoragePlan
from testbed.record.reader import load
from testbed.record.summary import Summary
from testbed.report.chrome_trace import chrome_trace
from testbed.report.terminal.summary import LiveProgress
from testbed.runner.coordinator import Listener
from testbed.runner.run import run_experiment
from testbed.runner.session import Session, session
from testbed.system.run_state import new_run_id
from tests.load import is_busy
from tests.verdicts import assert_stands

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(120)]

DATA_BYTES = 2_000_000
DISK_BPS = 40e6


def run(tmp_path: Path, **keys: Any) -> Summary:
    spec = {
        "name": "storage",
        "workers": 3,
        "link": {"rate": "100mbit"},
        "links": {"d0-s0": {"rate": "80mbit", "delay": "1ms"}},
        "workload": {"kind": "training", "batch_size": 4, "warmup": 2, "compute_only": 1, "iterations": 4}
        | {"pace": {"forward": "40ms", "backward": "80ms"}},
        "metrics": {"port": None},
        **keys,
    }
    progress = LiveProgress(Console(quiet=True), enabled=False)
    return run_experiment(validate(spec), output=tmp_path, progress=progress, calibration_mode=Mode.CLASS)


@pytest.fixture
def busy() -> bool:
    """Whether others use the machine."""
    return is_busy()


def link(summary: Summary, sender: str, receiver: str) -> Any:
    return next(each for each in summary.links if (each.from_, each.to) == (sender, receiver))


@pytest.mark.quiet  # a result that stands
def test_what_is_read_before_the_first_iteration_takes_as_long_as_the_disk_and_is_counted(
    tmp_path: Path, *, busy: bool
) -> None:
    summary = run(tmp_path, storage={"kind": "full_read", "data": f"{DATA_BYTES}B", "disk": f"{DISK_BPS / 1e6:g}mbit"})
    assert_stands(summary.outcome, summary.reasons, busy=busy)
    assert link(summary, "d0", "s0").measured_rate_bps is not None, "calibrated as all others"
    assert link(summary, "d0", "s0").bytes < 20_000, "nothing is read while iterations are measured"
    storage, stages = summary.storage, summary.stages
    assert storage is not None
    assert stages is not None
    assert storage.num_checked == len(summary.links), "on every direction"
    assert storage.start_least_s == pytest.approx(3 * DATA_BYTES * 8 / DISK_BPS)
    assert storage.start_least_s <= stages.reading_s < 1.5 * storage.start_least_s
    assert stages.unaccounted_s < 0.2 * stages.wall_s
    record = load(Path(summary.record))
    read = record.stages.filter(pl.col("stage") == "reading")
    assert read.group_by("rank").agg(pl.col("size_bytes").sum())["size_bytes"].to_list() == [DATA_BYTES] * 3
    names = {event["name"] for event in chrome_trace(record)["traceEvents"]}
    assert {"start", "reading"} <= names
    assert json.loads((record.path / "plan.json").read_text())["storage"]["node"] == "d0"


@pytest.mark.quiet  # results that stand
@pytest.mark.parametrize("prefetch", [True, False])
def test_batches_are_counted_with_the_gradients_and_waited_for_unless_they_come_before(
    tmp_path: Path, *, prefetch: bool, busy: bool
) -> None:
    sample = 50_000
    summary = run(
        tmp_path,
        storage={"kind": "batch_read", "sample": f"{sample}B", "prefetch": prefetch, "disk": f"{DISK_BPS / 1e6:g}mbit"},
    )
    assert_stands(summary.outcome, summary.reasons, busy=busy)
    batch_bytes = 4 * sample
    from_storage, to_worker = link(summary, "d0", "s0"), link(summary, "s0", "w1")
    assert from_storage.expected_bytes == from_storage.input_bytes
    assert from_storage.bytes == pytest.approx(4 * 3 * batch_bytes * 1514 / 1448, rel=0.01), "one for each iteration"
    assert to_worker.bytes == pytest.approx(to_worker.expected_bytes, rel=0.01)
    storage = summary.storage
    assert storage is not None
    assert storage.batch_read_s is not None
    assert storage.batch_read_s > 0.9 * batch_bytes * 8 / DISK_BPS
    assert summary.data_time_s is not None
    if prefetch:
        assert summary.data_time_s < 0.5 * storage.batch_read_s, "computing and communicating take longer"
    else:
        assert summary.data_time_s >= storage.batch_read_s
    record = load(Path(summary.record))
    assert record.stages.filter(pl.col("stage") == "batch")["size_bytes"].unique().to_list() == [batch_bytes]


def test_a_storage_node_that_is_killed_ends_the_run_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Process] = []
    start = Session._start_storage

    def remember(bench: Session, storage: StoragePlan) -> Process:
        started.append(start(bench, storage))
        return started[-1]

    class Kill(Listener):
        def on_stage(self, rank: int, stage: messages.Stage) -> None:
            if stage.name == "reading":
                started[0].send_signal(signal.SIGKILL)

    monkeypatch.setattr(Session, "_start_storage", remember)
    storage = {"kind": "full_read", "data": "1GB"}
    plan = plan_here(validate({"name": "x", "workers": 2, "storage": storage, "metrics": {"port": None}}))
    with (
        session(plan, run_id=new_run_id(), log_directory=tmp_path) as bench,
        pytest.raises(RunFailedError, match="storage node d0"),
    ):
        bench.work(Kill(), timeout_s=60.0)
    assert started[0].wait(5.0) == -signal.SIGKILL
