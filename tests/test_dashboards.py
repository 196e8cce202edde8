"""What is shipped for Grafana and Compose: it parses, fits together, and asks only for what there is."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from switch_agg.metrics import AggregatorCollector
from testbed.metrics.families import FAMILIES
from testbed.metrics.server import RULES

DOCKER = Path(__file__).parents[1] / "docker"
DASHBOARDS = sorted((DOCKER / "grafana" / "dashboards").glob("*.json"))
PROMETHEUS_OWN = {"ALERTS"}


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def known_series() -> set[str]:
    aggregators = {family.name for family in AggregatorCollector(list).collect()}
    aggregators |= {f"{name}_total" for name in aggregators} | {"switch_agg_wait_seconds_bucket"}
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    ours = {family.name for family in FAMILIES}
    ours |= {f"{family.name}_{part}" for family in FAMILIES if family.kind == "summary" for part in ("sum", "count")}
    return ours | aggregators | {rule["record"] for rule in rules if "record" in rule} | PROMETHEUS_OWN


def test_there_is_a_dashboard_for_each_side_of_a_run() -> None:
    assert [path.stem for path in DASHBOARDS] == ["aggregator", "links", "overview", "workers"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_fits_its_data_source_and_asks_only_for_what_there_is(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    (source,) = yaml.safe_load((DOCKER / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert dashboard["uid"] == f"testbed-{path.stem}"
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    known = known_series()
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == source["uid"], panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    for expression in expressions(dashboard):
        assert set(re.findall(r"\$(\w+)", expression)) <= variables
        named = set(re.findall(r"([a-zA-Z_][\w:]*)\{", expression))
        assert named, expression
        assert named <= known, expression
    for variable in dashboard["templating"]["list"]:
        assert re.match(r"label_values\((\w+)", variable["query"])[1] in known  # type: ignore[index]


def test_every_family_of_links_and_workers_is_on_a_dashboard_or_in_a_rule() -> None:
    requested = RULES.read_text() + "".join(path.read_text() for path in DASHBOARDS)
    for family in FAMILIES:
        if family.name != "testbed_machine_softnet_drops_total":  # the verdict names it
            assert family.name in requested


def test_compose_pins_its_images_stays_on_loopback_and_mounts_what_exists() -> None:
    composed = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    assert set(composed["services"]) == {"prometheus", "grafana"}
    for name, service in composed["services"].items():
        assert re.fullmatch(r"[a-z]+/[a-z-]+:v?\d+\.\d+\.\d+", service["image"]), name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["read_only"]
        for volume in service["volumes"]:
            origin = volume.partition(":")[0]
            assert (DOCKER / origin).exists() if origin.startswith(".") else origin in composed["volumes"]
    assert "--web.listen-address=127.0.0.1:9090" in composed["services"]["prometheus"]["command"]
    assert composed["services"]["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


def test_the_configuration_for_compose_is_valid_and_scrapes_the_default_port() -> None:
    path = DOCKER / "prometheus.yml"
    checked = subprocess.run(
        ["promtool", "check", "config", "--syntax-only", str(path)], capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    assert yaml.safe_load(path.read_text())["scrape_configs"][0]["static_configs"] == [{"targets": ["127.0.0.1:9464"]}]
