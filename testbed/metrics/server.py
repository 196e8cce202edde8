"""A Prometheus of the run's own: Debian's `prometheus` on loopback, scraping the run's page once a second.

Its configuration, the rules and its data are kept in the record, `prometheus/`; :func:`reopen_command` shows them
again. It belongs to the run as every other process of it: recorded, marked, killed when the coordinator dies.
"""

import http.client
import json
import os
import shutil
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import yaml

from testbed.errors import MissingRequirementError, RunFailedError
from testbed.hosts.spawn import Output, SpawnedProcess, log_tail, spawn
from testbed.system.processes import RUN_ID_VARIABLE
from testbed.system.run_state import RunState

PROGRAM: Final = "prometheus"
FIX: Final = "apt-get install --no-install-recommends prometheus"
RULES: Final = Path(__file__).with_name("rules.yml")
DIRECTORY: Final = "prometheus"
"""Within the record."""
SCRAPE_INTERVAL_S: Final = 1.0
"""What the windows of rules.yml count on."""
_KEPT: Final = "100y"
_FIRST_SCRAPE: Final = "200ms"
"""So soon it looks at its targets; else the first five seconds of a run are missing. A hidden flag since 2.36."""
_READY_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 20.0
_SCRAPE_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.05
_ANSWER_TIMEOUT_S: Final = 30.0
_NUM_TRIES: Final = 3
_LOOPBACK: Final = "127.0.0.1"

Series = Mapping[tuple[str, str], Sequence[tuple[float, float]]]
"""Of one metric, by link and sending node (empty where it has none): Unix time and value of each scrape, in order."""


def configuration(target_port: int, rules: Path) -> str:
    """prometheus.yml for a page on loopback."""
    interval = f"{SCRAPE_INTERVAL_S:g}s"
    return yaml.safe_dump(
        {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "evaluation_interval": interval,
            },
            "rule_files": [str(rules.absolute())],
            "scrape_configs": [
                {"job_name": "testbed", "static_configs": [{"targets": [f"{_LOOPBACK}:{target_port}"]}]},
            ],
        },
        sort_keys=False,
    )


def arguments(configuration_path: str, data: Path, *, port: int) -> list[str]:
    """A command line: loopback only, without the interfaces that change or end it."""
    return [
        PROGRAM,
        f"--config.file={configuration_path}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address={_LOOPBACK}:{port}",
    ]


def reopen_command(record: Path, *, port: int = 9090) -> str:
    """How to look at what a run has left; with an empty configuration, so that nothing is added."""
    return " ".join(arguments("/dev/null", record / DIRECTORY / "data", port=port))


