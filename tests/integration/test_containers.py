"""Hosts in Docker containers: what runs in them, with which rights and limits, and what is left when something dies."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.errors import MissingRequirementError, RunFailedError
from testbed.experiment.host import Limits
from testbed.hosts.base import ProcessSpec
from testbed.hosts.clean import clean, leftovers
from testbed.hosts.container import ContainerHost, ContainerRuntime, ContainerSpec
from testbed.hosts.docker_cli import RUN_LABEL
from testbed.system.kernel import network_namespace
from testbed.system.processes import processes_of_run
from testbed.system.run_state import RunState, new_run_id
from tests.bystanders import assert_unharmed, standing_by
from tests.docker_daemon import DockerDaemon, as_override, environment_for, own_docker_daemon, runtime
from tests.here import summary_of

pytestmark = [pytest.mark.privileged, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ["run", "experiments/quickstart.yaml", "--set", "metrics.port=null", "--set", "workers=2"]
SHORT = ["--set", "workload.iterations=4", "--set", "workload.compute_only=1"]
WAIT = """
import os, pathlib, time
print("runs", flush=True)
while not (os.environ["RANK"] == "0" and pathlib.Path("/tmp/eat").exists()):
    time.sleep(0.05)
eaten = bytearray(2**30)
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[DockerDaemon]:
    with own_docker_daemon() as daemon:
        yield daemon


def run_testbed(daemon: DockerDaemon, *words: str, directory: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "testbed", *words],
        cwd=directory,
        env=environment_for(daemon),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.slow
def test_a_spec_trains_the_same_parameters_in_namespaces_and_in_containers(
    daemon: DockerDaemon, tmp_path: Path
) -> None:
    words = [*QUICKSTART, *SHORT, "--output", str(tmp_path), "--json"]
    plain = summary_of(run_testbed(daemon, *words))
    contained = summary_of(run_testbed(daemon, *words, "--set", as_override(runtime())))
    assert plain["parameters_sha256"] is not None
    assert contained["parameters_sha256"] == plain["parameters_sha256"]
    for link in contained["links"]:
        assert link["bytes"] == pytest.approx(link["expected_bytes"], rel=0.01)
        assert link["measured_rate_bps"] == pytest.approx(link["rate_bps"], rel=0.01)
    assert daemon.docker.of_run(contained["run_id"]) == []
    record = Path(contained["record"]) if "record" in contained else next(tmp_path.glob(f"*{contained['run_id']}"))
    assert json.loads((record / "environment.json").read_text())["runtime"]["kind"] == "docker"


WHAT_IT_IS = """
id -u; id -g
echo "called $(hostname), w1 $(getent hosts w1), $TESTBED_ADDRESS $(getent hosts $TESTBED_ADDRESS)"
grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status
ls /sys/class/net | tr '\\n' ' '; echo
touch /anything 2>/dev/null && echo writable; touch /tmp/anything && echo temporary
ls /run/testbed/*/state.json 2>/dev/null; ls -d /run/testbed/*/workers
"""


def test_a_command_runs_in_a_container_without_rights_and_its_exit_code_is_passed_on(
    daemon: DockerDaemon, tmp_path: Path
) -> None:
    # The one that fails ends the other: it waits until that has said all, and calls.
    python = f"{sys.executable} -S -c"
    heard = f"{python} \"import socket; socket.create_server(('', 9999)).accept()\""
    call = f"{python} \"import socket; socket.create_connection(('w1', 9999), 1)\" 2>/dev/null"
    script = f"{WHAT_IT_IS}\necho said so >&2\nif [ $RANK = 0 ]; then until {call}; do sleep 0.1; done; exit 0; fi\n"
    script += f"{heard}; exit 7"
    words = ["exec", "--workers", "2", "--link", "100mbit", "--output", str(tmp_path), "--set", "metrics.port=null"]
    done = run_testbed(daemon, *words, "--set", as_override(runtime()), "--", "sh", "-c", script)
    assert done.returncode == 7, done.stderr
    lines = [line.removeprefix("[w0] ").strip() for line in done.stdout.splitlines() if line.startswith("[w0]")]
    said = dict(line.split(":\t") for line in lines if ":\t" in line)
    assert lines[:2] == ["10001", "10001"]
    assert {name: int(said[name], 16) for name in ("CapEff", "CapBnd")} == {"CapEff": 0, "CapBnd": 0}
    assert [line.split() for line in lines if line.startswith("called")] == [
        ["called", "w0,", "w1", "10.0.0.6", "w1,", "10.0.0.2", "10.0.0.2", "w0"]
    ]
    assert (said["NoNewPrivs"], said["Seccomp"]) == ("1", "2")
    assert "lo w0-eth0" in lines
    assert "temporary" in lines
    assert "writable" not in lines
    assert not any("state.json" in line for line in lines)
    assert any(line.endswith("/workers") for line in lines)
    assert "[w0] said so" in done.stderr


