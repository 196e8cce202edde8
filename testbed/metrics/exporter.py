"""A run's page of metrics: an HTTP endpoint off the emulated links.

Counters are the kernel's own cumulative counts, so `rate()` works. The record holds the results; this is for
watching.
"""

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from switch_agg.metrics import AggregatorCollector, Scraped
from testbed.errors import MissingRequirementError
from testbed.metrics import families
from testbed.metrics.families import PORT, Family

if TYPE_CHECKING:  # these import mininet's nodes
    from testbed.deployment.live_links import LinkChangeEvent
    from testbed.experiment.delay_backends.base import DelayCounters
    from testbed.measure.backlog import BacklogProbe
    from testbed.measure.machine import MachineSample
    from testbed.measure.sampler import LinkSample

_QUANTILES: Final = (0.5, 0.99, 1.0)
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")

Row = tuple[str, tuple[str, ...], float]
"""A suffix of the family's name, its labels' values without `run`, the value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationTimes:
    """Where one measured iteration of one worker went; virtual seconds, but for the last three."""

    parts_s: Mapping[str, float]
    """By the names of ITERATION_PART_NAMES; they add up to the iteration."""
    service_s: float
    """Wall seconds in which at least one of its buckets was in service."""
    run_queue_s: float
    """Wall seconds for which the threads that move gradients waited for a core."""
    run_queue_beyond_bound_s: float
    """Of these no more than its buckets took beyond what links need."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reading:
    """A link's last sample, and what only two samples tell."""

    sample: "LinkSample"
    utilization: float

    @property
    def labels(self) -> tuple[str, str, str]:
        return self.sample.link, self.sample.node, self.sample.port


@dataclass(slots=True)
class _Worker:
    """Totals of one worker."""

    num_iterations: int = 0
    iterations_s: float = 0.0
    parts_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(families.ITERATION_PART_NAMES, 0.0))
    service_s: float = 0.0
    run_queue_s: float = 0.0
    run_queue_beyond_bound_s: float = 0.0
    loss: float | None = None
    last_at_s: float = 0.0
    """Unix time."""


