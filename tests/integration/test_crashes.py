"""kill -9 in the middle of a run: nobody hangs, and cleaning leaves nothing of the run and everything else alone."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL

import pytest

from testbed.hosts.clean import clean, clean_stale, leftovers
from testbed.system.kernel import network_namespace
from testbed.system.processes import ProcessIdentity, processes_in_network, processes_of_run
from testbed.system.run_state import RunState, new_run_id
from tests.bystanders import assert_unharmed, standing_by, wait_until
from tests.random_kills import kill_one

pytestmark = pytest.mark.privileged

TESTS = Path(__file__).parents[1]

COORDINATOR = """
import json, os, subprocess, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import probe_workload
from testbed.runner.coordinator import Coordinator, Listener
from testbed.hosts.fork_client import ForkServer
from testbed.errors import TestbedError
from testbed.hosts.base import Limits, ProcessSpec
from testbed.hosts.namespace import NamespaceHost
from testbed.system.run_state import RunState

run_id, root, logs = sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
state = RunState.create(run_id, root=root)
fork_server = ForkServer(state, ["probe_workload"], log_directory=logs)
# As Mininet does it: holders are shells without a parent-death signal.
holders = []
for rank in range(2):
    environment = {**os.environ, "TESTBED_RUN_ID": run_id}
    argv = ["unshare", "--net", "--mount", "sleep", "600"]
    holder = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
    while b"sleep\\0" not in Path(f"/proc/{holder.pid}/cmdline").read_bytes()[:6]:
        time.sleep(0.01)
    holders.append(holder.pid)
hosts = [
    NamespaceHost(f"w{rank}", pid, state=state, log_directory=logs, fork_server=fork_server)
    for rank, pid in enumerate(holders)
]
pair = ["ip", "link", "add", "w0-eth0", "type", "veth", "peer", "name", "w1-eth0", "netns", str(holders[1])]
hosts[0].execute(pair)
hosts[0].start(ProcessSpec(name="limited", argv=("sleep", "600"), limits=Limits(cpu_cores=1.0)))
hosts[1].start(ProcessSpec(name="daemon", argv=("sleep", "600")))
fork_server.wait_ready(60.0)
socket_path = state.directory / "control.sock"
configurations = probe_workload.configurations(2, run_id, action="hang", actor=1)


class Ready(Listener):
    def on_barrier(self, name):
        workers = [process.pid for process in workers_]
        print(json.dumps({"fork_server": fork_server.pid, "worker": workers[0], "holders": holders}), flush=True)


try:
    with Coordinator(
        socket_path, configurations, timeout_s=20.0, listener=Ready(), runtime=fork_server
    ) as coordinator:
        workers_ = []
        for rank, host in enumerate(hosts):
            arguments = (str(socket_path), str(rank))
            spec = ProcessSpec(name=f"w{rank}", entry="probe_workload:main", arguments=arguments)
            workers_.append(host.start(spec))
            coordinator.attach(rank, workers_[rank])
        coordinator.wait_registered(60.0)
        coordinator.wait_finished(60.0)
except TestbedError as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""


class Run:
    """A run of another process, in the middle."""

    def __init__(self, root: Path, log_directory: Path) -> None:
        self.root = root
        self.run_id = new_run_id()
        argv = [sys.executable, "-c", COORDINATOR, str(TESTS), self.run_id, str(root), str(log_directory)]
        self.coordinator = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self.coordinator.stdout is not None
        pids = json.loads(self.coordinator.stdout.readline())
        self.worker: int = pids["worker"]
        self.fork_server: int = pids["fork_server"]
        self.namespaces = {network_namespace(pid) for pid in pids["holders"]} - {None}
        self.cgroups = RunState.load(self.run_id, root=root).owned().cgroups

    def assert_nothing_left(self) -> None:
        assert leftovers(self.run_id, root=self.root) == []
        assert processes_of_run(self.run_id) == []
        assert processes_in_network([each for each in self.namespaces if each]) == []
        assert self.cgroups
        assert not any(group.exists() for group in self.cgroups)
        assert list(self.root.iterdir()) == []


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    # A root of its own, so that no other run on this machine cleans up after this one; short, as sockets' paths are.
    with tempfile.TemporaryDirectory(prefix="tb") as root:
        run = Run(Path(root), tmp_path)
        yield run
        run.coordinator.kill()
        run.coordinator.communicate()
        clean(run.run_id, root=run.root)


