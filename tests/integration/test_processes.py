"""Processes in real network and mount namespaces: by command line and by fork, streamed, limited, stopped."""

import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.errors import MissingRequirementError, RunFailedError
from testbed.experiment.host import Limits
from testbed.hosts.base import Host, Process, ProcessSpec
from testbed.hosts.clean import clean
from testbed.hosts.fork_client import ForkServer
from testbed.hosts.namespace import NamespaceHost
from testbed.hosts.spawn import Output, spawn
from testbed.runner.coordinator import Coordinator, Listener
from testbed.system.kernel import network_namespace
from testbed.system.processes import RUN_ID_VARIABLE, ProcessIdentity, processes_of_run
from testbed.system.run_state import RunState, new_run_id

pytestmark = pytest.mark.privileged

TESTS = Path(__file__).parents[1]
BURN = "import time; end = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass\nprint(time.process_time())"


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline_s, f"not within 20 s: {what}"
        time.sleep(0.01)


@pytest.fixture
def state() -> Iterator[RunState]:
    with tempfile.TemporaryDirectory(prefix="tb") as directory:
        root = Path(directory)
        state = RunState.create(new_run_id(), root=root)
        yield state
        assert clean(state.run_id, root=root).remaining == []


def make_holder(state: RunState, log_directory: Path) -> int:
    """A process in namespaces of its own, as Mininet's shells are."""
    process = spawn(
        "holder",
        ["unshare", "--net", "--mount", "--uts", "sleep", "600"],
        Output(log_directory / "holder.log", None),
        environment={**os.environ, RUN_ID_VARIABLE: state.run_id},
    )
    wait_until(lambda: network_namespace(process.pid) != network_namespace(os.getpid()), "a namespace of its own")
    wait_until(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes(), "the holder has settled")
    return process.pid


@pytest.fixture
def fork_server(state: RunState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    monkeypatch.syspath_prepend(str(TESTS))
    monkeypatch.syspath_prepend(str(tmp_path))
    server = ForkServer(state, ["probe_workload"], log_directory=tmp_path)
    server.wait_ready(60.0)
    yield server
    server.close()


@pytest.fixture
def host(state: RunState, tmp_path: Path) -> NamespaceHost:
    return NamespaceHost("w0", make_holder(state, tmp_path), state=state, log_directory=tmp_path)


@pytest.fixture
def forking_host(state: RunState, tmp_path: Path, fork_server: ForkServer) -> NamespaceHost:
    pid = make_holder(state, tmp_path)
    return NamespaceHost("w0", pid, state=state, log_directory=tmp_path, fork_server=fork_server)


def test_it_is_a_host_and_starts_processes(host: NamespaceHost) -> None:
    as_host: Host = host
    process: Process = as_host.start(ProcessSpec(name="p", argv=("true",)))
    assert process.wait(10.0) == 0


def test_a_command_runs_in_the_hosts_network(host: NamespaceHost) -> None:
    host.execute(["ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"])
    assert "probe0" in host.execute(["ip", "-o", "link"])
    assert not Path("/sys/class/net/probe0").exists()
    assert host.execute(["cat"], stdin="through stdin") == "through stdin"


def test_a_command_that_fails_says_how(host: NamespaceHost) -> None:
    with pytest.raises(MissingRequirementError, match=r"ip link show nowhere \(in w0\): status 1: .*nowhere"):
        host.execute(["ip", "link", "show", "nowhere"])
    with pytest.raises(MissingRequirementError, match=r"sleep 60 \(in w0\): has not ended within 0.1 s"):
        host.execute(["sleep", "60"], timeout_s=0.1)


def test_sockets_made_inside_belong_to_the_host_and_the_thread_comes_back(host: NamespaceHost) -> None:
    home = network_namespace(os.getpid())
    with host.entered():
        inside = socket.socket()
    with inside, socket.socket() as outside:
        outside.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="unreachable"):
            inside.connect(outside.getsockname())
    with pytest.raises(KeyError), host.entered():
        raise KeyError
    assert Path("/proc/thread-self/ns/net").stat().st_ino == home


