"""Specs: valid, or an error that names the field and what is allowed. Never a traceback."""

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import SpecError
from testbed.experiment.experiment import SWEEP_KEYS, Experiment, apply_override, load, validate
from testbed.plan.plan import make_plan


def wrong(**keys: Any) -> str:
    with pytest.raises(SpecError) as caught:
        validate({"name": "x", **keys})
    return str(caught.value)


def test_every_key_but_the_name_has_a_default() -> None:
    assert validate({"name": "x"}).workers == 4
    with pytest.raises(SpecError, match="name: required"):
        validate({})


def test_quantities_become_base_units() -> None:
    experiment = validate({"name": "x", "link": {"rate": "2.5gbit", "delay": "50us", "queue": "1MiB"}})
    assert (experiment.link.rate_bps, experiment.link.delay_s, experiment.link.queue_bytes) == (2.5e9, 5e-5, 2**20)


def test_prometheus_is_requested_by_a_word_or_with_its_port() -> None:
    assert validate({"name": "x"}).metrics.prometheus is None
    assert validate({"name": "x", "metrics": {"prometheus": False}}).metrics.prometheus is None
    for requested, port in ((True, 0), ({}, 0), ({"port": 9090}, 9090)):
        experiment = validate({"name": "x", "metrics": {"prometheus": requested}})
        assert experiment.metrics.prometheus is not None
        assert experiment.metrics.prometheus.port == port
        assert validate(yaml.safe_load(experiment.to_yaml())) == experiment


