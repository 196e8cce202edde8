import subprocess
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from switch_agg.aggregator import Counters, Stragglers
from switch_agg.job import Job
from switch_agg.metrics import NUM_JOB_SERIES, NUM_SERIES, AggregatorCollector, Scraped
from switch_agg.status import JobStatus, Status

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
STATUS = Status(
    dataplane="reference",
    address="a:1",
    jobs=(
        JobStatus(
            job=Job(number=3, workers=("a", "b"), num_elements=64, num_slots=8),
            epoch=5,
            stragglers=Stragglers(gaps=(1, 0, 3) + (0,) * 29, last=(1, 3), partial=1),
            busy_slots=2,
        ),
    ),
    counters=dict.fromkeys(Counters.__slots__, 0) | {"fresh": 8, "done": 4, "stale": 2},
    in_flight=1,
    violations=(),
    uptime_s=1.0,
    unsent={"a": 7},
)


def page(*scraped: Scraped) -> str:
    registry = CollectorRegistry()
    registry.register(AggregatorCollector(lambda: scraped))
    return generate_latest(registry).decode()


def values(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_number_of_a_status_is_a_series() -> None:
    found = values(page(Scraped(status=STATUS)))
    assert found["switch_agg_contributions_total", "fresh"] == 8
    assert found["switch_agg_elements_total",] == 5 * 64
    assert found["switch_agg_busy_slots", "3"] == 2
    assert found["switch_agg_last_total", "3", "b"] == 3
    assert found["switch_agg_epoch", "3"] == 5
    assert found["switch_agg_in_flight_limit",] == 16
    assert found["switch_agg_wait_seconds_bucket", "3", "1e-06"] == 1
    assert found["switch_agg_wait_seconds_bucket", "3", "4e-06"] == 4
    assert found["switch_agg_wait_seconds_bucket", "3", "+Inf"] == 4
    assert found["switch_agg_wait_seconds_count", "3"] == 4


def test_elements_are_values_whatever_carries_them() -> None:
    """Of an int8 chunk's 64 words four each, as in the bound; and each job's chunks have their own size."""
    narrow = replace(
        STATUS.jobs[0], job=Job(number=4, workers=("a", "b"), num_elements=64, payload="int8", num_slots=8)
    )
    found = values(page(Scraped(status=replace(STATUS, jobs=(*STATUS.jobs, narrow)))))
    assert found["switch_agg_elements_total",] == 5 * 64 + 5 * 256


def test_aggregators_of_one_run_are_distinguished_and_their_workers_named() -> None:
    two = [
        Scraped(
            status=STATUS,
            labels={"run": "r", "aggregator": name},
            names={"a": "w0", "b": "w1"},
            bound_elements_per_s=1e6,
        )
        for name in ("a0", "a1")
    ]
    found = values(page(*two))
    assert found["switch_agg_last_total", "a1", "3", "r", "w1"] == 3
    assert found["switch_agg_unsent_total", "a1", "w0", "r"] == 7
    assert found["switch_agg_bound_elements_per_second", "a0", "r"] == 1e6
    assert len(found) == 2 * (NUM_SERIES + 1 + NUM_JOB_SERIES + 2)


def test_the_page_is_what_promtool_calls_valid_and_the_documentation_has_every_family() -> None:
    text = page(Scraped(status=STATUS, labels={"run": "r", "aggregator": "a0"}, bound_elements_per_s=1e6))
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `switch_agg_")]
    expected = []
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"run", "aggregator", "le"}
        listed = ", ".join(f"`{label}`" for label in sorted(labels)) or "—"
        expected.append(f"| `{name}` | {family.type} | {listed} | {family.documentation} |")
    assert rows == expected


def test_the_documentation_says_how_many_series_an_aggregator_has() -> None:
    text = DOCUMENT.read_text()
    assert f"Per aggregator {NUM_SERIES} series, and {NUM_JOB_SERIES} for each of its jobs" in text
    assert f"{NUM_SERIES + NUM_JOB_SERIES + 64} for one with 64 workers" in text
