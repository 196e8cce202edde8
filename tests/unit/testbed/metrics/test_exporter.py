"""Scraped over HTTP as Prometheus does it, parsed with the client library's own parser."""

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from urllib.request import urlopen

import numpy as np
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from switch_agg.aggregator import Counters, Stragglers
from switch_agg.job import Job
from switch_agg.metrics import Scraped
from switch_agg.status import JobStatus, Status
from testbed.deployment.live_links import LinkChangeEvent
from testbed.errors import MissingRequirementError
from testbed.experiment.delay_backends.base import DelayCounters
from testbed.measure.backlog import BacklogProbe
from testbed.measure.machine import MachineSample
from testbed.measure.sampler import LinkSample
from testbed.metrics.exporter import Exporter, IterationTimes
from testbed.metrics.families import FAMILIES, ITERATION_PART_NAMES, max_series
from tests.loopback import free_port


def sample(node: str = "w0", at_s: float = 1.0, class_bytes: int = 0) -> LinkSample:
    return LinkSample(
        at_s=at_s,
        read_from_s=at_s,
        link="w0-s0",
        node=node,
        port=f"{node}-eth0",
        rate_bps=100e6,
        class_bytes=class_bytes,
        class_packets=class_bytes // 1514,
        drops=3,
        overlimits=0,
        backlog_bytes=3028,
        interface_bytes=class_bytes,
    )


EVENT = LinkChangeEvent(
    at_s=1.0,
    link="w0-s0",
    node="w0",
    to="s0",
    setting="rate",
    before="100mbit",
    after="50mbit",
    rate_bps=50e6,
    source="manual",
)


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    made = Exporter(0, run_id="r1", information={"name": "quickstart"})
    yield made
    made.close()


def test_the_usual_port_or_while_that_is_taken_any_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as other:
        monkeypatch.setattr("testbed.metrics.exporter.PORT", taken := other.getsockname()[1])
        with closing(Exporter("auto", run_id="r2")) as second:
            assert second.port not in (None, 0, taken)
            assert second.url == f"http://127.0.0.1:{second.port}/metrics"
    with closing(Exporter("auto", run_id="r1")) as first:
        assert first.port == taken
    with closing(Exporter(None, run_id="r3")) as none:
        assert none.url is None


def scrape(exporter: Exporter) -> dict[str, Metric]:
    with urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=10) as response:
        text = response.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(family: Metric, name: str) -> dict[tuple[str, ...], float]:
    return {tuple(item.labels.values()): item.value for item in family.samples if item.name == name}


def test_links_are_counters_and_gauges_with_the_promised_names_and_labels(exporter: Exporter) -> None:
    exporter.update_links([sample(at_s=1.0), sample("s0", at_s=1.001)])
    exporter.update_links([sample(at_s=1.1, class_bytes=1_000_000), sample("s0", at_s=1.101, class_bytes=500_000)])
    families = scrape(exporter)
    for name, kind, value in (
        ("testbed_link_transmit_bytes", "counter", 1e6),
        ("testbed_link_transmit_packets", "counter", 660),
        ("testbed_link_drops", "counter", 3),
        ("testbed_link_backlog_bytes", "gauge", 3028),
        ("testbed_link_rate_bytes_per_second", "gauge", 12.5e6),
        ("testbed_link_utilization_ratio", "gauge", 0.8),
    ):
        family = families[name]
        assert family.type == kind
        (first, second) = family.samples
        assert first.name == (f"{name}_total" if kind == "counter" else name)
        assert first.labels == {"run": "r1", "link": "w0-s0", "node": "w0", "port": "w0-eth0"}
        assert first.value == pytest.approx(value)
        assert second.labels["node"] == "s0"
    assert families["testbed_link_utilization_ratio"].samples[1].value == pytest.approx(0.4)
    (read,) = families["testbed_links_read_timestamp_seconds"].samples
    assert read.labels == {"run": "r1"}
    assert read.value == 1.101 + exporter.clock_offset_s
    assert exporter.clock_offset_s == pytest.approx(time.time() - time.monotonic(), abs=1)


def test_before_the_first_reading_no_moment_of_one_is_served(exporter: Exporter) -> None:
    assert scrape(exporter)["testbed_links_read_timestamp_seconds"].samples == []


