"""What Prometheus is given, checked by its own promtool; its rules on made-up series."""

import subprocess
from pathlib import Path

import yaml

from testbed.metrics.server import RULES, SCRAPE_INTERVAL_S, arguments, configuration, reopen_command
from testbed.verdict import thresholds

RULE_TESTS = Path(__file__).with_name("rules_test.yml")


def promtool(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *words], capture_output=True, text=True, check=False, cwd=folder)


def test_the_configuration_is_valid_and_scrapes_the_page_on_loopback(tmp_path: Path) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(configuration(9464, RULES))
    checked = promtool("check", "config", str(path))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    found = yaml.safe_load(path.read_text())
    (job,) = found["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:9464"]}]
    assert found["global"]["scrape_interval"] == f"{SCRAPE_INTERVAL_S:g}s"


def test_it_listens_on_loopback_only_and_cannot_be_changed_from_outside() -> None:
    words = arguments("prometheus.yml", Path("data"), port=9090)
    assert "--web.listen-address=127.0.0.1:9090" in words
    assert not [word for word in words if "enable" in word]


def test_the_command_that_opens_a_record_again_scrapes_nothing() -> None:
    command = reopen_command(Path("results/run"))
    assert command.startswith("prometheus --config.file=/dev/null --storage.tsdb.path=results/run/prometheus/data ")


def test_rules_are_valid_and_do_what_they_say_on_made_up_series(tmp_path: Path) -> None:
    checked = promtool("check", "rules", str(RULES))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (tmp_path / "rules.yml").write_text(RULES.read_text())
    (tmp_path / RULE_TESTS.name).write_text(RULE_TESTS.read_text())
    tested = promtool("test", "rules", RULE_TESTS.name, folder=tmp_path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_limits_of_alerts_are_those_of_the_verdict() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    limits = {rule["labels"]["reason"]: rule["expr"] for rule in rules if rule.get("alert") == "EmulationNotValid"}
    assert limits["rate"].endswith(f"< {1 - thresholds.BACKLOG_SHORT_INVALID:.2f}")
    assert limits["cores"].endswith(f"> {thresholds.RUN_QUEUE_INVALID:.2f}")


def test_every_rule_of_aggregators_and_runs_has_a_test() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    tested = RULE_TESTS.read_text()
    for rule in rules:
        assert rule.get("record", rule.get("alert")) in tested
