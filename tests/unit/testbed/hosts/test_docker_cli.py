"""The command line's answers, by a `docker` of the test's own; real daemons are in tests/integration."""

from pathlib import Path

import pytest

from testbed.errors import MissingRequirementError
from testbed.hosts.docker_cli import DaemonFacts, Docker, docker_here

ROOTLESS = {
    "ServerVersion": "24.0.7",
    "CgroupDriver": "systemd",
    "CgroupVersion": "2",
    "Driver": "overlay2",
    "SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"],
}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `docker` is; a test writes it."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    path = tmp_path / "docker"
    path.touch(mode=0o755)
    return path


def test_what_a_daemon_says_of_itself_is_read() -> None:
    facts = DaemonFacts.of(ROOTLESS)
    assert facts.has("rootless")
    assert facts.has("seccomp")
    assert not facts.has("userns")
    assert facts.text == "24.0.7, cgroup v2 by systemd, overlay2, rootless, seccomp"


def test_an_old_daemon_that_does_not_say_has_control_groups_of_version_1() -> None:
    facts = DaemonFacts.of({"ServerVersion": "19.03", "CgroupDriver": "cgroupfs", "Driver": "vfs"})
    assert facts.text == "19.03, cgroup v1 by cgroupfs, vfs, rootful"


def test_a_daemon_that_does_not_answer_is_named_with_the_fix(program: Path) -> None:
    program.write_text('#!/bin/sh\necho \'{"ServerErrors": ["Cannot connect to the Docker daemon"]}\'\n')
    with pytest.raises(MissingRequirementError, match=r"Cannot connect.*systemctl start docker"):
        Docker("unix:///nowhere").facts()


def test_without_docker_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    for call in (docker_here, Docker("unix:///nowhere").facts):
        with pytest.raises(MissingRequirementError, match=r"docker is missing: apt-get install"):
            call()


def test_what_failed_is_said_in_dockers_words(program: Path) -> None:
    program.write_text("#!/bin/sh\necho 'no space left on device' >&2\nexit 125\n")
    with pytest.raises(MissingRequirementError, match="docker run: status 125: no space left on device"):
        Docker("unix:///nowhere").call("run", "x")


def test_what_is_gone_is_none_and_no_error(program: Path) -> None:
    program.write_text('#!/bin/sh\necho "Error: No such container: x" "No such image: x" >&2\nexit 1\n')
    docker = Docker("unix:///nowhere")
    assert docker.inspect("x") is None
    assert docker.image_id("x") is None
    docker.remove(["x"])


def test_the_daemon_is_the_one_that_the_shell_would_talk_to(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program.write_text("#!/bin/sh\necho unix:///run/user/1000/docker.sock\n")
    assert docker_here().endpoint == "unix:///run/user/1000/docker.sock"
    monkeypatch.setenv("DOCKER_HOST", "unix:///elsewhere")
    assert docker_here().endpoint == "unix:///elsewhere"
