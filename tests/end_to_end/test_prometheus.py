"""`testbed run --prometheus`, for real: its counters are the record's, and every dashboard has something to show."""

import http.client
import json
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import polars as pl
import pytest
import yaml

from testbed.errors import SpecError
from testbed.hosts.clean import leftovers
from testbed.metrics.server import RULES, reopen_command
from testbed.record.status import alive_runs, read_status
from testbed.runner.link_client import change_links
from tests.here import invoke, summary_of
from tests.loopback import free_port

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(300)]

DASHBOARDS = sorted((Path(__file__).parents[2] / "docker" / "grafana" / "dashboards").glob("*.json"))
# Delay lines, a queue that is full, a change and an aggregating switch: a series for every question.
SPEC = """
name: watched
workers: 2
link: {rate: 40mbit, delay: 1ms, backend: nfqueue}
collective: {kind: in_network, dataplane: reference}
workload: {kind: training, batch_size: 8, compute_only: 1, warmup: 2, iterations: 4}
changes: [{at: 500ms, link: w1-s0, rate: 36mbit}]
metrics: {port: 0}
"""


def change_after_work(known: set[str], ended: threading.Event) -> str:
    """What a run that is none of those known answers to a change while it is compared with Prometheus."""
    while not ended.wait(0.01):
        for run_id in set(alive_runs()) - known:
            status = read_status(run_id)
            if status is not None and (status.name, status.phase) == ("watched", "compare with Prometheus"):
                try:
                    return str(change_links(run_id, "w0-s0", {"rate": "30mbit"}))
                except SpecError as error:
                    return str(error)
    return "the run was never compared with Prometheus"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The run's summary, and what it answered to a change of a link once its workers had ended."""
    output = tmp_path_factory.mktemp("records")
    (output / "watched.yaml").write_text(SPEC)
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(change_after_work, set(alive_runs()), ended)
        try:
            done = invoke("run", output / "watched.yaml", "--output", output, "--prometheus", "--json")
        finally:
            ended.set()
        return summary_of(done), answer.result()


@pytest.fixture(scope="module")
def summary(watched: tuple[dict[str, Any], str]) -> dict[str, Any]:
    return watched[0]


class Reopened:
    """The record's data, by the command that the run prints."""

    def __init__(self, record: Path) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            shlex.split(reopen_command(record, port=self.port)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        samples = pl.read_parquet(record / "links.parquet")
        summary = json.loads((record / "summary.json").read_text())
        begun_s = datetime.fromisoformat(summary["started_at"]).timestamp()
        self.span = {"start": begun_s, "end": begun_s + float(samples["at_s"].max()) + 5, "step": 0.5}  # type: ignore[arg-type]
        self.run_id = summary["run_id"]
        deadline_s = time.monotonic() + 30
        while not self._ready():
            assert time.monotonic() < deadline_s
            time.sleep(0.1)

    def _ready(self) -> bool:
        try:
            return self._get("/-/ready").status == http.client.OK
        except OSError:
            return False

    def _get(self, path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("GET", path)
        return connection.getresponse()

    def series(self, expression: str) -> list[dict[str, Any]]:
        answer = json.load(self._get(f"/api/v1/query_range?{urlencode({'query': expression, **self.span})}"))
        assert answer["status"] == "success", (expression, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found


@pytest.fixture(scope="module")
def reopened(summary: dict[str, Any]) -> Iterator[Reopened]:
    made = Reopened(Path(summary["record"]))
    yield made
    made.process.terminate()
    assert made.process.wait(20) == 0


def test_its_counters_are_the_records_and_it_leaves_nothing(summary: dict[str, Any]) -> None:
    seen = summary["prometheus"]
    assert seen["differences"] == []
    assert seen["num_scrapes"] >= 3
    assert not [reason for reason in summary["reasons"] if "Prometheus" in reason]
    assert leftovers(summary["run_id"]) == []


def test_no_link_changes_once_the_workers_have_ended(watched: tuple[dict[str, Any], str]) -> None:
    """Nobody would record it, and the sampler has gone that tells the run's own changes from those of others."""
    assert watched[1].startswith("links cannot be changed now")


def test_the_record_opened_again_has_the_last_counters_to_the_byte(summary: dict[str, Any], reopened: Reopened) -> None:
    recorded = pl.read_parquet(Path(summary["record"]) / "links.parquet").sort("at_s")
    found = reopened.series(f'testbed_link_transmit_bytes_total{{run="{reopened.run_id}"}}')
    assert len(found) == recorded.select("link", "node").n_unique()
    for series in found:
        of = series["metric"]
        mine = recorded.filter((pl.col("link") == of["link"]) & (pl.col("node") == of["node"]))
        assert float(series["values"][-1][1]) == mine["class_bytes"][-1]


def substituted(expression: str, run_id: str) -> str:
    found = re.sub(r"\$(link|worker|aggregator)\b", ".*", expression.replace("$run", run_id))
    assert "$" not in found
    return found


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_returns_series(path: Path, reopened: Reopened) -> None:
    dashboard = json.loads(path.read_text())
    empty = [
        (panel["title"], target["expr"])
        for panel in dashboard["panels"]
        for target in panel["targets"]
        if not reopened.series(substituted(target["expr"], reopened.run_id))
    ]
    assert empty == []
    for variable in dashboard["templating"]["list"]:
        metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]).groups()
        found = reopened.series(substituted(metric, reopened.run_id))
        assert found
        assert all(series["metric"][label] for series in found)


def test_every_recording_rule_has_recorded(reopened: Reopened) -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    recorded = [rule["record"] for rule in rules if "record" in rule]
    assert [name for name in recorded if not reopened.series(name)] == []
