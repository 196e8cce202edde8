"""The run as Prometheus sees it: an HTTP endpoint off the emulated links.

Counters are the kernel's own cumulative counts, so `rate()` works. The record holds the results; this is for
watching.
"""

import errno
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from testbed.errors import EnvironmentLacksError

if TYPE_CHECKING:  # these import mininet's nodes
    from testbed.links.nfqueue import DelayCounters
    from testbed.live_links import Mark
    from testbed.measure.sampler import LinkSample

_QUANTILES: Final = (0.5, 0.99, 1.0)
_LINK_LABELS: Final = ("run", "link", "node", "port")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reading:
    """A link's last sample, and what only two samples tell."""

    sample: "LinkSample"
    utilization: float


_Family = tuple[str, str, Callable[[_Reading], float]]

# Counters get their `_total` from the client library.
_COUNTERS: Final[tuple[_Family, ...]] = (
    (
        "testbed_link_transmit_bytes",
        "Bytes sent by the link's HTB class, headers included.",
        lambda reading: reading.sample.class_bytes,
    ),
    (
        "testbed_link_transmit_packets",
        "Packets sent by the link's HTB class.",
        lambda reading: reading.sample.class_packets,
    ),
    ("testbed_link_drops", "Packets dropped in the link's queue.", lambda reading: reading.sample.drops),
)
_GAUGES: Final[tuple[_Family, ...]] = (
    (
        "testbed_link_backlog_bytes",
        "Bytes waiting in the link's queue.",
        lambda reading: reading.sample.backlog_bytes,
    ),
    (
        "testbed_link_rate_bits_per_second",
        "The rate the link is set to.",
        lambda reading: reading.sample.rate_bps,
    ),
    (
        "testbed_link_utilization_ratio",
        "Sent over possible since the last sample, 0 to 1.",
        lambda reading: reading.utilization,
    ),
)


class Exporter:
    """Serves `/metrics` from construction to :meth:`close`; with port None it does nothing.

    Series: 6 for each link direction, 3 more where a program delays its packets, 5 for each worker (sum, count and
    creation time of its iterations, loss, exposed communication) and 1 for the run. Without delays 69 for 4 workers on
    a star, 273 for 16. Two more for each direction that changes, and each source of changes.
    """

    def __init__(
        self,
        port: int | None,
        *,
        address: str = "127.0.0.1",
        run_id: str,
        information: Mapping[str, str] | None = None,
    ) -> None:
        """Port 0 takes any free one; `information` (the spec's name) becomes labels of testbed_run_info.

        Raises EnvironmentLacksError if the port cannot be had.
        """
        registry = CollectorRegistry()
        self._run_id = run_id
        self._links = _LinkCollector(run_id)
        registry.register(self._links)
        by_worker = ("run", "worker")
        self._iteration = Summary(
            "testbed_iteration_seconds",
            "Measured training iterations of a worker.",
            by_worker,
            registry=registry,
        )
        self._loss = Gauge(
            "testbed_loss", "Training loss of the worker's last iteration.", by_worker, registry=registry
        )
        self._exposed = Gauge(
            "testbed_exposed_communication_seconds",
            "Communication of the worker's last iteration that computing did not hide.",
            by_worker,
            registry=registry,
        )
        self._changes = Counter(
            "testbed_link_changes",
            "Settings of the link that were changed while the run went on, by what changed them.",
            ("run", "link", "node", "source"),
            registry=registry,
        )
        labels = {"run": run_id, **(information or {})}
        Gauge("testbed_run_info", "The run being measured; always 1.", tuple(labels), registry=registry).labels(
            **labels
        ).set(1)
        self._server: WSGIServer | None = None
        if port is not None:
            self._server, self._thread = _serve(port, address, registry)

    @property
    def port(self) -> int | None:
        """Where it listens; None while it does not."""
        return None if self._server is None else self._server.server_port

    def watch_lateness(self, counters: "Callable[[], Mapping[tuple[str, str], DelayCounters]]") -> None:
        """Ask, at every scrape, what the delay lines have done; by link and sending node."""
        self._links.delay_counters = counters

    def update_links(self, samples: "Sequence[LinkSample]") -> None:
        """The last sample of every link direction. One thread at a time."""
        self._links.update(samples)

    def count_changes(self, marks: "Sequence[Mark]") -> None:
        """Settings that were changed just now. Any thread may call it."""
        for mark in marks:
            self._changes.labels(self._run_id, mark.link, mark.node, mark.source).inc()

    def observe_iteration(
        self, *, worker: str, iteration_s: float, exposed_communication_s: float, loss: float
    ) -> None:
        """One iteration of one worker (`w0`). Any thread may call it."""
        self._iteration.labels(self._run_id, worker).observe(iteration_s)
        self._exposed.labels(self._run_id, worker).set(exposed_communication_s)
        self._loss.labels(self._run_id, worker).set(loss)

    def close(self) -> None:
        """Stop serving and free the port. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()


class _LinkCollector(Collector):
    """Turns the last readings into metrics when someone asks."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._readings: dict[tuple[str, str], _Reading] = {}
        self.delay_counters: Callable[[], Mapping[tuple[str, str], DelayCounters]] = dict

    def update(self, samples: "Sequence[LinkSample]") -> None:
        readings = {}
        for sample in samples:
            key = sample.link, sample.node
            before = self._readings.get(key)
            utilization = _utilization(before.sample, sample) if before is not None else 0.0
            readings[key] = _Reading(sample=sample, utilization=utilization)
        # Scrapes run in their own threads and see the old readings or the new ones, never a mixture.
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        readings = tuple(self._readings.values())
        for name, text, value in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=_LINK_LABELS)
            for reading in readings:
                counter.add_metric(self._labels(reading), value(reading))
            yield counter
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=_LINK_LABELS)
            for reading in readings:
                gauge.add_metric(self._labels(reading), value(reading))
            yield gauge
        yield self._lateness()

    def _lateness(self) -> Metric:
        family = GaugeMetricFamily(
            "testbed_delay_line_late_seconds",
            "How much later than asked packets were let go since the link was made, by quantile.",
            labels=("run", "link", "node", "quantile"),
        )
        for (link, node), counters in self.delay_counters().items():
            for share in _QUANTILES:
                late_s = counters.late_s(share)
                if late_s is not None:
                    family.add_metric([self._run_id, link, node, f"{share:g}"], late_s)
        return family

    def _labels(self, reading: _Reading) -> list[str]:
        sample = reading.sample
        return [self._run_id, sample.link, sample.node, sample.port]


def _utilization(before: "LinkSample", after: "LinkSample") -> float:
    elapsed_s = after.at_s - before.at_s
    return 8 * (after.class_bytes - before.class_bytes) / (after.rate_bps * elapsed_s) if elapsed_s > 0 else 0.0


def _serve(port: int, address: str, registry: CollectorRegistry) -> tuple[WSGIServer, threading.Thread]:
    try:
        return start_http_server(port, address, registry)
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror or error})"
        raise EnvironmentLacksError(
            f"metrics.port: {address}:{port} {reason}; set another port with `--set metrics.port=9465`, "
            "any free one with `metrics.port=0`, or none with `metrics.port=null`"
        ) from error