def test_in_slower_time_utilization_is_the_virtual_links() -> None:
    """12.5 MB a virtual second, of which 0.4 MB went in 0.4 s of the wall, which are 0.1 s."""
    with closing(Exporter(0, run_id="r4", dilation=4.0)) as exporter:
        exporter.update_links([sample(at_s=1.0, class_bytes=0)])
        exporter.update_links([sample(at_s=1.4, class_bytes=400_000)])
        families = scrape(exporter)
    assert families["testbed_link_utilization_ratio"].samples[0].value == pytest.approx(0.32)
    assert families["testbed_dilation_ratio"].samples[0].value == 4


def times(iteration_s: float = 1.0, exposed_s: float = 0.2) -> IterationTimes:
    return IterationTimes(
        parts_s={
            "compute": iteration_s / 2,
            "exposed_communication": exposed_s,
            "waiting": iteration_s / 2 - exposed_s,
        },
        service_s=0.3,
        run_queue_s=0.01,
        run_queue_beyond_bound_s=0.005,
    )


def test_iterations_count_by_worker(exporter: Exporter) -> None:
    for iteration_s in (0.25, 0.75):
        exporter.observe_iteration("w0", times(iteration_s, 0.1), loss=1.5)
    exporter.observe_iteration("w1", times(1.0), loss=1.7)
    exporter.note_iteration("w0")
    families = scrape(exporter)
    iteration = families["testbed_iteration_seconds"]
    assert values(iteration, "testbed_iteration_seconds_count") == {("r1", "w0"): 2, ("r1", "w1"): 1}
    assert values(iteration, "testbed_iteration_seconds_sum") == {("r1", "w0"): 1.0, ("r1", "w1"): 1.0}
    assert values(families["testbed_loss"], "testbed_loss") == {("r1", "w0"): 1.5, ("r1", "w1"): 1.7}
    parts = families["testbed_iteration_part_seconds"].samples
    found = {item.labels["part"]: item.value for item in parts if item.labels["worker"] == "w0"}
    reported = {"compute": 0.5, "exposed_communication": 0.2, "waiting": 0.3}
    assert found == pytest.approx(dict.fromkeys(ITERATION_PART_NAMES, 0.0) | reported)
    (last,) = families["testbed_last_iteration_timestamp_seconds"].samples
    assert last.value == pytest.approx(time.time(), abs=60)


def test_the_run_is_described(exporter: Exporter) -> None:
    (info,) = scrape(exporter)["testbed_run_info"].samples
    assert (info.labels, info.value) == ({"run": "r1", "name": "quickstart"}, 1)


def fill(exporter: Exporter, num_workers: int) -> None:
    """Everything that a run on a star can say."""
    directions = [(f"w{rank}-s0", node) for rank in range(num_workers) for node in (f"w{rank}", "s0")]
    exporter.update_links([replace(sample(node), link=link) for link, node in directions])
    late = np.zeros(896, dtype=np.uint64)
    late[10] = 100
    counters = DelayCounters(num_packets=100, num_lost=0, num_dropped=0, late=late)
    exporter.watch_lateness(lambda: dict.fromkeys(directions, counters))
    for link, node in directions:
        exporter.count_probe(
            BacklogProbe(at_s=1.0, link=link, node=node, elapsed_s=0.1, backlog_bytes=1, sent_bytes=1, due_bytes=1.0)
        )
    for rank in range(num_workers):
        exporter.note_iteration(f"w{rank}")
        exporter.observe_iteration(f"w{rank}", times(), loss=0.0)
    exporter.update_machine(MachineSample.take())


@pytest.mark.parametrize("num_workers", [4, 64])
def test_the_number_of_series_is_bounded_and_the_documented_one(exporter: Exporter, num_workers: int) -> None:
    fill(exporter, num_workers)
    found = sum(len(family.samples) for family in scrape(exporter).values())
    assert found == max_series(2 * num_workers, num_workers)
    assert re.search(rf"\b{found} for {num_workers}\b", Exporter.__doc__ or "")


