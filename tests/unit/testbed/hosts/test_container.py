"""What a container is started and limited with; that it then is so is in tests/integration/test_containers.py."""

import json
import os
import shutil
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from testbed.experiment.host import Limits
from testbed.hosts.container import Container, ContainerSpec, run_arguments, update_arguments

ROOT = Path(__file__).resolve().parents[4]
SPEC = ContainerSpec(image="my/train:1", mounts=("/data",), environment={"HF_HOME": "/data"}, names={"w0": "10.0.0.2"})


def arguments(spec: ContainerSpec = SPEC) -> list[str]:
    return run_arguments(
        spec,
        node="w0",
        run_id="r1",
        directories=[Path("/run/testbed/r1/workers")],
        socket_path=Path("/run/testbed/r1/containers/w0/fork.sock"),
        modules=["torch"],
    )


def values(name: str) -> list[str]:
    given = arguments()
    return [value for option, value in pairwise(given) if option == name]


def test_a_container_has_no_network_and_no_rights() -> None:
    assert values("--network") == ["none"]
    assert values("--user") == ["10001:10001"]
    assert values("--cap-drop") == ["ALL"]
    assert values("--security-opt") == ["no-new-privileges"]
    assert "--read-only" in arguments()
    assert not {"--privileged", "--cap-add", "--pid", "--device", "--publish"} & set(arguments())


def test_it_sees_the_runs_directories_and_the_mounts_read_only() -> None:
    assert values("--volume") == ["/run/testbed/r1/workers:/run/testbed/r1/workers", "/data:/data:ro"]


def test_a_process_begins_where_it_was_started_only_if_the_container_has_that() -> None:
    """The image may have a directory of that name, /root for one, which its user may not enter."""
    assert SPEC.working_directory(Path("/data")) == "/data"
    assert SPEC.working_directory(Path("/data/set")) == "/data/set"
    assert SPEC.working_directory(Path("/root/checkout")) == ""


def test_it_is_called_by_its_name_and_knows_all_others() -> None:
    assert values("--hostname") == ["w0"]
    assert values("--dns") == ["127.0.0.1"], "which refuses at once, where no name server can be reached"
    assert values("--add-host") == ["w0:10.0.0.2"]


def test_it_is_found_by_the_runs_id_and_its_processes_are_too() -> None:
    assert "org.ina-testbed.run=r1" in values("--label")
    assert values("--name") == ["testbed-r1-w0"]
    assert {"TESTBED_RUN_ID=r1", "HF_HOME=/data"} <= set(values("--env"))


def test_its_first_process_is_the_fork_server_of_the_images_python() -> None:
    given = arguments()
    assert values("--entrypoint") == ["python3"]
    assert given[given.index("my/train:1") + 1 :] == [
        *("-P", "-m", "testbed.hosts.fork_server", "/run/testbed/r1/containers/w0/fork.sock", "0", "torch")
    ]


def test_nothing_is_fetched_while_a_container_starts() -> None:
    assert values("--pull") == ["never"]


def test_limits_are_dockers_with_a_short_period() -> None:
    assert update_arguments(Limits()) == []
    assert update_arguments(Limits(cpu_cores=0.5, pinned_cores=(0, 2), memory_bytes=2**30)) == [
        *("--cpu-period", "10000", "--cpu-quota", "5000", "--cpuset-cpus", "0,2"),
        *("--memory", "1073741824", "--memory-swap", "1073741824"),
    ]


def test_an_image_with_other_c_than_the_controller_is_refused(tmp_path: Path) -> None:
    """What its fork server says of itself: the package's Python is the same there, and its tcp.c is not."""
    for package in ("testbed", "transports", "switch_agg"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "build"))

    def ready() -> dict[str, Any]:
        path = tmp_path / "fork.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen(1)
            listener.settimeout(60)
            argv = [sys.executable, "-P", "-m", "testbed.hosts.fork_server", str(path), "0"]
            server = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(tmp_path)})
            connection, _ = listener.accept()
        path.unlink()
        with connection:
            said: dict[str, Any] = json.loads(connection.recv(1 << 16))
        assert server.wait(60) == 0
        return said

    container = Container.__new__(Container)
    container.spec = SPEC
    assert container._why_unsupported(ready()) is None
    (tmp_path / "transports" / "channels" / "_tcp" / "tcp.c").write_text("// as it was\n")
    assert "my/train:1 has other sources of this package" in (container._why_unsupported(ready()) or "")