def test_unknown_keys_are_refused_with_what_is_allowed() -> None:
    assert "wrokers: unknown key; allowed: name, seed, workers" in wrong(wrokers=4)
    message = wrong(link={"rat": "1gbit"})
    assert "link.rat: unknown key" in message
    assert "rate" in message
    assert "delay" in message
    assert "channel.streems: unknown key" in wrong(channel={"kind": "tcp", "streems": 3})


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"link": {"rate": "100"}}, ["link.rate", "100mbit"]),
        ({"link": {"rate": 100}}, ["link.rate", "number and a unit"]),
        ({"link": {"rate": "10ms"}}, ["link.rate", "'ms' is not a unit of rate"]),
        ({"link": {"rate": "1tbit"}}, ["link.rate", "100000000000"]),
        ({"link": {"delay": "-1ms"}}, ["link.delay"]),
        ({"link": {"delay": "1ms", "jitter": "2ms"}}, ["link", "jitter may not exceed delay"]),
        ({"link": {"loss": "120%"}}, ["link.loss"]),
        ({"link": "fast"}, ["link"]),
        (
            {"links": {"w1-s0": {"rat": "1gbit"}}},
            ["links.w1-s0.rat: unknown key; allowed: best_effort, delay"],
        ),
        ({"links": {"w1-s0": {"backend": "netem"}}}, ["links.w1-s0.backend: unknown key"]),
        ({"links": {"w1-s0": {"loss": {"kind": "gilbert_elliott"}}}}, ["links.w1-s0.loss.good_to_bad: required"]),
        ({"link": {"backend": "foo"}}, ["link.backend: allowed: auto, netem, nfqueue, tap"]),
        ({"link": {"queue": 0}}, ["link.queue: a queue of 0 bytes; allowed: 1B to 1GB"]),
        ({"links": []}, ["links: write a mapping"]),
        ({"changes": ["w0-s0"]}, ["changes.0: 'w0-s0' is no change; write {at: 10s"]),
        ({"background": {"kind": "bulk"}}, ["background: write a list"]),
        (
            {"changes": [{"link": "w0-s0", "at": "1s", "trace": __file__}]},
            ["changes.0.at: unknown key; allowed: field, floor"],
        ),
        (
            {"workers_per_host": {"count": 2, "link": {"rate": "1kbit"}}},
            ["workers_per_host.link.rate: allowed: at least"],
        ),
        ({"packet_mode": "jumbo"}, ["packet_mode", "'jumbo' is no packet mode; allowed: superframe, mtu"]),
        ({"mtu": 576}, ["mtu", "allowed: at least 1,500"]),
        ({"mtu": 65536}, ["mtu", "allowed: at most 9,000"]),
        ({"packet_mode": "1kB"}, ["packet_mode: '1kB' is no packet mode", "3000B to 64KiB"]),
        ({"workers": 1}, ["workers", "allowed: at least 2"]),
        ({"workers": 0, "workload": {"kind": "command", "argv": ["true"]}}, ["workers", "allowed: at least 1"]),
        ({"workers": "four"}, ["workers"]),
        ({"collective": "rign"}, ["collective", "'rign' is not a collective", "ring"]),
        ({"channel": "memory"}, ["channel: `memory`", "tcp, udp"]),
        ({"workload": {"kind": "training", "batch_size": 0}}, ["workload.batch_size"]),
        ({"workload": {"kind": "training", "model": "resnet"}}, ["workload.model"]),
        ({"stack": "nccl"}, ["stack", "gloo"]),
        ({"runtime": "podman"}, ["runtime: 'podman' is not a runtime; allowed: docker, namespace"]),
        ({"runtime": {"kind": "docker", "img": "x"}}, ["runtime.img: unknown key; allowed: environment, image"]),
        ({"runtime": {"kind": "docker", "image": "--privileged"}}, ["runtime.image", "is no name of an image"]),
        ({"runtime": {"kind": "docker", "user": 0}}, ["runtime.user", "allowed: at least 1"]),
        ({"runtime": {"kind": "docker", "mounts": "data"}}, ["runtime.mounts: 'data': write an absolute path"]),
        ({"runtime": {"kind": "docker", "mounts": ["/"]}}, ["runtime.mounts: '/'", "not all of the machine"]),
        ({"runtime": {"kind": "docker", "pull": "maybe"}}, ["runtime.pull", "'never', 'missing' or 'always'"]),
        ({"runtime": {"kind": "docker", "python": "-c"}}, ["runtime.python: '-c' is no program"]),
        ({"runtime": {"kind": "docker", "environment": {"A B": "1"}}}, ["runtime.environment: 'A B' is no name"]),
        ({"compression": "zip"}, ["compression", "'zip' is not a compression", "none"]),
        ({"dilation": 0.5}, ["dilation: 0.5 is no dilation", "a factor up to 600", "auto"]),
        ({"dilation": 601}, ["dilation: 601"]),
        ({"dilation": True}, ["dilation: True"]),
        ({"dilation": "fast"}, ["dilation: 'fast'"]),
        ({"metrics": {"port": 70000}}, ["metrics.port"]),
        ({"metrics": {"prometheus": {"port": -1}}}, ["metrics.prometheus.port"]),
        ({"metrics": {"prometheus": {"prot": 1}}}, ["metrics.prometheus.prot: unknown key; allowed: port"]),
        ({"metrics": {"prometheus": "yes"}}, ["metrics.prometheus"]),
        ({"metrics": {"prometheus": True, "port": None}}, ["metrics: prometheus scrapes the endpoint", "port: 0"]),
        ({"name": "Bad Name"}, ["name"]),
        ({"seed": -1}, ["seed"]),
    ],
)
def test_errors_name_the_field_and_what_is_allowed(keys: dict[str, Any], words: list[str]) -> None:
    message = wrong(**keys)
    for word in words:
        assert word in message
    assert "Traceback" not in message


@pytest.mark.parametrize("key", SWEEP_KEYS)
def test_a_spec_of_many_runs_is_no_experiment_and_names_the_command_for_it(key: str) -> None:
    assert f"`{key}` is about several runs of one spec: use `testbed sweep`" in wrong(**{key: 1})


def test_every_wrong_field_is_named_at_once() -> None:
    lines = wrong(workers=0, link={"rate": "x", "color": "red"}).splitlines()
    assert len(lines) == 3


def test_resolved_spec_loads_back_to_an_equal_experiment() -> None:
    experiment = validate({"name": "x", "link": {"rate": "25gbit", "delay": "7us"}, "fusion": {"bytes": "25MB"}})
    again = validate(yaml.safe_load(experiment.to_yaml()))
    assert again == experiment
    assert again.sha256() == experiment.sha256()
    assert validate({"name": "x", "link": {"rate": "25gbit", "delay": "8us"}}).sha256() != experiment.sha256()


def test_overrides_address_the_same_paths_as_the_file() -> None:
    data: dict[str, Any] = {"name": "x", "collective": "ring"}
    for override in ("link.rate=1gbit", "collective.segment_bytes=64KiB", "workload.iterations=7", "workers=2"):
        apply_override(data, override)
    experiment = validate(data)
    assert experiment.link.rate_bps == 1e9
    assert experiment.workers == 2
    assert experiment.workload.num_iterations() == 7