def test_a_process_is_inside_with_its_environment_and_streams(host: NamespaceHost) -> None:
    lines: list[str] = []
    script = f"echo $COLOUR ${RUN_ID_VARIABLE}; readlink /proc/self/ns/net; pwd; exit 3"
    spec = ProcessSpec(name="p", argv=("sh", "-c", script), environment={"COLOUR": "red"})
    assert host.start(spec, on_output=lines.append).wait(10.0) == 3
    assert lines == [f"red {host._state.run_id}", f"net:[{network_namespace(host.pid)}]", str(Path.cwd())]


def test_a_program_that_does_not_exist_is_refused(host: NamespaceHost) -> None:
    with pytest.raises(MissingRequirementError, match="there is no program 'no-such-program'"):
        host.start(ProcessSpec(name="p", argv=("no-such-program",)))


def test_stopping_the_host_ends_everything_in_it_but_its_namespaces(host: NamespaceHost) -> None:
    # The grandchild leaves its parent's session and process group, where no signal to the parent reaches it.
    process = host.start(ProcessSpec(name="p", argv=("sh", "-c", "setsid sleep 600 & echo $!; wait")))
    wait_until(lambda: process.log_path.read_text().endswith("\n"), "the grandchild's pid")
    stray = ProcessIdentity.of(int(process.log_path.read_text()))
    assert stray is not None
    host.stop()
    assert process.poll() == -signal.SIGTERM
    assert not stray.alive()
    assert network_namespace(host.pid) is not None
    host.stop()


def test_limits_are_set_read_back_and_hold(host: NamespaceHost, state: RunState) -> None:
    limits = Limits(cpu_cores=0.1, pinned_cores=(1,))
    process = host.start(ProcessSpec(name="burn", argv=(sys.executable, "-c", BURN), limits=limits))
    wait_until(lambda: os.sched_getaffinity(process.pid) == {1}, "it is pinned")
    assert process.wait(30.0) == 0
    # 0.1 cores for 1.5 s, and as much again for the start of the interpreter and the last period.
    assert float(process.log_path.read_text()) < 0.2 * 1.5
    assert host.limit_differences() == []
    throttling = host.throttling()["burn"]
    assert throttling.num_throttled > 0.5 * throttling.num_periods > 0
    assert throttling.throttled_s > 0.5
    limits = Limits(cpu_cores=1.5, memory_bytes=256 * 2**20)
    greedy = host.start(ProcessSpec(name="greedy", argv=(sys.executable, "-c", "x = bytearray(2**30)"), limits=limits))
    assert greedy.wait(30.0) == -signal.SIGKILL
    assert host.out_of_memory() == ["greedy"]
    groups = state.owned().cgroups
    assert groups
    assert all(group.is_dir() for group in groups)
    host.stop()
    assert not any(group.exists() for group in groups)
    assert state.owned().cgroups == []


def test_a_fork_is_limited_too(forking_host: NamespaceHost, tmp_path: Path) -> None:
    (tmp_path / "burner.py").write_text(f"def main():\n    exec({BURN!r})\n")
    process = forking_host.start(ProcessSpec(name="burn", entry="burner:main", limits=Limits(cpu_cores=0.1)))
    assert process.wait(30.0) == 0
    assert float(process.log_path.read_text()) < 0.2 * 1.5


