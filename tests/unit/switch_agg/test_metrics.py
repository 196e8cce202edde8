from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from switch_agg.aggregator import Counters, Stragglers
from switch_agg.control.service import JobStatus, Status
from switch_agg.job import Job
from switch_agg.metrics import AggregatorCollector


def test_every_number_of_a_status_is_a_series() -> None:
    counters = dict.fromkeys(Counters.__slots__, 0) | {"fresh": 8, "done": 4, "stale": 2}
    job = JobStatus(
        job=Job(number=3, workers=("a", "b"), num_elements=64),
        epoch=5,
        stragglers=Stragglers(gaps=(1, 0, 3) + (0,) * 29, last=(1, 3)),
    )
    status = Status(
        dataplane="reference",
        address="a:1",
        jobs=(job,),
        counters=counters,
        in_flight=1,
        violations=(),
        uptime_s=1.0,
    )
    registry = CollectorRegistry()
    registry.register(AggregatorCollector(lambda: status))
    families = {f.name: f for f in text_string_to_metric_families(generate_latest(registry).decode())}
    values = {
        (sample.name, *sorted(sample.labels.values())): sample.value for f in families.values() for sample in f.samples
    }
    assert values["switch_agg_contributions_total", "fresh"] == 8
    assert values["switch_agg_elements_total",] == 256
    assert values["switch_agg_last_total", "3", "b"] == 3
    assert values["switch_agg_epoch", "3"] == 5
    assert values["switch_agg_wait_seconds_bucket", "1e-06", "3"] == 1
    assert values["switch_agg_wait_seconds_bucket", "3", "4e-06"] == 4
    assert values["switch_agg_wait_seconds_count", "3"] == 4
