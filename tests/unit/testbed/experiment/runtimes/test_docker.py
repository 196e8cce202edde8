from pathlib import Path
from typing import Any

import pytest

from testbed.errors import MissingRequirementError
from testbed.experiment.experiment import validate
from testbed.experiment.runtimes.base import RUNTIMES
from testbed.experiment.runtimes.docker import DEFAULT_IMAGE
from testbed.hosts.base import runtime_driver
from testbed.plan.plan import Plan, make_plan
from testbed.system.run_state import RunState


def planned(runtime: object = "docker", **spec: Any) -> Plan:
    return make_plan(validate({"name": "a", "workers": 2, "runtime": runtime, **spec}))


def test_workers_and_servers_are_contained_and_switches_and_traffic_are_not() -> None:
    plan = planned(
        collective={"kind": "parameter_server", "placement": "dedicated"},
        hosts={"x0": {"at": "s0"}},
    )
    contained = runtime_driver(plan).contained()
    assert {"w0", "w1", "ps0"} == set(contained)
    assert all("torch" in modules for modules in contained.values())


@pytest.mark.parametrize(("dataplane", "is_contained"), [("reference", True), ("ebpf", False)])
def test_an_aggregator_is_contained_where_it_is_a_process(dataplane: str, is_contained: bool) -> None:
    plan = planned(collective={"kind": "in_network", "dataplane": dataplane})
    assert ("a0" in runtime_driver(plan).contained()) == is_contained


def test_a_command_sees_the_directory_that_it_was_typed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = planned({"kind": "docker", "mounts": "/data"}, workload={"kind": "command", "argv": ["true"]})
    assert runtime_driver(command)._mounts() == ("/data", str(tmp_path))  # type: ignore[attr-defined]
    training = planned({"kind": "docker", "mounts": "/data"})
    assert runtime_driver(training)._mounts() == ("/data",)  # type: ignore[attr-defined]


def test_what_is_missing_on_the_machine_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    plan = planned({"kind": "docker", "mounts": ["/no/such/place"]})
    mounts, daemon = runtime_driver(plan).missing()
    assert mounts == "runtime.mounts: there is no /no/such/place on this machine"
    assert "docker is missing" in daemon
    assert "or runtime: namespace" in daemon


@pytest.mark.parametrize(
    ("security", "images", "complaint"),
    [
        ('["name=rootless"]', "true", "is rootless"),
        ("[]", "echo 'No such image' >&2; exit 1", f"there is no image {DEFAULT_IMAGE} here: make image"),
    ],
)
def test_a_daemon_that_cannot_do_it_is_refused_with_the_fix(
    security: str, images: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    answer = f'{{"ServerVersion": "20.10", "SecurityOptions": {security}}}'
    script = f"#!/bin/sh\ncase $3 in info) echo '{answer}' ;; image) {images} ;; esac\n"
    (tmp_path / "docker").write_text(script)
    (tmp_path / "docker").chmod(0o755)
    plan = planned()
    (found,) = runtime_driver(plan).missing()
    assert complaint in found


@pytest.mark.parametrize(("pull", "is_here"), [("missing", False), ("always", True)])
def test_the_image_is_fetched_when_hosts_start_and_not_when_it_is_queried_whether_they_can(
    pull: str, is_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry refuses, so that nothing is started."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    requested = tmp_path / "requested"
    image = "echo sha256:1" if is_here else "echo 'No such image' >&2; exit 1"
    script = f'#!/bin/sh\ncase $3 in info) echo \'{{"ServerVersion": "20.10"}}\' ;; image) {image} ;; esac\n'
    (tmp_path / "docker").write_text(f'{script}case $3 in pull) echo "$@" >>{requested}; exit 1 ;; esac\nexit 0\n')
    (tmp_path / "docker").chmod(0o755)
    plan = planned({"kind": "docker", "pull": pull, "image": "my/train:1"})
    assert runtime_driver(plan).missing() == []
    assert not requested.exists()
    state = RunState.create("r1", root=tmp_path)
    with pytest.raises(MissingRequirementError, match="docker pull: status 1"):
        runtime_driver(plan).start(state, log_directory=tmp_path)
    assert len(requested.read_text().splitlines()) == 1


def test_a_runtime_survives_being_written_down() -> None:
    runtime = RUNTIMES.parse({"kind": "docker", "image": "my/train:1", "mounts": "/data", "environment": {"A": "1"}})
    assert RUNTIMES.parse(RUNTIMES.dump(runtime)) == runtime
