"""The image that `make image` builds is what `runtime: docker` uses as it is: small, not root, trains the same."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docker_daemon import DockerDaemon, environment_for, own_docker_daemon

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 1.2e9
QUICKSTART = ["run", "experiments/quickstart.yaml", "--set", "metrics.port=null", "--json"]


@pytest.fixture(scope="module")
def daemon() -> Iterator[DockerDaemon]:
    with own_docker_daemon() as daemon:
        environment = {name: value for name, value in environment_for(daemon).items() if name not in {"BASE", "IMAGE"}}
        subprocess.run(["tools/image.sh"], cwd=ROOT, env=environment, check=True)
        yield daemon


def run(daemon: DockerDaemon, output: Path, *words: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "testbed", *QUICKSTART, "--output", str(output), *words]
    done = subprocess.run(
        argv, cwd=ROOT, env=environment_for(daemon), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode in {0, 4}, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def test_the_image_is_small_and_not_root(daemon: DockerDaemon) -> None:
    inspect = json.loads(daemon.docker.call("image", "inspect", "ina-testbed-worker"))[0]
    assert inspect["Size"] < MOST_BYTES
    assert inspect["Config"]["User"] == "10001:10001"


def test_the_quickstart_trains_the_same_parameters_with_it(daemon: DockerDaemon, tmp_path: Path) -> None:
    plain = run(daemon, tmp_path)
    contained = run(daemon, tmp_path, "--runtime", "docker")
    assert plain["parameters_sha256"] is not None
    assert contained["parameters_sha256"] == plain["parameters_sha256"]