def test_an_entry_runs_inside_in_a_fork(forking_host: NamespaceHost, tmp_path: Path, state: RunState) -> None:
    (tmp_path / "entry.py").write_text(
        "import os, sys\n"
        "def main(*arguments):\n"
        "    print(arguments, os.environ['COLOUR'], os.getpgid(0) == os.getpid(), os.getcwd())\n"
        "    print([os.readlink(f'/proc/self/ns/{kind}') for kind in ('net', 'mnt', 'uts')])\n"
        "    print([name in sys.modules for name in ('probe_workload', 'testbed.worker.agent', 'grpc')])\n"
    )
    spec = ProcessSpec(name="p", entry="entry:main", arguments=("a", "b"), environment={"COLOUR": "red"})
    lines: list[str] = []
    process = forking_host.start(spec, on_output=lines.append)
    assert process.wait(20.0) == 0
    namespaces = [os.readlink(f"/proc/{forking_host.pid}/ns/{kind}") for kind in ("net", "mnt", "uts")]  # noqa: PTH115
    assert process.log_path.read_text().splitlines() == lines
    assert lines == [
        f"('a', 'b') red True {Path.cwd()}",
        str(namespaces),
        "[True, True, False]",
    ]


@pytest.mark.parametrize(
    ("body", "status", "log"),
    [
        ("pass", 0, ""),
        ("raise SystemExit(4)", 4, ""),
        ("raise SystemExit('goodbye')", 1, "goodbye"),
        ("raise ValueError('requested')", 1, "ValueError: requested"),
        ("import os; os.kill(os.getpid(), 11)", -11, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
    ],
)
def test_the_end_of_a_fork_is_reported(
    forking_host: NamespaceHost, tmp_path: Path, body: str, status: int, log: str
) -> None:
    (tmp_path / "body.py").write_text(f"def main():\n    {body}\n")
    process = forking_host.start(ProcessSpec(name="p", entry="body:main"))
    assert process.wait(20.0) == status
    assert process.log_path.read_text().rstrip().endswith(log)


def test_a_signal_right_after_the_fork_is_not_lost(forking_host: NamespaceHost, tmp_path: Path) -> None:
    # Once, the child made its process group itself, and a signal to the group that came before that went nowhere.
    (tmp_path / "sleeper.py").write_text("import time\ndef main():\n    time.sleep(600)\n")
    for number in range(5):
        process = forking_host.start(ProcessSpec(name=f"p{number}", entry="sleeper:main"))
        process.send_signal(signal.SIGKILL)
        assert process.wait(10.0) == -signal.SIGKILL


def test_many_forks_at_once_are_distinguished(forking_host: NamespaceHost, tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text("def main(number):\n    raise SystemExit(int(number))\n")
    specs = [ProcessSpec(name=f"p{i}", entry="many:main", arguments=(str(i),)) for i in range(16)]
    processes = [forking_host.start(spec) for spec in specs]
    assert [process.wait(20.0) for process in processes] == list(range(16))


def test_an_import_that_starts_a_thread_makes_forking_refused(state: RunState, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    server = ForkServer(state, ["threaded"], log_directory=tmp_path)
    with pytest.raises(RunFailedError, match=r"cannot fork fork-server.*: an import started 1 threads"):
        server.wait_ready(60.0)
    server.close()
    after = ForkServer(state, [], log_directory=tmp_path)
    after.wait_ready(60.0)  # from another template: the one with the thread is no longer used
    after.close()


def test_an_import_that_fails_is_shown(state: RunState, tmp_path: Path) -> None:
    server = ForkServer(state, ["no_such_module"], log_directory=tmp_path)
    with pytest.raises(RunFailedError, match=r"(?s)the fork server .* ended with status 1.*No module named"):
        server.wait_ready(60.0)
    server.close()


def test_closing_the_fork_server_ends_its_children(
    state: RunState, tmp_path: Path, forking_host: NamespaceHost, fork_server: ForkServer
) -> None:
    (tmp_path / "sleeper.py").write_text("import time\ndef main():\n    time.sleep(600)\n")
    process = forking_host.start(ProcessSpec(name="p", entry="sleeper:main"))
    fork_server.close()
    assert process.wait(10.0) == -signal.SIGKILL
    assert fork_server.failure is None
    assert [identity.pid for identity in processes_of_run(state.run_id)] == [forking_host.pid]


ONCE = """
import os, time
IMPORTED = time.time()
CALLS = []
def main():
    known = "LEFT" in os.environ
    os.environ["LEFT"] = "behind"
    CALLS.append(1)
    environment = open("/proc/self/environ").read().split(chr(0))
    carried = [each for each in environment if each.startswith("TESTBED_RUN_ID=")]
    print(*[IMPORTED, os.environ["TESTBED_RUN_ID"], carried, len(CALLS), known, os.getppid()], sep="|")
"""


def test_the_next_run_gets_a_fork_server_of_its_own_without_importing_again(
    state: RunState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has nothing of the run before but imported modules: not its id, not its variables, not its log."""
    (tmp_path / "once.py").write_text(ONCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    imported = set()
    other = RunState.create(new_run_id(), root=state.directory.parent)
    try:
        for each in (state, other):
            logs = tmp_path / each.run_id
            server = ForkServer(each, ["once"], log_directory=logs)
            pid = make_holder(each, logs)
            host = NamespaceHost("w0", pid, state=each, log_directory=logs, fork_server=server)
            process = host.start(ProcessSpec(name="p", entry="once:main"))
            assert process.wait(20.0) == 0
            assert ProcessIdentity.of(server.pid) in processes_of_run(each.run_id)
            assert server.pid in {process.pid for process in each.owned().processes}
            imported_at, *facts = process.log_path.read_text().strip().split("|")
            assert facts == [each.run_id, f"['TESTBED_RUN_ID={each.run_id}']", "1", "False", str(server.pid)]
            imported.add(imported_at)
            server.close()
            assert [identity.pid for identity in processes_of_run(each.run_id)] == [pid]
    finally:
        assert clean(other.run_id, root=other.directory.parent).remaining == []
    assert len(imported) == 1


MODULES_OF_A_RUN = """
import os, sys
from pathlib import Path
from testbed.hosts.fork_client import _TEMPLATES
before = _TEMPLATES.current()
import testbed.runner.run, mininet.net, grpc, testbed.report.page
assert _TEMPLATES.current() is before, "what a run imports changes neither environment nor path as they matter"
sys.path.insert(0, "/elsewhere")
assert _TEMPLATES.current() is not before
"""


def test_importing_what_runs_an_experiment_needs_no_other_template() -> None:
    done = subprocess.run([sys.executable, "-c", MODULES_OF_A_RUN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_changed_environment_is_that_of_the_next_runs_forks(
    state: RunState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries look at it when they are imported, so that it cannot be handed to what has imported already."""
    for value in ("1", "2"):
        monkeypatch.setenv("TORCH_SOMETHING", value)
        server = ForkServer(state, [], log_directory=tmp_path)
        server.wait_ready(60.0)
        assert f"TORCH_SOMETHING={value}".encode() in Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
        server.close()


def test_closing_before_the_imports_are_done_forks_nothing(
    state: RunState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_import.py").write_text("import time\ntime.sleep(2.0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    server = ForkServer(state, ["slow_import"], log_directory=tmp_path)
    begun_s = time.monotonic()
    server.close()
    assert time.monotonic() - begun_s < 1.0
    after = ForkServer(state, ["slow_import"], log_directory=tmp_path)
    after.wait_ready(60.0)
    assert [identity.pid for identity in processes_of_run(state.run_id)] == [after.pid]
    after.close()
    with pytest.raises(RunFailedError, match="closed"):
        server.wait_ready(60.0)


def test_workers_run_from_registration_to_the_end_in_forks(
    state: RunState, forking_host: NamespaceHost, fork_server: ForkServer
) -> None:
    configurations = importlib.import_module("probe_workload").configurations(4, state.run_id)
    socket_path = state.directory / "control.sock"
    with Coordinator(socket_path, configurations, timeout_s=20.0, listener=Listener()) as coordinator:
        for rank in range(4):
            spec = ProcessSpec(name=f"r{rank}", entry="probe_workload:main", arguments=(str(socket_path), str(rank)))
            coordinator.attach(rank, forking_host.start(spec))
        coordinator.wait_registered(30.0)
        coordinator.wait_finished(30.0)
