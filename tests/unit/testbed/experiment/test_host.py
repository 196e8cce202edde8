"""Who is meant, who wins, and what cannot be."""

from typing import Any

import pytest

from testbed.errors import SpecError
from testbed.experiment.experiment import load, validate
from testbed.experiment.host import HostSpec, missing_cores, resolve_hosts, traffic_hosts
from testbed.plan.plan import make_plan

WORKERS = [f"w{rank}" for rank in range(12)]


def resolved(hosts: dict[str, Any]) -> dict[str, HostSpec]:
    return resolve_hosts(
        {selector: HostSpec.model_validate(requested) for selector, requested in hosts.items()}, WORKERS
    )


def test_selectors_are_names_patterns_and_lists() -> None:
    assert list(resolved({"w3": {"cpu": 1}})) == ["w3"]
    assert list(resolved({"w*": {"cpu": 1}})) == WORKERS
    assert list(resolved({"w0, w3": {"cpu": 1}})) == ["w0", "w3"]
    assert list(resolved({"w1?": {"cpu": 1}})) == ["w10", "w11"]


def test_later_entries_win_key_by_key() -> None:
    hosts = resolved({"w*": {"cpu": 0.5, "memory": "1GiB"}, "w1": {"cpu": 2, "pin": 1}, "w1,w2": {"slowdown": 3}})
    assert (hosts["w0"].cpu_cores, hosts["w1"].cpu_cores, hosts["w2"].cpu_cores) == (0.5, 2, 0.5)
    assert hosts["w1"].limits.pinned_cores == (1,)
    assert hosts["w1"].limits.memory_bytes == 2**30
    assert hosts["w1"].text == "2 cores, on cores 1, 1GiB, slowdown constant (factor 3)"
    assert hosts["w2"].limits.limits_cpu
    assert not resolved({"w5": {"slowdown": 2}})["w5"].limits.limits_cpu


def test_nobody_is_no_one_to_ask() -> None:
    with pytest.raises(SpecError, match=r"hosts\.w0,x9: 'x9' is no worker; there are w0 to w11"):
        resolved({"w0,x9": {"cpu": 1}})


def test_cores_that_a_machine_has_not_are_named() -> None:
    hosts = resolved({"w0": {"pin": [0, 7]}, "w1": {"cpu": 3}, "w2": {"cpu": 2, "pin": [1]}, "w3": {"cpu": 2}})
    first, second, third = missing_cores(hosts, frozenset({0, 1}))
    assert first.startswith("hosts.w0.pin: this machine has no core 7; it has 0, 1")
    assert second.startswith("hosts.w1.cpu: 3 cores are more than the 2")
    assert third.startswith("hosts.w2.cpu: 2 cores are more than the 1")


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        ({"cpu": 0}, r"hosts\.w0\.cpu: allowed: "),
        ({"pin": [-1]}, r"hosts\.w0\.pin: .*counted from 0"),
        ({"pin": [1, 1]}, r"hosts\.w0\.pin: .*once"),
        ({"memory": "1MiB"}, r"hosts\.w0\.memory: "),
        ({"slowdown": 0.5}, r"hosts\.w0\.slowdown\.factor: "),
        ({"slowdown": "gauss"}, r"hosts\.w0\.slowdown: 'gauss' is not a slowdown"),
        ({"cores": 2}, r"hosts\.w0\.cores: unknown key; allowed: at, cpu, memory, pin, slowdown"),
    ],
)
def test_what_cannot_be_is_refused_by_its_path(requested: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        validate({"name": "x", "hosts": {"w0": requested}})


def test_a_resolved_spec_means_the_same_when_it_is_read_again(tmp_path: Any) -> None:
    spec = {"w*": {"cpu": 0.5, "slowdown": "lognormal"}, "w1": {"pin": [1]}}
    experiment = validate({"name": "x", "hosts": spec})
    path = tmp_path / "spec.yaml"
    path.write_text(experiment.to_yaml())
    again = load(path)
    assert again.sha256() == experiment.sha256()
    assert resolve_hosts(again.hosts, ["w0", "w1"]) == resolve_hosts(experiment.hosts, ["w0", "w1"])


def test_the_order_of_entries_is_part_of_the_question() -> None:
    one, other = {"w*": {"cpu": 1}, "w0": {"cpu": 2}}, {"w0": {"cpu": 2}, "w*": {"cpu": 1}}
    assert validate({"name": "x", "hosts": one}).sha256() != validate({"name": "x", "hosts": other}).sha256()


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ({"x0": {}}, r"hosts\.x0\.at: required"),
        ({"x0": {"at": "s7"}}, r"hosts\.x0\.at: 's7' is no switch; there are s0, s1"),
        ({"x0": {"at": "s0", "cpu": 1}}, r"hosts\.x0: only workers are limited"),
        ({"w0": {"at": "s0"}}, r"hosts\.w0\.at: a host for background traffic is named x0"),
        ({"x*": {"at": "s0"}}, r"hosts\.x\*\.at: "),
    ],
)
def test_hosts_for_traffic_have_a_switch_and_nothing_else(hosts: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        make_plan(validate({"name": "x", "topology": "dumbbell", "hosts": hosts}))


def test_hosts_for_traffic_are_nodes_with_a_link_and_paths_to_everyone() -> None:
    spec = {"x0": {"at": "s0"}, "x1": {"at": "s1"}, "w1": {"cpu": 1}}
    assert traffic_hosts(validate({"name": "x", "hosts": spec}).hosts, ["s0", "s1"]) == {"x0": "s0", "x1": "s1"}
    flow = {"kind": "constant", "from": "x0", "to": "x1", "rate": "10mbit"}
    plan = make_plan(validate({"name": "x", "topology": "dumbbell", "hosts": spec, "background": [flow]}))
    plain = make_plan(validate({"name": "x", "topology": "dumbbell"}))
    assert plan.background[0].path.text == "x0 > s0 > s1 > x1"
    assert plan.paths["w0", "x1"].text == "w0 > s0 > s1 > x1"
    assert list(plan.hosts) == ["w1"]
    assert plan.directions[: len(plain.directions)] == plain.directions, "the training's own links are as they were"
    assert {direction.expected_bytes for direction in plan.directions[len(plain.directions) :]} == {0}
    assert plan.prediction == plain.prediction
    assert set(plan.host_addresses().values()) == {"w0", "w1", "w2", "w3", "x0", "x1"}