@contextmanager
def containers(daemon: DockerDaemon, directory: Path, *, python: str = sys.executable) -> Iterator[ContainerHost]:
    """One container with a fork server that imports nothing of a workload."""
    options = runtime()
    spec = ContainerSpec(
        image=options["image"],
        python=python,
        mounts=tuple(options["mounts"]),
        environment=options["environment"],
    )
    root = Path("/run/testbed-tests") / new_run_id()
    state = RunState.create(new_run_id(), root=root)
    try:
        made = ContainerRuntime(daemon.docker, spec, {"w0": ()}, state, log_directory=directory)
        try:
            made.wait_ready(60.0)
            host = made.host("w0", made.holders["w0"])
            assert isinstance(host, ContainerHost)
            yield host
            host.stop()
        finally:
            made.close()
    finally:
        assert clean(state.run_id, root=root).remaining == []
        root.rmdir()


def test_a_command_from_a_directory_that_its_user_may_not_enter_does_not_run_elsewhere(
    daemon: DockerDaemon, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    words = ["exec", "--workers", "2", "--link", "100mbit", "--output", str(tmp_path), "--set", "metrics.port=null"]
    done = run_testbed(daemon, *words, "--set", as_override(runtime()), "--", "pwd", directory=closed)
    assert done.returncode == 3, done.stderr
    assert f"user 10001 may not enter the working directory {closed}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_is_limited_streamed_reported_and_stopped(daemon: DockerDaemon, tmp_path: Path) -> None:
    lines: list[str] = []
    with containers(daemon, tmp_path) as host:
        limits = Limits(cpu_cores=0.5, pinned_cores=(0,), memory_bytes=512 * 2**20)
        spec = ProcessSpec(name="p", argv=("sh", "-c", "read line; echo heard $line"), limits=limits, listens=True)
        process = host.start(spec, on_output=lines.append)
        assert host.limit_differences() == []
        assert network_namespace(process.pid) == network_namespace(host.pid)
        assert (Path(f"/proc/{process.pid}").stat().st_uid, host.throttling().keys()) == (10001, {"p"})
        process.tell("me")
        assert process.wait(10.0) == 0
        assert lines == ["heard me"]
        burning = host.start(ProcessSpec(name="sleeper", argv=("sleep", "600")))
        assert burning.stop(5.0) == -signal.SIGTERM
        privileged = host.start(ProcessSpec(name="root", argv=("id", "-u"), privileged=True))
        assert privileged.wait(10.0) == 0
        assert (tmp_path / "root.log").read_text() == "0\n"
        with pytest.raises(MissingRequirementError, match="Requested CPUs are not available"):
            host.start(ProcessSpec(name="q", argv=("true",), limits=Limits(pinned_cores=(4095,))))


def test_a_process_that_needs_too_much_memory_is_known_by_name(daemon: DockerDaemon, tmp_path: Path) -> None:
    with containers(daemon, tmp_path) as host:
        assert host.out_of_memory() == []
        limits = Limits(memory_bytes=128 * 2**20)
        greedy = ProcessSpec(name="w0", argv=(sys.executable, "-c", "x = bytearray(2**30)"), limits=limits)
        assert host.start(greedy).wait(30.0) == -signal.SIGKILL
        assert host.out_of_memory() == ["w0"]


def test_an_image_without_this_package_is_refused_with_what_its_python_said(
    daemon: DockerDaemon, tmp_path: Path
) -> None:
    with (
        pytest.raises(MissingRequirementError, match="no-such-python"),
        containers(daemon, tmp_path, python="no-such-python"),
    ):
        pass
    # Before or after the daemon is queried for its pid.
    with (
        pytest.raises((MissingRequirementError, RunFailedError), match="ended with status 1"),
        containers(daemon, tmp_path, python="/usr/bin/false"),
    ):
        pass


def coordinator(daemon: DockerDaemon, output: Path, *limits: str) -> "subprocess.Popen[str]":
    """A run that does not end by itself; returns while its two workers' commands run."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "testbed", "exec", "--workers", "2", "--link", "100mbit", "--output", str(output)),
            *("--set", "metrics.port=null", "--set", as_override(runtime()), *limits),
            *("--", sys.executable, "-c", WAIT),
        ],
        cwd=ROOT,
        env=environment_for(daemon),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    waiting, said = {"[w0] runs", "[w1] runs"}, []
    for line in process.stdout:
        said.append(line)
        waiting.discard(line.strip())
        if not waiting:
            return process
    raise AssertionError(f"the run has ended: {''.join(said)}")


def own_run(daemon: DockerDaemon) -> str:
    """The run that has containers: there may be other runs on this machine."""
    names = daemon.docker.call("ps", "--format", f'{{{{.Label "{RUN_LABEL}"}}}}').split()
    (run_id,) = set(names)
    return run_id


def outcome(process: "subprocess.Popen[str]") -> str:
    text, _ = process.communicate(timeout=60)
    return text


def test_after_kill_9_of_the_coordinator_cleaning_leaves_nothing(daemon: DockerDaemon, tmp_path: Path) -> None:
    with standing_by() as bystanders:
        process = coordinator(daemon, tmp_path)
        run_id = own_run(daemon)
        process.kill()
        outcome(process)
        assert len(daemon.docker.of_run(run_id)) == 2
        done = run_testbed(daemon, "clean", "--run-id", run_id)
        assert done.returncode == 0, done.stdout + done.stderr
        assert leftovers(run_id) == []
        assert daemon.docker.of_run(run_id) == []
        assert processes_of_run(run_id) == []
        assert_unharmed(bystanders)


def out_of_memory(daemon: DockerDaemon, name: str) -> None:
    daemon.docker.call("exec", name, "touch", "/tmp/eat")


def removed(daemon: DockerDaemon, name: str) -> None:
    daemon.docker.remove([name])


def daemon_restarted(daemon: DockerDaemon, _name: str) -> None:
    daemon.stop()
    daemon.start()


@pytest.mark.parametrize(
    ("happens", "message"),
    [
        (out_of_memory, "hosts.w0.memory: the kernel ended w0, which needed more than it was given"),
        (removed, "the container of w0 .* was (killed by signal 9|removed while the run went on)"),
        (daemon_restarted, "the container of w[01] .* (was killed by signal|has ended, and the Docker daemon)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_happens_to_a_container_ends_the_run_with_its_reason_and_nothing_is_left(
    happens: Callable[[DockerDaemon, str], None], message: str, daemon: DockerDaemon, tmp_path: Path
) -> None:
    process = coordinator(daemon, tmp_path, "--set", "hosts.w0.memory=200MiB")
    run_id = own_run(daemon)
    happens(daemon, f"testbed-{run_id}-w0")
    text = outcome(process)
    assert process.returncode == 128 + signal.SIGKILL, text
    assert re.search(message, text), text
    report = clean(run_id)
    assert report.remaining == []
    assert daemon.docker.of_run(run_id) == []
    assert leftovers(run_id) == []


def test_without_the_daemon_a_run_ends_its_containers_and_says_what_is_left_until_it_is_back(
    daemon: DockerDaemon, tmp_path: Path
) -> None:
    process = coordinator(daemon, tmp_path)
    run_id = own_run(daemon)
    daemon.kill()
    process.send_signal(signal.SIGINT)
    text = outcome(process)
    assert processes_of_run(run_id) == []
    said = " ".join(text.split())
    assert f"could not remove container testbed-{run_id}-w0" in said
    assert "run `testbed clean`" in said
    daemon.start()
    assert clean(run_id).remaining == []
    assert daemon.docker.of_run(run_id) == []


def test_dockers_rules_for_forwarded_packets_do_not_reach_into_the_emulated_network(tmp_path: Path) -> None:
    """dockerd sets FORWARD to DROP in its namespace and has bridged packets see it."""
    beside = """
    iptables -P FORWARD DROP
    [ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ] || echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables
    exec "$@"
    """
    words = [*QUICKSTART, *SHORT, "--set", "switch=bridged", "--output", str(tmp_path), "--json"]
    done = subprocess.run(
        ["unshare", "--net", "sh", "-ec", beside, "sh", sys.executable, "-m", "testbed", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    for link in summary_of(done)["links"]:
        assert link["bytes"] == pytest.approx(link["expected_bytes"], rel=0.01)