@pytest.fixture
def bystanders() -> Iterator[list[ProcessIdentity]]:
    with standing_by() as processes:
        yield processes


def test_after_the_coordinator_is_killed(run: Run, bystanders: list[ProcessIdentity]) -> None:
    os.kill(run.coordinator.pid, SIGKILL)
    run.coordinator.wait()
    workers = [ProcessIdentity.of(run.worker), ProcessIdentity.of(run.fork_server)]
    wait_until(
        lambda: not any(each and each.alive() for each in workers), "forks follow the coordinator without a request"
    )
    report = clean_stale(root=run.root)
    assert {left.kind for left in report.removed} == {"process", "cgroup", "path"}
    assert not report.remaining
    run.assert_nothing_left()
    assert_unharmed(bystanders)


def test_after_everything_is_killed_at_once(run: Run, bystanders: list[ProcessIdentity]) -> None:
    for identity in [*processes_of_run(run.run_id), ProcessIdentity.of(run.coordinator.pid)]:
        if identity is not None:
            # Some have died of the death of another already.
            with suppress(ProcessLookupError):
                os.kill(identity.pid, SIGKILL)
    run.coordinator.wait()
    assert not clean(root=run.root).remaining
    run.assert_nothing_left()
    assert_unharmed(bystanders)


def test_after_a_worker_is_killed(run: Run, bystanders: list[ProcessIdentity]) -> None:
    os.kill(run.worker, SIGKILL)
    message, _ = run.coordinator.communicate(timeout=30.0)
    assert run.coordinator.returncode == 1
    assert message.startswith("worker 0 on w0 was killed by signal 9, Killed")
    assert not clean(run.run_id, root=run.root).remaining
    run.assert_nothing_left()
    assert_unharmed(bystanders)


def test_after_the_fork_server_is_killed(run: Run, bystanders: list[ProcessIdentity]) -> None:
    os.kill(run.fork_server, SIGKILL)
    message, _ = run.coordinator.communicate(timeout=30.0)
    assert run.coordinator.returncode == 1
    assert message.startswith(f"the fork server (pid {run.fork_server}) ended with status -9")
    assert not clean(run.run_id, root=run.root).remaining
    run.assert_nothing_left()
    assert_unharmed(bystanders)


def test_a_live_run_is_cleaned_only_by_name(run: Run, bystanders: list[ProcessIdentity]) -> None:
    assert clean_stale(root=run.root).live_run_ids == [run.run_id]
    assert run.coordinator.poll() is None
    assert not clean(run.run_id, root=run.root).remaining
    assert run.coordinator.wait(10.0) != 0
    run.assert_nothing_left()
    assert_unharmed(bystanders)


def test_a_foreigner_in_a_namespace_of_the_run_is_reported_not_killed(run: Run) -> None:
    namespace = next(iter(run.namespaces))
    holder = processes_in_network([namespace] if namespace else [])[0]
    foreigner = subprocess.Popen(["nsenter", f"--net=/proc/{holder.pid}/ns/net", "sleep", "600"])
    try:
        wait_until(lambda: network_namespace(foreigner.pid) == namespace, "the foreigner is inside")
        run.coordinator.kill()
        run.coordinator.wait()
        remaining = clean(run.run_id, root=run.root).remaining
        assert [left.kind for left in remaining] == ["namespace", "path"]
        assert str(foreigner.pid) in remaining[0].what
        assert foreigner.poll() is None
    finally:
        foreigner.kill()
        foreigner.wait()
    assert not clean(run.run_id, root=run.root).remaining
    run.assert_nothing_left()


@pytest.mark.parametrize("seed", [101, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (102, 103))])
def test_any_process_of_a_real_run_may_be_killed_at_any_moment(
    tmp_path: Path, bystanders: list[ProcessIdentity], seed: int
) -> None:
    kill_one(tmp_path, seed, duration_s=4.0)  # `make test-crashes` does it fifty times
    assert_unharmed(bystanders)
