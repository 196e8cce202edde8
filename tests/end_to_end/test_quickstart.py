"""The README's first command, for real: train over an emulated network, measure, judge, record, report, clean."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from testbed.hosts.clean import leftovers
from testbed.record.reader import load
from testbed.record.status import read_status
from testbed.system.environment import is_virtual
from testbed.system.idle import REQUESTS, bearable_us
from testbed.system.processes import RUN_ID_VARIABLE
from testbed.system.run_state import RUN_ROOT, RunState, run_ids
from tests.here import invoke, summary_of
from tests.loopback import free_port
from tests.verdicts import assert_no_fault_of_the_links, not_of_the_machine

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(300)]

QUICKSTART = "experiments/quickstart.yaml"
SHORT = [
    "--set",
    "workload.pace={forward: 50ms, backward: 100ms}",
    *("--set", "workload.iterations=6", "--set", "workload.warmup=2", "--set", "workload.compute_only=1"),
    *("--set", "metrics.port=0"),
]
"""What computing lasts, and how often, is what most of a run's time is; it changes no number that has to do with bytes
or sums."""


def words(output: Path, *more: str) -> list[str]:
    return ["run", QUICKSTART, "--output", str(output), *SHORT, *more]


def argv(output: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "testbed", *words(output, *more)]


def run(output: Path, *more: str) -> dict[str, Any]:
    return summary_of(invoke(*words(output, *more, "--json")))


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    records = tmp_path_factory.mktemp("records")
    command = argv(records, "--json", "--track", f"tensorboard:{records / 'tensorboard'}")
    return summary_of(subprocess.run(command, capture_output=True, text=True, timeout=200, check=False))


def test_summary_keeps_the_contract_for_scripts(summary: dict[str, Any]) -> None:
    assert summary["schema_version"] == 4
    assert summary["num_workers"] == 4
    assert summary["num_iterations"] == 6
    assert summary["dilation"] == 1
    assert set(summary["iteration_time_s"]) == {"mean", "median", "p10", "p90"}
    assert summary["loss"]["first"] > 0
    assert re.fullmatch("[0-9a-f]{64}", summary["parameters_sha256"])
    keys = {"name", "from", "to", "rate_bps", "delay_s", "measured_rate_bps", "measured_delay_s", "bytes"}
    keys |= {"expected_bytes", "utilization_mean", "utilization_busy", "drops"}
    assert all(keys <= set(link) for link in summary["links"])
    assert {"size_bytes", "time_s", "bound_s", "predicted_s"} <= set(summary["allreduce"])
    predicted = summary["prediction"]
    assert predicted["iteration_error"] == predicted["iteration_time_s"] / summary["iteration_time_s"]["mean"] - 1
    assert {"deploy", "calibrate", "start", "tear_down"} <= set(summary["overhead_s"])


def test_each_link_carried_what_the_schedule_says_within_one_percent(summary: dict[str, Any]) -> None:
    assert len(summary["links"]) == 8
    for link in summary["links"]:
        assert link["bytes"] == pytest.approx(link["expected_bytes"], rel=0.01)
        assert 0 < link["acknowledgement_bytes"] < 0.05 * link["bytes"]
        assert link["measured_rate_bps"] == pytest.approx(100e6, rel=0.02)


def test_the_parts_of_an_iteration_add_up_and_physics_holds(summary: dict[str, Any]) -> None:
    names = ("compute_time_s", "data_time_s", "waiting_time_s", "optimizer_time_s", "other_time_s")
    parts = sum(summary[name] for name in names) + summary["exposed_communication_s"]
    assert parts == pytest.approx(summary["iteration_time_s"]["mean"], rel=1e-9)
    assert summary["iteration_time_s"]["mean"] > 0.98 * summary["allreduce"]["bound_s"]
    assert summary["allreduce"]["time_s"] > 0.98 * summary["allreduce"]["schedule_bound_s"]
    withheld = any("there is no network efficiency" in reason for reason in summary["reasons"])
    assert withheld if summary["network_efficiency"] is None else summary["network_efficiency"] > 0
    assert (summary["scaling_factor"] is None) == (summary["scaling_factor_missing"] is not None)
    assert summary["checked"]["num_bytes"] == summary["checked"]["num_directions"] == 8
    for link in summary["links"]:
        assert 0.2 < link["utilization_mean"] <= link["utilization_busy"] < 1.02


def test_communication_overlaps_backward(summary: dict[str, Any]) -> None:
    record = load(Path(summary["record"]))
    joined = record.buckets.join(record.iterations, on=["rank", "phase", "index"])
    measured = joined.filter(joined["phase"] == "measured")
    early = measured.filter(measured["first_byte_s"] < measured["backward_compute_end_s"])
    assert len(early) > 0


def test_waits_for_a_core_are_traced_while_iterations_are_measured(summary: dict[str, Any]) -> None:
    assert not any("waited for a core" in text for text in summary["checked"]["not_checked"])
    record = load(Path(summary["record"]))
    measured = record.iterations.filter(pl.col("phase") == "measured")
    begin_s, end_s = measured["start_s"].min(), measured["end_s"].max()
    waits = record.waits.filter((pl.col("begin_s") < end_s) & (pl.col("end_s") > begin_s))
    assert waits.height > 0.9 * record.waits.height, "what was before was not kept"
    assert set(waits["host"]) == {"w0", "w1", "w2", "w3"}
    assert set(waits["computing"]) == {True, False}, "threads that compute are apart from those that move gradients"
    assert (waits["end_s"] > waits["begin_s"]).all()


def test_threads_that_move_gradients_ran_before_those_that_compute_until_the_end(summary: dict[str, Any]) -> None:
    assert summary["checked"]["num_gradient_threads"] >= summary["num_workers"]
    said = [*summary["reasons"], *summary["notes"]]
    assert not any("before those that compute" in each for each in said)


def test_record_is_whole_and_the_report_stands_alone(summary: dict[str, Any], tmp_path: Path) -> None:
    record = Path(summary["record"])
    names = {path.name for path in record.iterdir()}
    assert {"spec.yaml", "plan.json", "environment.json", "calibration.json", "summary.json", "report.html"} <= names
    assert {"iterations.parquet", "buckets.parquet", "links.parquet", "logs"} <= names
    assert json.loads((record / "summary.json").read_text()) == summary
    environment = json.loads((record / "environment.json").read_text())
    assert environment["kernel"]
    assert environment["read_back"]["w0"]["qdiscs"]
    assert environment["wake_up_limit_us"] == (bearable_us(virtual=is_virtual()) if REQUESTS.exists() else None)
    html = (record / "report.html").read_text()
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']https?:", html)
    assert summary["run_id"] in html
    trace = tmp_path / "trace.json.gz"
    command = [sys.executable, "-m", "testbed", "report", str(record), "--trace", str(trace)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert {path.suffix for path in (record / "report-figures").iterdir()} == {".svg", ".png"}
    assert summary["run_id"] in (record / "report.md").read_text()
    waits = sum(event["name"] == "exposed communication" for event in events)
    assert waits >= summary["num_workers"] * summary["num_iterations"]


def test_the_result_is_where_it_is_to_be_tracked(summary: dict[str, Any]) -> None:
    record = Path(summary["record"])
    found = EventAccumulator(str(record.parent / "tensorboard" / record.name)).Reload()
    prefix = "invalid/" if summary["outcome"] == "invalid" else ""
    assert len(found.Scalars(f"{prefix}iteration/loss")) == 6
    assert found.Scalars(f"{prefix}run/iteration_time_s")[0].value == pytest.approx(summary["iteration_time_s"]["mean"])


@pytest.mark.slow
def test_same_seed_same_parameters_other_seed_others(summary: dict[str, Any], tmp_path: Path) -> None:
    assert run(tmp_path)["parameters_sha256"] == summary["parameters_sha256"]
    assert run(tmp_path, "--set", "seed=2")["parameters_sha256"] != summary["parameters_sha256"]


def test_gloo_runs_on_the_same_links(summary: dict[str, Any], tmp_path: Path) -> None:
    baseline = run(tmp_path, "--set", "stack=gloo")
    assert baseline["loss"]["last"] == pytest.approx(summary["loss"]["last"], rel=1e-3)
    for link in baseline["links"]:
        assert link["bytes"] == pytest.approx(link["expected_bytes"], rel=0.01)


@pytest.mark.slow
def test_openmpi_runs_on_the_same_links_and_on_nothing_else(summary: dict[str, Any], tmp_path: Path) -> None:
    """Its ranks share the machine's memory and must not use it: the bytes of the ring that it was configured to run are
    on the links."""
    baseline = run(tmp_path, "--set", "stack={kind: openmpi, algorithm: ring}")
    assert baseline["loss"]["last"] == pytest.approx(summary["loss"]["last"], rel=1e-3)
    for link in baseline["links"]:
        assert link["bytes"] == pytest.approx(link["expected_bytes"], rel=0.01)
    assert leftovers(baseline["run_id"]) == []


def test_every_gradient_equals_the_float64_mean(tmp_path: Path) -> None:
    verified = run(tmp_path, "--set", "workload.verify_gradients=true", "--set", "link.rate=1gbit")
    assert verified["num_iterations"] == 6


def test_nothing_is_left_behind(summary: dict[str, Any]) -> None:
    assert leftovers(summary["run_id"]) == []
    assert not (RUN_ROOT / summary["run_id"]).exists()


class Started:
    """A run in the background that has reached its iterations."""

    def __init__(self, output: Path, *more: str) -> None:
        known = set(run_ids())
        long = ["--set", "workload.iterations=1000", "--set", "timeout=10s"]
        self.process = subprocess.Popen(
            argv(output, *long, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        deadline_s = time.monotonic() + 90
        while not (new := [run_id for run_id in run_ids() if self._is_mine(run_id, known)]):
            assert time.monotonic() < deadline_s, "the run did not start"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)
        self.run_id = new.pop()
        while (status := read_status(self.run_id)) is None or status.phase != "measured":
            assert time.monotonic() < deadline_s, "the run did not reach its iterations"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)

    def _is_mine(self, run_id: str, known: set[str]) -> bool:
        try:  # others may run, and end, at the same time
            return run_id not in known and RunState.load(run_id).owned().coordinator.pid == self.process.pid
        except FileNotFoundError:
            return False

    def pid_of(self, name: str) -> int:
        owned = RunState.load(self.run_id).owned()
        return next(process.pid for process in owned.processes if process.name == name)

    def ended(self, timeout_s: float) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, errors


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_signal_cleans_up_and_exits_with_130(tmp_path: Path, number: signal.Signals) -> None:
    started = Started(tmp_path)
    started.process.send_signal(number)
    status, errors = started.ended(30)
    assert status == 130, errors
    assert leftovers(started.run_id) == []
    assert not (RUN_ROOT / started.run_id).exists()
    summary = json.loads(next(tmp_path.glob("*/summary.json")).read_text())
    assert summary["outcome"] == "failed"
    assert number.name in summary["reasons"][0]


def test_a_setting_that_changes_during_the_run_makes_it_invalid(tmp_path: Path) -> None:
    started = Started(tmp_path, "--set", "link.rate=1gbit", "--set", "workload.iterations=20")
    enter = ["nsenter", f"--net=/proc/{started.pid_of('w1')}/ns/net", "--"]
    route = ["ip", "route", "replace", "10.0.0.4/30", "dev", "w1-eth0", "proto", "kernel", "scope", "link"]
    subprocess.run([*enter, *route, "src", "10.0.0.6", "congctl", "reno"], check=True, timeout=20)
    status, errors = started.ended(90)
    assert status == 4, errors
    summary = json.loads(next(tmp_path.glob("*/summary.json")).read_text())
    assert summary["outcome"] == "invalid"
    heard, read_back = summary["reasons"][:2]
    assert "somebody else changed settings" in heard
    assert "w1: route set by process" in heard
    assert "w1: congestion control on the route to 10.0.0.4/30 is ['reno'], requested cubic" in read_back


@pytest.mark.parametrize("victim", ["w2", pytest.param("fork-server", marks=pytest.mark.slow)])
def test_a_killed_process_ends_the_run_with_its_name_and_leaves_nothing(tmp_path: Path, victim: str) -> None:
    started = Started(tmp_path)
    signal.pidfd_send_signal(os.pidfd_open(started.pid_of(victim)), signal.SIGKILL)
    status, errors = started.ended(30)
    assert status == 1
    assert ("worker 2 on w2" if victim == "w2" else "fork server") in errors
    assert "signal 9" in errors or "-9" in errors
    assert leftovers(started.run_id) == []


@pytest.mark.slow
def test_a_killed_holder_of_a_namespace_ends_the_run_with_its_node_and_a_whole_record(tmp_path: Path) -> None:
    started = Started(tmp_path)
    signal.pidfd_send_signal(os.pidfd_open(started.pid_of("holder of w1")), signal.SIGKILL)
    status, errors = started.ended(30)
    assert status == 1
    assert "the process that held the network namespace of w1" in errors
    assert "Traceback" not in errors
    summary = json.loads(next(tmp_path.glob("*/summary.json")).read_text())
    assert summary["outcome"] == "failed"
    assert "network namespace of w1" in summary["reasons"][0]
    assert leftovers(started.run_id) == []


@pytest.mark.slow
def test_packets_that_somebody_drops_are_named_as_such(tmp_path: Path) -> None:
    started = Started(tmp_path, "--set", "workload.iterations=12")
    enter = ["nsenter", f"--net=/proc/{started.pid_of('w1')}/ns/net", "--"]
    rule = ["INPUT", "-m", "statistic", "--mode", "random", "--probability", "0.005", "-j", "DROP"]
    subprocess.run([*enter, "iptables", "-w", "10", "-A", *rule], check=True, timeout=20)
    status, errors = started.ended(90)
    assert status == 4, errors
    summary = json.loads(next(tmp_path.glob("*/summary.json")).read_text())
    assert any("w1: packet filter set by process" in reason for reason in summary["reasons"])
    assert not any("timers fired" in reason for reason in summary["reasons"])


@pytest.mark.slow
def test_a_worker_that_is_stopped_for_a_while_degrades_the_run_and_is_named(tmp_path: Path) -> None:
    started = Started(tmp_path, "--set", "workload.iterations=12")
    pid = started.pid_of("w1")
    signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGSTOP)
    time.sleep(1.0)  # what is asserted is that so long a stop is noticed
    signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGCONT)
    status, errors = started.ended(90)
    assert status in (0, 4), errors
    summary = json.loads(next(tmp_path.glob("*/summary.json")).read_text())
    assert summary["outcome"] in ("degraded", "invalid")
    assert any("w1 was stopped for" in reason for reason in summary["reasons"])


@pytest.mark.slow
def test_a_killed_delay_daemon_ends_the_run_at_once_with_its_name_and_leaves_nothing(tmp_path: Path) -> None:
    started = Started(tmp_path, "--set", "link.delay=1ms", "--set", "link.backend=nfqueue", "--set", "timeout=600s")
    signal.pidfd_send_signal(os.pidfd_open(started.pid_of("delay-s0")), signal.SIGKILL)
    status, errors = started.ended(30)
    assert status == 1
    assert "the delay daemon of s0 was killed by signal 9" in errors
    assert leftovers(started.run_id) == []
    assert not (RUN_ROOT / started.run_id).exists()


def test_a_delay_is_measured_predicted_and_watched(tmp_path: Path) -> None:
    delayed = run(tmp_path, "--set", "link.delay=5ms", "--set", "link.backend=nfqueue")
    assert_no_fault_of_the_links(delayed["outcome"], delayed["reasons"])
    plan = json.loads((Path(delayed["record"]) / "plan.json").read_text())
    assert plan["delay_backend"] == "nfqueue"
    # Latency passes while a link carries the next message, but the last of each bucket has none to hide behind.
    all_reduce, path_delay_s = delayed["allreduce"], 2 * 5e-3
    assert all_reduce["predicted_s"] > all_reduce["bound_s"] + len(plan["buckets"]) * path_delay_s
    assert all_reduce["time_s"] > all_reduce["bound_s"] + len(plan["buckets"]) * path_delay_s
    for link in delayed["links"]:
        assert 5e-3 < link["measured_delay_s"] < 5.5e-3
        assert link["delay_line"]["num_packets"] > 100
        assert link["delay_line"]["num_dropped"] == 0
        assert 0 < link["delay_line"]["late_median_s"] <= link["delay_line"]["late_p99_s"]


@pytest.mark.slow
def test_a_run_over_relayed_links_is_valid_to_the_byte(tmp_path: Path) -> None:
    relayed = run(tmp_path, "--set", "link.delay=1ms", "--set", "link.backend=tap")
    # That other programs held the cores is no fault of the links; that nothing was dropped or lost is asserted below.
    assert not_of_the_machine(relayed["reasons"]) == []
    for link in relayed["links"]:
        assert abs(link["bytes"] / link["expected_bytes"] - 1) < 1e-3
        assert 1e-3 < link["measured_delay_s"] < 1.3e-3
        assert 0.5 < link["utilization_busy"] <= 1.01
        assert link["delay_line"]["num_dropped"] == 0
    samples = load(Path(relayed["record"])).links
    assert samples["backlog_bytes"].max() > 0


@pytest.mark.slow
def test_a_stopped_worker_is_noticed_within_the_timeout(tmp_path: Path) -> None:
    started = Started(tmp_path)
    signal.pidfd_send_signal(os.pidfd_open(started.pid_of("w1")), signal.SIGSTOP)
    status, errors = started.ended(40)
    assert status == 1
    assert "error: worker 1 on w1 has said nothing for 1" in errors, "those who waited for it are not the cause"
    assert leftovers(started.run_id) == []


def test_after_kill_9_of_the_coordinator_clean_removes_everything(tmp_path: Path) -> None:
    innocent = subprocess.Popen(["sleep", "300"], env={RUN_ID_VARIABLE: "another-run"})
    try:
        started = Started(tmp_path, "--set", "link.delay=1ms")
        started.process.kill()
        started.process.wait(30)
        done = subprocess.run(
            [sys.executable, "-m", "testbed", "clean", "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["remaining"] == []
        assert leftovers(started.run_id) == []
        assert not (RUN_ROOT / started.run_id).exists()
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def scraped(port: int) -> dict[str, Metric]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return {family.name: family for family in text_string_to_metric_families(answer.read().decode())}


@pytest.mark.slow
def test_the_metrics_endpoint_agrees_with_the_links(tmp_path: Path) -> None:
    port = free_port()
    started = Started(tmp_path, "--set", f"metrics.port={port}")
    deadline_s = time.monotonic() + 30
    try:
        while not (families := scraped(port))["testbed_iteration_seconds"].samples:  # not all workers are through one
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    finally:
        started.process.send_signal(signal.SIGINT)
        status, _ = started.ended(30)
    assert status == 130
    sent = families["testbed_link_transmit_bytes"].samples
    assert {sample.labels["port"] for sample in sent} == {
        *(f"w{rank}-eth0" for rank in range(4)),
        *(f"s0-eth{number}" for number in range(4)),
    }
    assert all(sample.labels["run"] == started.run_id and sample.value > 1e6 for sample in sent)
    assert families["testbed_iteration_seconds"].samples
    recorded = pl.read_parquet(next(tmp_path.glob("*/links.parquet")))
    for sample in sent:
        last = recorded.filter(pl.col("port") == sample.labels["port"])["class_bytes"].max()
        assert 0 < sample.value <= last


@pytest.mark.slow
def test_a_channel_that_is_not_the_kernels_is_counted_to_the_byte(tmp_path: Path) -> None:
    """Its ends report acknowledgements and what our own UDP sends again, so that a lossy run is judged as well."""
    lossy = ("--set", "channel=udp", "--set", "packet_mode=mtu", "--set", "link.loss=1%", "--set", "workers=2")
    summary = run(tmp_path, *lossy)
    assert not [reason for reason in summary["reasons"] if "bytes on the wire" in reason]
    for link in summary["links"]:
        assert link["acknowledgement_bytes"] > 0
        # What was lost on the link before never came here, what is lost behind it comes twice.
        assert 0.99 * link["expected_bytes"] < link["bytes"]
        assert link["bytes"] < 1.01 * (link["expected_bytes"] + link["retransmitted_bytes"])
    assert sum(link["retransmitted_bytes"] for link in summary["links"]) > 0