def test_the_page_is_what_promtool_calls_valid_and_has_every_family(exporter: Exporter) -> None:
    fill(exporter, 2)
    exporter.count_changes([EVENT])
    with urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=10) as response:
        page = response.read()
    checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    on_page = {line.split()[2]: line.split()[3] for line in page.decode().splitlines() if line.startswith("# TYPE")}
    assert on_page == {family.name: family.kind for family in FAMILIES}
    samples = [item for family in scrape(exporter).values() for item in family.samples]
    for family in FAMILIES:
        labels = {label for item in samples if item.name.startswith(family.name) for label in item.labels}
        assert labels == {"run", *family.labels}, family.name


def test_probes_of_backlogged_links_add_up(exporter: Exporter) -> None:
    for sent_bytes in (90, 100):
        exporter.count_probe(
            BacklogProbe(
                at_s=1.0,
                link="w0-s0",
                node="w0",
                elapsed_s=0.1,
                backlog_bytes=500,
                sent_bytes=sent_bytes,
                due_bytes=100.0,
            )
        )
    families = scrape(exporter)
    for kind, total in (("due", 200), ("sent", 190)):
        name = f"testbed_link_backlogged_{kind}_bytes"
        assert [item.value for item in families[name].samples] == [total]


def test_a_port_in_use_names_the_spec_key_and_the_fix() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MissingRequirementError, match=rf"metrics\.port: 127\.0\.0\.1:{port} is in use; .*--set"):
            Exporter(port, run_id="r1")


def test_an_address_that_is_not_ours_is_an_environment_error() -> None:
    with pytest.raises(MissingRequirementError, match=r"metrics\.port: 192\.0\.2\.1"):
        Exporter(0, address="192.0.2.1", run_id="r1")


def test_closing_frees_the_port() -> None:
    first = Exporter(port := free_port(), run_id="r1")
    assert first.port == port
    first.close()
    first.close()
    assert first.port is None
    second = Exporter(port, run_id="r2")
    assert scrape(second)["testbed_run_info"].samples[0].labels["run"] == "r2"
    second.close()


def test_without_a_port_nothing_listens_and_updates_are_accepted() -> None:
    off = Exporter(None, run_id="r1")
    off.update_links([sample()])
    off.observe_iteration("w0", times(), loss=1.0)
    assert off.port is None
    off.close()


def test_lateness_is_read_at_the_scrape(exporter: Exporter) -> None:
    late = np.zeros(896, dtype=np.uint64)
    late[10], late[63] = 98, 2
    counted = DelayCounters(num_packets=100, num_lost=0, num_dropped=0, late=late)
    exporter.watch_lateness(lambda: {("w0-s0", "w0"): counted})
    family = scrape(exporter)["testbed_delay_line_late_seconds"]
    by_quantile = {item.labels.get("quantile", "count"): item.value for item in family.samples}
    assert by_quantile == pytest.approx({"0.5": 11e-6, "0.99": 64e-6, "1": 64e-6, "count": 100})
    exporter.watch_lateness(dict)
    assert scrape(exporter)["testbed_delay_line_late_seconds"].samples == []


def test_changes_of_links_are_counted_by_what_made_them(exporter: Exporter) -> None:
    exporter.count_changes([EVENT, replace(EVENT, setting="queue"), replace(EVENT, source="trace")])
    found = values(scrape(exporter)["testbed_link_changes"], "testbed_link_changes_total")
    assert found == {("w0-s0", "w0", "r1", "manual"): 2, ("w0-s0", "w0", "r1", "trace"): 1}


def test_the_page_with_a_switch_that_adds_on_it_is_valid_too(exporter: Exporter) -> None:
    job = JobStatus(job=Job(workers=("a", "b")), epoch=0, stragglers=Stragglers(gaps=(1,) * 32, last=(1, 3)))
    status = Status(
        dataplane="ebpf",
        address="a:1",
        jobs=(job,),
        counters=dict.fromkeys(Counters.__slots__, 1),
        in_flight=0,
        violations=(),
        uptime_s=1.0,
    )
    fill(exporter, 2)
    exporter.watch_aggregators(
        lambda: [Scraped(status=status, labels={"run": "r1", "aggregator": name}) for name in ("a0", "a1")]
    )
    with urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=10) as response:
        page = response.read()
    checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    assert values(scrape(exporter)["switch_agg_chunks"], "switch_agg_chunks_total") == {
        ("a0", "r1"): 1,
        ("a1", "r1"): 1,
    }
