"""Scraped over HTTP as Prometheus does it, parsed with the client library's own parser."""

import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from urllib.request import urlopen

import numpy as np
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from testbed.errors import EnvironmentLacksError
from testbed.links.nfqueue import DelayCounters
from testbed.live_links import Mark
from testbed.measure.prometheus import Exporter
from testbed.measure.sampler import LinkSample


def sample(node: str = "w0", at_s: float = 1.0, class_bytes: int = 0) -> LinkSample:
    return LinkSample(
        at_s=at_s,
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


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    made = Exporter(0, run_id="r1", information={"name": "quickstart"})
    yield made
    made.close()


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
        ("testbed_link_rate_bits_per_second", "gauge", 100e6),
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


def test_iterations_count_by_worker(exporter: Exporter) -> None:
    for iteration_s in (0.25, 0.75):
        exporter.observe_iteration(worker="w0", iteration_s=iteration_s, exposed_communication_s=0.2, loss=1.5)
    exporter.observe_iteration(worker="w1", iteration_s=1.0, exposed_communication_s=0.1, loss=1.7)
    families = scrape(exporter)
    iteration = families["testbed_iteration_seconds"]
    assert values(iteration, "testbed_iteration_seconds_count") == {("r1", "w0"): 2, ("r1", "w1"): 1}
    assert values(iteration, "testbed_iteration_seconds_sum") == {("r1", "w0"): 1.0, ("r1", "w1"): 1.0}
    assert values(families["testbed_loss"], "testbed_loss") == {("r1", "w0"): 1.5, ("r1", "w1"): 1.7}
    exposed = families["testbed_exposed_communication_seconds"]
    assert values(exposed, exposed.name)[("r1", "w0")] == 0.2


def test_the_run_is_described(exporter: Exporter) -> None:
    (info,) = scrape(exporter)["testbed_run_info"].samples
    assert (info.labels, info.value) == ({"run": "r1", "name": "quickstart"}, 1)


@pytest.mark.parametrize("num_workers", [4, 16])
def test_the_number_of_series_is_the_documented_one(exporter: Exporter, num_workers: int) -> None:
    directions = [(f"w{rank}", f"w{rank}-s0") for rank in range(num_workers)]
    exporter.update_links([sample(node) for pair in directions for node in pair])
    for worker, _ in directions:
        exporter.observe_iteration(worker=worker, iteration_s=1.0, exposed_communication_s=0.0, loss=0.0)
    promised = re.search(rf"(\d+) for {num_workers}\b", Exporter.__doc__ or "")
    assert promised is not None
    assert sum(len(family.samples) for family in scrape(exporter).values()) == int(promised[1])


def test_a_port_in_use_names_the_spec_key_and_the_cure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentLacksError, match=rf"metrics\.port: 127\.0\.0\.1:{port} is in use; .*--set"):
            Exporter(port, run_id="r1")


def test_an_address_that_is_not_ours_is_an_environment_error() -> None:
    with pytest.raises(EnvironmentLacksError, match=r"metrics\.port: 192\.0\.2\.1"):
        Exporter(0, address="192.0.2.1", run_id="r1")


def test_closing_frees_the_port() -> None:
    first = Exporter(0, run_id="r1")
    port = first.port
    assert port
    first.close()
    first.close()
    assert first.port is None
    second = Exporter(port, run_id="r2")
    assert scrape(second)["testbed_run_info"].samples[0].labels["run"] == "r2"
    second.close()


def test_without_a_port_nothing_listens_and_updates_are_accepted() -> None:
    off = Exporter(None, run_id="r1")
    off.update_links([sample()])
    off.observe_iteration(worker="w0", iteration_s=1.0, exposed_communication_s=0.5, loss=1.0)
    assert off.port is None
    off.close()


def test_lateness_is_asked_for_at_the_scrape(exporter: Exporter) -> None:
    late = np.zeros(896, dtype=np.uint64)
    late[10], late[63] = 98, 2
    counted = DelayCounters(num_packets=100, num_lost=0, num_dropped=0, late=late)
    exporter.watch_lateness(lambda: {("w0-s0", "w0"): counted})
    family = scrape(exporter)["testbed_delay_line_late_seconds"]
    by_quantile = {item.labels["quantile"]: item.value for item in family.samples}
    assert by_quantile == pytest.approx({"0.5": 11e-6, "0.99": 64e-6, "1": 64e-6})
    exporter.watch_lateness(dict)
    assert scrape(exporter)["testbed_delay_line_late_seconds"].samples == []


def test_changes_of_links_are_counted_by_what_made_them(exporter: Exporter) -> None:
    mark = Mark(
        at_s=1.0,
        link="w0-s0",
        node="w0",
        to="s0",
        setting="rate",
        before="100mbit",
        after="50mbit",
        rate_bps=50e6,
        source="hand",
    )
    exporter.count_changes([mark, replace(mark, setting="queue"), replace(mark, source="trace")])
    found = values(scrape(exporter)["testbed_link_changes"], "testbed_link_changes_total")
    assert found == {("w0-s0", "w0", "r1", "hand"): 2, ("w0-s0", "w0", "r1", "trace"): 1}
