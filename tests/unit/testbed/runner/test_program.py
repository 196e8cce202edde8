"""Of which program a command's results are, and of which image, as what makes runs here and now says it."""

from pathlib import Path
from typing import Any

import pytest

from testbed.experiment.experiment import Experiment, validate
from testbed.runner.program import origin_of_runs, program_sha256
from testbed.store.documents import origin_here


def experiment(**keys: Any) -> Experiment:
    return validate({"name": "x", "workers": 2, "workload": {"kind": "command", "argv": ["python", "ddp.py"]}, **keys})


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "ddp.py"
    path.write_text("print(1)\n")
    return path


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `docker` of the test's own, which prints an image's id."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    path = tmp_path / "docker"
    path.touch(0o755)
    return path


def test_only_a_command_has_a_program_of_its_own() -> None:
    ours = validate({"name": "x", "workers": 2})
    assert program_sha256(ours) is None
    assert origin_of_runs(ours) == origin_here()
    assert origin_of_runs(experiment())._replace(program=None) == origin_here()


def test_an_edited_script_is_another_program_at_once(script: Path) -> None:
    before = origin_of_runs(experiment())
    script.write_text("print(1 + 1)\n")
    assert origin_of_runs(experiment()).program != before.program


@pytest.mark.parametrize("keys", [{}, {"workload": "training"}], ids=["command", "training"])
def test_another_image_of_the_same_name_is_another_origin(docker: Path, keys: dict[str, Any]) -> None:
    found = []
    for number in (1, 2):
        docker.write_text(f"#!/bin/sh\necho sha256:{number}\n")
        found.append(origin_of_runs(experiment(runtime="docker", **keys)))
    assert [each.image for each in found] == ["sha256:1", "sha256:2"]
    assert found[0].unlike(found[1]) == ("another image (sha256:1)",)
    docker.write_text("#!/bin/sh\necho 'Cannot connect to the Docker daemon' >&2\nexit 1\n")
    assert origin_of_runs(experiment(runtime="docker", **keys)).image is None, "no image is known"
