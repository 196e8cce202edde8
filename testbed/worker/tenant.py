"""A member of another job at a run's aggregator: `python -m testbed.worker.tenant CONFIGURATION`, in its host's
namespace.

It reduces the same numbers again and again and checks every sum. Says "ready" when it has begun; a line
"stop" on its standard input ends the reduction under way, and is answered with "changed stop" once what it did is in
its file. A switch that is lost ends its load, and not the process: the run goes on without.
"""

import json
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from switch_agg import clock
from switch_agg.client import Client
from switch_agg.errors import AggregationError
from switch_agg.job import Job
from switch_agg.quantize import Floats
from switch_agg.wire import PORTS


class TenantConfiguration(BaseModel):
    """Everything a worker of another job is given when it starts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: Job
    index: int
    aggregator: str
    size_bytes: int
    report_path: Path
    dilation: float = 1.0
    """How many times slower its timers run."""


@dataclass(slots=True)
class TenantReport:
    """What a member did."""

    reductions: int = 0
    wrong: int = 0
    """Of them, those whose sum was not the sum."""
    chunks_sent: int = 0
    """Repetitions included."""
    failure: str | None = None
    """Why it stopped before it was to."""


class Tenant:
    """Reduces on a thread of its own until it is stopped."""

    def __init__(self, configuration: TenantConfiguration) -> None:
        """Opens the socket. Raises OSError, and UnsupportedError where C cannot be built."""
        job = configuration.job
        self.report = TenantReport()
        self._values = contribution(configuration.index, configuration.size_bytes // 4)
        self._expected = np.sum(
            [contribution(index, len(self._values)) for index in range(job.num_workers)], axis=0, dtype=np.float32
        )
        self._client = Client(job, configuration.index, (configuration.aggregator, PORTS.start))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tenant")
        self._thread.start()

    def stop(self) -> TenantReport:
        """End what is under way."""
        self._stopping.set()
        self._client.cancel()
        self._thread.join()
        self.report.chunks_sent = self._client.counters.sent
        self._client.close()
        return self.report

    def _run(self) -> None:
        try:
            self._client.join()
            while not self._stopping.is_set():
                found = self._client.all_reduce("load", self._values)
                self.report.reductions += 1
                self.report.wrong += not np.array_equal(found, self._expected)
        except AggregationError as error:
            self.report.failure = None if self._stopping.is_set() else str(error)


def contribution(index: int, count: int) -> Floats:
    """(count,) whole numbers, whose sums float32 and the wire's integers both hold exactly."""
    return ((np.arange(count) * (2 * index + 1)) % 1021 - 510).astype(np.float32)


def main(configuration_json: str) -> None:
    """Serve until standard input ends."""
    configuration = TenantConfiguration.model_validate_json(configuration_json)
    clock.dilate(configuration.dilation)
    tenant = Tenant(configuration)
    _say("ready")
    for line in sys.stdin:
        configuration.report_path.write_text(json.dumps(asdict(tenant.stop())))
        _say(f"changed {line.strip()}")
    tenant.stop()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