def test_an_option_of_a_setting_keeps_the_plain_value_that_it_had() -> None:
    data: dict[str, Any] = {"name": "x", "link": {"delay": "5ms", "jitter": "1ms"}}
    apply_override(data, "link.jitter.distribution=uniform")
    apply_override(data, "links.w1-s0.rate=10mbit")
    experiment = validate(data)
    assert (experiment.link.jitter.deviation_s, experiment.link.jitter.distribution) == (1e-3, "uniform")
    assert experiment.links["w1-s0"].rate_bps == 1e7

    data = {"name": "x", "workers": 4, "workers_per_host": 2}
    apply_override(data, "workers_per_host.link.rate=20gbit")
    sharing = validate(data).workers_per_host
    assert (sharing.count, sharing.link.rate_bps) == (2, 2e10)


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("changes.0.rate=5mbit", "changes.0.rate: changes is a list here, which no path leads into; set changes as a"),
        ("seed.x=1", "seed.x: seed is a int here"),
        ("link.rate.x=1", "link.rate.x: link.rate is a float here"),
    ],
)
def test_what_a_path_would_lose_on_its_way_is_kept(override: str, problem: str) -> None:
    data = {"name": "x", "seed": 3, "link": {"rate": 5e7}, "changes": [{"at": "1s", "link": "w0-s0", "rate": "2mbit"}]}
    with pytest.raises(SpecError, match=re.escape(problem)):
        apply_override(data, override)


@pytest.mark.parametrize("override", ["link.rate", "=1", "link..rate=1gbit", "link.rate=[1"])
def test_a_malformed_override_is_a_spec_error(override: str) -> None:
    with pytest.raises(SpecError, match="--set"):
        apply_override({"name": "x"}, override)


@pytest.mark.parametrize("text", ["", "[]", "a: [", "- 1\n- 2", "\x00", "name: [x]", "&a [*a]"])
def test_files_that_are_no_specs_are_spec_errors(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"spec\.yaml"):
        load(path)


def test_a_missing_file_is_a_spec_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read"):
        load(tmp_path / "none.yaml")


def test_the_quickstart_is_valid_and_its_schema_knows_every_key() -> None:
    experiment = load(Path("experiments/quickstart.yaml"))
    schema = Experiment.model_json_schema(by_alias=True)
    assert set(experiment.dump()) <= set(schema["properties"])


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["100mbit", "1gbit", "5ms", "1%", "1MiB", "ring", "tcp", "gloo", "training", "star", "0", "1e400gbit"]
    ),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)
KNOWN = st.sampled_from([*(field.alias or name for name, field in Experiment.model_fields.items()), *SWEEP_KEYS])
NESTED = st.dictionaries(
    st.sampled_from(
        [
            "kind",
            "rate",
            "delay",
            "jitter",
            "loss",
            "queue",
            "bytes",
            "port",
            "interval",
            "batch_size",
            "iterations",
            "warmup",
            "segment_bytes",
            "model",
            "dataset",
            "learning_rate",
            "sizes",
            "stacks",
            "repeat",
            "congestion",
        ]
    ),
    LEAVES,
    max_size=5,
)


@settings(max_examples=300)
@given(st.dictionaries(KNOWN | st.text(max_size=8), VALUES | NESTED, max_size=6))
def test_any_spec_is_valid_or_a_spec_error(data: dict[str, Any]) -> None:
    with contextlib.suppress(SpecError):
        experiment = validate({"name": "fuzz", **data})
        assert validate(yaml.safe_load(experiment.to_yaml())) == experiment
        if experiment.workers <= 8:
            assert make_plan(experiment).nodes


@settings(max_examples=200)
@given(st.sampled_from(["link", "workload", "collective", "channel", "fusion", "metrics", "stack"]), NESTED)
def test_any_section_is_valid_or_a_spec_error(section: str, options: dict[str, Any]) -> None:
    with contextlib.suppress(SpecError):
        validate({"name": "fuzz", section: options})


@settings(max_examples=100)
@given(st.text(max_size=40))
def test_any_text_is_valid_or_a_spec_error(text: str) -> None:
    path = Path("/dev/shm") / "fuzzed-spec.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        with contextlib.suppress(SpecError):
            load(path)
    finally:
        path.unlink()
