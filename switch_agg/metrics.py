"""Aggregators as Prometheus sees them: their own counters, so that `rate()` works.

`rate(switch_agg_elements_total[5s])` against `switch_agg_bound_elements_per_second` says how much of the network the
aggregation uses; the histogram of waits and `switch_agg_last_total` say who lets the others wait.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from switch_agg.aggregator import NUM_GAPS
from switch_agg.status import JobStatus, Status

_OUTCOMES = (
    "fresh",
    "duplicate_pending",
    "duplicate_done",
    "stale",
    "late",
    "held",
    "injected",
    "bad_length",
    "bad_kind",
    "bad_format",
    "bad_size",
    "bad_slot",
    "bad_job",
    "bad_worker",
)

NUM_SERIES = len(_OUTCOMES) + 10
"""Of an aggregator, before its jobs; one more for each host that nothing could be sent to."""
NUM_JOB_SERIES = 3 + NUM_GAPS + 2
"""Of a job, before its workers, of which each has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scraped:
    """One aggregator and how the page calls it."""

    status: Status
    labels: Mapping[str, str] = field(default_factory=dict)
    """Before every series' own; the same names for each aggregator of a page."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Of workers, by address; an address that has none stands for itself."""
    bound_elements_per_s: float | None = None
    """What the workers' links let through; None: not known."""


class AggregatorCollector(Collector):
    """Asks for the status at every scrape."""

    def __init__(self, scraped: Callable[[], Sequence[Scraped]]) -> None:
        self._scraped = scraped

    def collect(self) -> Iterator[Metric]:
        """The families of one scrape, each with the series of every aggregator."""
        scraped = self._scraped()
        for name, kind, text, rows in _FAMILIES:
            metric = Metric(name.removesuffix("_total"), text, kind)
            for each in scraped:
                for suffix, labels, value in rows(each):
                    metric.add_sample(f"{metric.name}{suffix}", {**each.labels, **labels}, value)
            yield metric


_Rows = Iterable[tuple[str, Mapping[str, str], float]]
"""Suffix, labels, value."""


def _contributions(each: Scraped) -> _Rows:
    return [("_total", {"outcome": outcome}, each.status.counters[outcome]) for outcome in _OUTCOMES]


def _counter(name: str) -> Callable[[Scraped], _Rows]:
    return lambda each: [("_total", {}, each.status.counters[name])]


def _unsent(each: Scraped) -> _Rows:
    return [("_total", {"host": each.names.get(host, host)}, count) for host, count in each.status.unsent.items()]


def _elements(each: Scraped) -> _Rows:
    return [("_total", {}, sum(job.stragglers.chunks * job.job.num_values for job in each.status.jobs))]


def _gauge(value: Callable[[Status], float]) -> Callable[[Scraped], _Rows]:
    return lambda each: [("", {}, value(each.status))]


def _bound(each: Scraped) -> _Rows:
    return [] if each.bound_elements_per_s is None else [("", {}, each.bound_elements_per_s)]


def _by_job(value: Callable[[JobStatus], float]) -> Callable[[Scraped], _Rows]:
    return lambda each: [("", {"job": str(job.job.number)}, value(job)) for job in each.status.jobs]


def _last(each: Scraped) -> _Rows:
    return [
        ("_total", {"job": str(job.job.number), "worker": each.names.get(worker, worker)}, count)
        for job in each.status.jobs
        for worker, count in zip(job.job.workers, job.stragglers.last, strict=True)
    ]


def _waits(each: Scraped) -> _Rows:
    rows: list[tuple[str, Mapping[str, str], float]] = []
    for job in each.status.jobs:
        labels = {"job": str(job.job.number)}
        total, seconds = 0, 0.0
        for bits, count in enumerate(job.stragglers.gaps):
            total += count
            seconds += count * 0.75 * 2**bits * 1e-6  # a bucket's middle: from half of its upper edge to all of it
            edge = "+Inf" if bits == NUM_GAPS - 1 else f"{2**bits * 1e-6:.9g}"
            rows.append(("_bucket", {**labels, "le": edge}, total))
        rows += [("_count", labels, total), ("_sum", labels, seconds)]
    return rows


_FAMILIES: tuple[tuple[str, str, str, Callable[[Scraped], _Rows]], ...] = (
    (
        "switch_agg_contributions_total",
        "counter",
        "Datagrams with elements, by what became of them; duplicates are what workers sent again.",
        _contributions,
    ),
    ("switch_agg_chunks_total", "counter", "Chunks whose sum was sent.", _counter("done")),
    ("switch_agg_partial_chunks_total", "counter", "Of those, with contributions missing.", _counter("partial")),
    ("switch_agg_saturated_chunks_total", "counter", "Of those, with elements clipped.", _counter("saturated")),
    (
        "switch_agg_wrapped_chunks_total",
        "counter",
        "Of those, with elements wrapped around (p4app-switchML's clients).",
        _counter("wrapped"),
    ),
    (
        "switch_agg_mixed_sums_total",
        "counter",
        "Sums sent that were not one contribution of each worker to one packet (p4app-switchML's clients).",
        _counter("mixed"),
    ),
    ("switch_agg_elements_total", "counter", "Values in the chunks that were added, of all jobs.", _elements),
    ("switch_agg_bound_elements_per_second", "gauge", "What the link that is full first lets through.", _bound),
    (
        "switch_agg_in_flight",
        "gauge",
        "Contributions to chunks whose sum is not known.",
        _gauge(lambda status: status.in_flight),
    ),
    (
        "switch_agg_in_flight_limit",
        "gauge",
        "The most there can be: slots of all jobs, times their workers.",
        _gauge(lambda status: sum(each.job.num_slots * each.job.num_workers for each in status.jobs)),
    ),
    (
        "switch_agg_violations",
        "gauge",
        "Identities of the counters that do not hold.",
        _gauge(lambda status: len(status.violations)),
    ),
    (
        "switch_agg_unsent_total",
        "counter",
        "Datagrams to this host that the machine refused to send: no route, an interface that is down, a firewall.",
        _unsent,
    ),
    ("switch_agg_epoch", "gauge", "Of the job; no two have had the same number.", _by_job(lambda job: job.epoch)),
    ("switch_agg_slots", "gauge", "Slots of the job's pool.", _by_job(lambda job: job.job.num_slots)),
    (
        "switch_agg_busy_slots",
        "gauge",
        "Of those, with contributions to a chunk whose sum is not known.",
        _by_job(lambda job: job.busy_slots),
    ),
    ("switch_agg_last_total", "counter", "Chunks to which this worker came last.", _last),
    ("switch_agg_wait_seconds", "histogram", "Between a chunk's first contribution and its last.", _waits),
)