class PrometheusServer:
    """A running Prometheus. Callable from any thread."""

    def __init__(self, state: RunState, *, record: Path, log_directory: Path, target_port: int, port: int = 0) -> None:
        """Returns when it answers. Port 0 takes any free one. Raises MissingRequirementError with what it said."""
        self._state = state
        self._log_directory = log_directory
        self._directory = record / DIRECTORY
        self._directory.mkdir(parents=True, exist_ok=True)
        rules = self._directory / "rules.yml"
        shutil.copyfile(RULES, rules)
        self._configuration = self._directory / "prometheus.yml"
        self._configuration.write_text(configuration(target_port, rules))
        for left in reversed(range(_NUM_TRIES)):
            self.port = _available(port)
            self._process = self._start()
            try:
                self._wait_ready()
                break
            except MissingRequirementError as error:
                self.stop()
                # Somebody may take a port between its being found free and Prometheus' binding it.
                if port or not left or "address already in use" not in str(error):
                    raise

    @property
    def url(self) -> str:
        """The server's URL, for a browser."""
        return f"http://{_LOOPBACK}:{self.port}"

    def _start(self) -> SpawnedProcess:
        process = spawn(
            PROGRAM,
            # Root's only capability left is to reach a record that lies in somebody's home.
            [
                *("setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all,+dac_override", "--"),
                *arguments(str(self._configuration), self._directory / "data", port=self.port),
                *(f"--storage.tsdb.retention.time={_KEPT}", "--log.level=warn"),
                f"--scrape.discovery-reload-interval={_FIRST_SCRAPE}",
            ],
            Output(self._log_directory / f"{PROGRAM}.log", None),
            environment={
                "PATH": os.environ.get("PATH", os.defpath),
                "GOMAXPROCS": "1",  # the cores are the workers'
                RUN_ID_VARIABLE: self._state.run_id,
            },
        )
        self._state.add_process(PROGRAM, process.pid)
        return process

    def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        while True:
            try:
                if self._get("/-/ready")[0] == http.client.OK:
                    return
            except OSError:
                pass
            status = self._process.wait(_POLL_S)
            if status is not None or time.monotonic() > deadline_s:
                state = "is not ready in time" if status is None else f"ended with status {status}"
                raise MissingRequirementError(
                    f"metrics.prometheus: {PROGRAM} (2.36 or newer) on port {self.port} {state}: "
                    f"{log_tail(self._process.log_path)}"
                )

    def check(self) -> None:
        """Raise RunFailedError if it has ended."""
        status = self._process.poll()
        if status is not None:
            reason = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise RunFailedError(f"{PROGRAM} {reason}: {log_tail(self._process.log_path)}")

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now. Raises RunFailedError with what Prometheus says of it."""
        try:
            status, body = self._get(f"/api/v1/query?{urlencode({'query': expression})}")
        except OSError as error:
            self.check()
            raise RunFailedError(f"{PROGRAM} does not answer: {error}") from error
        if status != http.client.OK:
            raise RunFailedError(f"{PROGRAM} refuses {expression}: {body.decode(errors='replace')}")
        result: list[dict[str, Any]] = json.loads(body)["data"]["result"]
        return result

    def await_scrape(self) -> None:
        """Return when it has scraped what the page says now. Raises RunFailedError when it does not."""
        begun_s, deadline_s = time.time(), time.monotonic() + _SCRAPE_TIMEOUT_S
        while time.monotonic() < deadline_s:
            found = self.query(f"timestamp({self._selector('testbed_run_info')})")
            if any(float(each["value"][1]) > begun_s for each in found):
                return
            time.sleep(_POLL_S)
        raise RunFailedError(f"{PROGRAM} has not scraped the run's page for {_SCRAPE_TIMEOUT_S:g} s")

    def scrapes(self, names: Collection[str], *, over_s: float) -> Mapping[str, Series]:
        """Every scrape of these metrics over the last seconds, by name; of the same scrapes all of them."""
        every = "|".join(names)
        found = self.query(f'{{__name__=~"{every}",run="{self._state.run_id}"}}[{max(1, round(over_s))}s]')
        series: dict[str, dict[tuple[str, str], list[tuple[float, float]]]] = {name: {} for name in names}
        for each in found:
            labels = each["metric"]
            values = [(at_s, float(value)) for at_s, value in each["values"]]
            series[labels["__name__"]][labels.get("link", ""), labels.get("node", "")] = values
        return series

    def num_series(self) -> int:
        """How many series of the run there are now."""
        return int(next((each["value"][1] for each in self.query(f"count({self._selector('')})")), 0))

    def num_scrapes(self) -> int:
        """How many scrapes there have been since the run began."""
        found = self.query(f"count_over_time({self._selector('testbed_run_info')}[{_KEPT}])")
        return int(next((each["value"][1] for each in found), 0))

    def alerts(self) -> dict[str, int]:
        """Those that have fired since the run began, with what they were about: how many directions, workers, ..."""
        fired = f'ALERTS{{run="{self._state.run_id}", alertstate="firing"}}[{_KEPT}]'
        found = self.query(f"count by (alertname) (max_over_time({fired}))")
        return {each["metric"]["alertname"]: int(each["value"][1]) for each in found}

    def _selector(self, name: str) -> str:
        return f'{name}{{run="{self._state.run_id}"}}'

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(_LOOPBACK, self.port, timeout=_ANSWER_TIMEOUT_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()

    def stop(self) -> None:
        """End it; its data is complete then. Idempotent."""
        self._process.stop(_STOP_TIMEOUT_S)


def _available(port: int) -> int:
    """That port, or with 0 a free one. Raises MissingRequirementError: whoever has it might answer in our name."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError as error:
            raise MissingRequirementError(
                f"metrics.prometheus.port: {_LOOPBACK}:{port} is in use; set another, or 0 for any free one"
            ) from error
        found: int = probe.getsockname()[1]
        return found
