"""An aggregator as Prometheus sees it: its own counters, so that `rate()` works.

`rate(switch_agg_elements_total[5s])` against the links' bound, rate x 4N / (52 + 4N) / 4 elements per second, says how
much of the network the aggregation uses; the histogram of waits and `switch_agg_last_total` say who lets the others
wait.
"""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from switch_agg.control.service import JobStatus, Status

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
    "bad_size",
    "bad_slot",
    "bad_job",
    "bad_worker",
)


class AggregatorCollector(Collector):
    """Asks for the status at every scrape."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """The families of one scrape: at most 40 series, 32 of waits and one for each worker in each job."""
        status = self._status()
        contributions = CounterMetricFamily(
            "switch_agg_contributions", "Datagrams with elements, by what became of them.", labels=["outcome"]
        )
        for outcome in _OUTCOMES:
            contributions.add_metric([outcome], status.counters[outcome])
        yield contributions
        yield CounterMetricFamily("switch_agg_chunks", "Chunks whose sum was sent.", value=status.counters["done"])
        yield CounterMetricFamily(
            "switch_agg_partial_chunks", "Of those, with contributions missing.", value=status.counters["partial"]
        )
        yield CounterMetricFamily(
            "switch_agg_saturated_chunks", "Of those, with elements clipped.", value=status.counters["saturated"]
        )
        elements = sum(each.job.num_elements for each in status.jobs[:1])
        yield CounterMetricFamily(
            "switch_agg_elements", "Elements in chunks whose sum was sent.", value=status.counters["done"] * elements
        )
        yield GaugeMetricFamily(
            "switch_agg_in_flight", "Contributions to chunks whose sum is not known.", value=status.in_flight
        )
        yield GaugeMetricFamily(
            "switch_agg_violations", "Identities of the counters that do not hold.", value=len(status.violations)
        )
        yield from self._jobs(status.jobs)

    @staticmethod
    def _jobs(jobs: tuple[JobStatus, ...]) -> Iterator[Metric]:
        epoch = GaugeMetricFamily("switch_agg_epoch", "Modulo 16.", labels=["job"])
        slots = GaugeMetricFamily("switch_agg_slots", "Slots of the job's pool.", labels=["job"])
        last = CounterMetricFamily(
            "switch_agg_last", "Chunks to which this worker came last.", labels=["job", "worker"]
        )
        waits = HistogramMetricFamily(
            "switch_agg_wait_seconds", "Between a chunk's first contribution and its last.", labels=["job"]
        )
        for each in jobs:
            number = str(each.job.number)
            epoch.add_metric([number], each.epoch)
            slots.add_metric([number], each.job.num_slots)
            for worker, count in zip(each.job.workers, each.stragglers.last, strict=True):
                last.add_metric([number, worker], count)
            buckets, total, seconds = [], 0, 0.0
            for bits, count in enumerate(each.stragglers.gaps):
                total += count
                seconds += count * 0.75 * 2**bits * 1e-6  # a bucket's middle: from half of its upper edge to all of it
                buckets.append((repr(2**bits * 1e-6), float(total)))
            waits.add_metric([number], [*buckets[:-1], ("+Inf", float(total))], seconds)
        yield from (epoch, slots, last, waits)