class Exporter:
    """Serves `/metrics` from construction to :meth:`close`; with port None it does nothing.

    How many series there are says testbed.metrics.families.max_series: 163 for 4 workers on a star, 2503 for 64.
    """

    def __init__(
        self,
        port: int | Literal["auto"] | None,
        *,
        address: str = "127.0.0.1",
        run_id: str,
        information: Mapping[str, str] | None = None,
        dilation: float = 1.0,
    ) -> None:
        """Port 0 takes any free one, `auto` the usual one (PORT) if it is free, else any; `information` (the name of
        the spec) becomes labels of testbed_run_info. `dilation`: samples come with virtual rates and real times.

        Raises MissingRequirementError if the port cannot be had.
        """
        self._address = address
        self._registry = CollectorRegistry()
        self._run = _RunCollector(run_id, (information or {}).get("name", ""), dilation)
        self._registry.register(self._run)
        self._server: WSGIServer | None = None
        if port == "auto":
            try:
                self._server, self._thread = _serve(PORT, address, self._registry)
            except MissingRequirementError:
                port = 0
            else:
                return
        if port is not None:
            self._server, self._thread = _serve(port, address, self._registry)

    @property
    def clock_offset_s(self) -> float:
        """Unix time less CLOCK_MONOTONIC, as the page has it: whoever sets the wall clock changes nothing on it."""
        return self._run.clock_offset_s

    @property
    def port(self) -> int | None:
        """The port on which the page is served; None while it is not."""
        return None if self._server is None else self._server.server_port

    @property
    def url(self) -> str | None:
        """The page's URL; None where there is none."""
        return None if self._server is None else f"http://{self._address}:{self.port}/metrics"

    def watch_lateness(self, counters: "Callable[[], Mapping[tuple[str, str], DelayCounters]]") -> None:
        """Ask, at every scrape, what the delay lines have done; by link and sending node."""
        self._run.delay_counters = counters

    def watch_aggregators(self, scraped: Callable[[], Sequence[Scraped]]) -> None:
        """Ask, at every scrape, what the aggregating switches have done."""
        self._registry.register(AggregatorCollector(scraped))

    def update_links(self, samples: "Sequence[LinkSample]") -> None:
        """The last sample of every link direction. One thread at a time."""
        self._run.update_links(samples)

    def update_machine(self, sample: "MachineSample") -> None:
        """The machine's last sample."""
        self._run.machine = sample

    def count_probe(self, probe: "BacklogProbe") -> None:
        """What a link sent while packets surely waited. Any thread may call it."""
        self._run.count_probe(probe)

    def count_changes(self, events: "Sequence[LinkChangeEvent]") -> None:
        """Settings that were changed just now. Any thread may call it."""
        self._run.count_changes(events)

    def note_iteration(self, worker: str) -> None:
        """The worker (`w0`) has ended an iteration, of any phase. Any thread may call it."""
        self._run.note_iteration(worker)

    def observe_iteration(self, worker: str, times: IterationTimes, *, loss: float) -> None:
        """One measured iteration of one worker. Any thread may call it."""
        self._run.observe_iteration(worker, times, loss)

    def close(self) -> None:
        """Stop serving and free the port. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.socket.shutdown(socket.SHUT_RDWR)  # wakes its thread, which else looks twice a second
            server.shutdown()
            server.server_close()
            self._thread.join()


class _RunCollector(Collector):
    """Turns what is known into metrics when someone asks."""

    def __init__(self, run_id: str, name: str, dilation: float) -> None:
        self._run_id = run_id
        self._name = name
        self._dilation = dilation
        self.clock_offset_s = time.time() - time.monotonic()
        self._lock = threading.Lock()
        self._readings: dict[tuple[str, str], _Reading] = {}
        self._workers: dict[str, _Worker] = {}
        self._probed: dict[tuple[str, str], tuple[float, int]] = {}
        self._changes: dict[tuple[str, str, str], int] = {}
        self.machine: MachineSample | None = None
        self.delay_counters: Callable[[], Mapping[tuple[str, str], DelayCounters]] = dict

    def update_links(self, samples: "Sequence[LinkSample]") -> None:
        readings = {}
        for sample in samples:
            key = sample.link, sample.node
            before = self._readings.get(key)
            utilization = self._dilation * _utilization(before.sample, sample) if before is not None else 0.0
            readings[key] = _Reading(sample=sample, utilization=utilization)
        # Scrapes run in their own threads and see the old readings or the new ones, never a mixture.
        self._readings = readings

    def count_probe(self, probe: "BacklogProbe") -> None:
        key = probe.link, probe.node
        with self._lock:
            due, sent = self._probed.get(key, (0.0, 0))
            self._probed[key] = due + probe.due_bytes, sent + probe.sent_bytes

    def count_changes(self, events: "Sequence[LinkChangeEvent]") -> None:
        with self._lock:
            for event in events:
                key = event.link, event.node, event.source
                self._changes[key] = self._changes.get(key, 0) + 1

    def note_iteration(self, worker: str) -> None:
        with self._lock:
            self._workers.setdefault(worker, _Worker()).last_at_s = time.time()

    def observe_iteration(self, worker: str, times: IterationTimes, loss: float) -> None:
        with self._lock:
            totals = self._workers.setdefault(worker, _Worker())
            totals.num_iterations += 1
            totals.iterations_s += sum(times.parts_s.values())
            for name, part_s in times.parts_s.items():
                totals.parts_s[name] += part_s
            totals.service_s += times.service_s
            totals.run_queue_s += times.run_queue_s
            totals.run_queue_beyond_bound_s += times.run_queue_beyond_bound_s
            totals.loss = loss

    def collect(self) -> Iterator[Metric]:
        yield from self._links(tuple(self._readings.values()))
        with self._lock:
            probed, changes = dict(self._probed), dict(self._changes)
            found = list(self._worker_metrics())
        yield self._metric(families.LINK_BACKLOGGED_DUE, [("_total", key, due) for key, (due, _) in probed.items()])
        yield self._metric(families.LINK_BACKLOGGED_SENT, [("_total", key, sent) for key, (_, sent) in probed.items()])
        yield self._metric(families.LINK_CHANGES, [("_total", key, count) for key, count in changes.items()])
        yield from self._delay_lines()
        yield from found
        yield from self._machine()
        yield self._metric(families.DILATION, [("", (), self._dilation)])
        yield self._metric(families.RUN_INFO, [("", (self._name,), 1)])

    def _links(self, readings: Sequence[_Reading]) -> Iterator[Metric]:
        values: tuple[tuple[Family, Callable[[_Reading], float]], ...] = (
            (families.LINK_TRANSMIT_BYTES, lambda reading: reading.sample.class_bytes),
            (families.LINK_TRANSMIT_PACKETS, lambda reading: reading.sample.class_packets),
            (families.LINK_DROPS, lambda reading: reading.sample.drops),
            (families.LINK_BACKLOG, lambda reading: reading.sample.backlog_bytes),
            (families.LINK_RATE, lambda reading: reading.sample.rate_bps / 8),
            (families.LINK_UTILIZATION, lambda reading: reading.utilization),
        )
        for family, value in values:
            suffix = "_total" if family.kind == "counter" else ""
            yield self._metric(family, [(suffix, reading.labels, value(reading)) for reading in readings])
        read_s = max((reading.sample.at_s for reading in readings), default=0.0) + self.clock_offset_s
        yield self._metric(families.LINKS_READ, [("", (), read_s)] if readings else ())

    def _delay_lines(self) -> Iterator[Metric]:
        late: list[Row] = []
        drops: list[Row] = []
        for key, counters in self.delay_counters().items():
            quantiles = ((share, counters.late_s(share)) for share in _QUANTILES)
            late += [
                ("", (*key, f"{share:g}"), late_s / self._dilation) for share, late_s in quantiles if late_s is not None
            ]
            late.append(("_count", key, counters.num_packets))
            drops.append(("_total", key, counters.num_dropped))
        yield self._metric(families.DELAY_LINE_LATE, late)
        yield self._metric(families.DELAY_LINE_DROPS, drops)

    def _worker_metrics(self) -> Iterator[Metric]:
        every = self._workers.items()
        measured = [(worker, totals) for worker, totals in every if totals.num_iterations]
        sums: list[Row] = []
        for worker, totals in measured:
            sums += [("_count", (worker,), totals.num_iterations), ("_sum", (worker,), totals.iterations_s)]
        yield self._metric(families.ITERATION, sums)
        parts = [
            ("_total", (worker, part), part_s) for worker, totals in measured for part, part_s in totals.parts_s.items()
        ]
        yield self._metric(families.ITERATION_PARTS, parts)
        yield self._metric(
            families.LAST_ITERATION, [("", (worker,), totals.last_at_s) for worker, totals in every if totals.last_at_s]
        )
        losses = [("", (worker,), totals.loss) for worker, totals in measured if totals.loss is not None]
        yield self._metric(families.LOSS, losses)
        yield self._metric(families.SERVICE, [("_total", (worker,), totals.service_s) for worker, totals in measured])
        yield self._metric(
            families.RUN_QUEUE, [("_total", (worker,), totals.run_queue_s) for worker, totals in measured]
        )
        yield self._metric(
            families.RUN_QUEUE_BEYOND_BOUND,
            [("_total", (worker,), totals.run_queue_beyond_bound_s) for worker, totals in measured],
        )

    def _machine(self) -> Iterator[Metric]:
        sample = self.machine
        if sample is None:
            return
        ticks = {"idle": sample.idle_ticks, "steal": sample.steal_ticks}
        ticks["busy"] = sample.ticks - sum(ticks.values())
        yield self._metric(families.CPU, [("_total", (mode,), count / _TICKS_PER_S) for mode, count in ticks.items()])
        yield self._metric(families.SOFTNET_DROPS, [("_total", (), sample.softnet_drops)])

    def _metric(self, family: Family, rows: Iterable[Row]) -> Metric:
        name = family.name.removesuffix("_total")
        metric = Metric(name, family.text, family.kind)
        for suffix, values, value in rows:
            labels = {"run": self._run_id, **dict(zip(family.labels, values, strict=False))}
            metric.add_sample(f"{name}{suffix}", labels, value)
        return metric


def _utilization(before: "LinkSample", after: "LinkSample") -> float:
    """In the time that both samples' rates are in."""
    elapsed_s = after.at_s - before.at_s
    return 8 * (after.class_bytes - before.class_bytes) / (after.rate_bps * elapsed_s) if elapsed_s > 0 else 0.0


def _serve(port: int, address: str, registry: CollectorRegistry) -> tuple[WSGIServer, threading.Thread]:
    try:
        return start_http_server(port, address, registry)
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror or error})"
        raise MissingRequirementError(
            f"metrics.port: {address}:{port} {reason}; set another port with `--set metrics.port=9465`, "
            "any free one with `metrics.port=0`, or none with `metrics.port=null`"
        ) from error
