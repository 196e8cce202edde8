"""A Docker daemon of the tests' own, with its own data, socket and state, which touches no rule of the firewall; and an
image with nothing in it, into which the machine's Python and this package are mounted."""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from testbed.hosts.docker_cli import Docker
from testbed.system.processes import ProcessIdentity, end_processes
from tests.bystanders import wait_until

ROOT: Final = Path(__file__).resolve().parents[1]
IMAGE: Final = "testbed-test-bare"


class DockerDaemon:
    """Started by the first call of :meth:`start`; its containers end with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.endpoint = f"unix://{directory}/docker.sock"
        self.docker = Docker(self.endpoint)
        self._process: subprocess.Popen[bytes] | None = None
        self._containerd: ProcessIdentity | None = None

    def start(self) -> None:
        with (self.directory / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("dockerd", "--host", self.endpoint, "--pidfile", f"{self.directory}/pid"),
                    *("--data-root", f"{self.directory}/data", "--exec-root", f"{self.directory}/exec"),
                    *("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
                    "--ip-masq=false",
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers, "dockerd answers")
        self._containerd = ProcessIdentity.of(int(self._containerd_pid().read_text()))

    def _containerd_pid(self) -> Path:
        return self.directory / "exec" / "containerd" / "containerd.pid"

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()[-2000:]
        command = ["docker", "--host", self.endpoint, "version"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def log(self) -> str:
        return (self.directory / "dockerd.log").read_text()

    def import_bare_image(self) -> None:
        archive = BytesIO()
        with tarfile.open(fileobj=archive, mode="w"):
            pass
        command = ["docker", "--host", self.endpoint, "import", "-", IMAGE]
        subprocess.run(command, input=archive.getvalue(), capture_output=True, check=True)

    def kill(self) -> None:
        """As the kernel would, and its containerd: the processes of its containers live on."""
        assert self._process is not None
        assert self._containerd is not None
        self._process.kill()
        self._process.wait()
        end_processes([self._containerd], grace_s=0.0)
        # Where nobody reaps orphans, the next dockerd would take the zombie for a containerd that lives.
        self._containerd_pid().unlink()

    def stop(self) -> None:
        """It, and what it leaves when it was killed."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
        if self._containerd is not None:
            end_processes([self._containerd], grace_s=5.0)


@contextmanager
def own_docker_daemon() -> Iterator[DockerDaemon]:
    # Short, and on a disk: paths of Unix sockets are short, and overlays want no overlay below them.
    with tempfile.TemporaryDirectory(prefix="tbd", dir="/var/tmp", ignore_cleanup_errors=True) as directory:
        daemon = DockerDaemon(Path(directory))
        daemon.start()
        try:
            daemon.import_bare_image()
            yield daemon
        finally:
            daemon.stop()


def runtime(**options: Any) -> dict[str, Any]:
    """The value of a spec's `runtime`: this Python, this package, in the bare image."""
    wanted = [Path(path) for path in ("/usr", "/bin", "/lib", "/lib64", sys.base_prefix, sys.prefix, ROOT)]
    mounts: list[Path] = []
    for path in wanted:
        if path.exists() and not any(path.is_relative_to(mount) for mount in mounts):
            mounts.append(path)
    return {
        "kind": "docker",
        "image": IMAGE,
        "python": sys.executable,
        "mounts": [str(path) for path in mounts],
        "environment": {"PYTHONPATH": str(ROOT)},
        **options,
    }


def as_override(value: object) -> str:
    """For `--set`: YAML on one line, which JSON is."""
    return f"runtime={json.dumps(value)}"


def environment_for(daemon: DockerDaemon) -> dict[str, str]:
    return {**os.environ, "DOCKER_HOST": daemon.endpoint}
