import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import Interrupted, RunFailedError, SpecError
from testbed.experiment.experiment import validate
from testbed.hosts.base import ProcessSpec
from testbed.hosts.spawn import Output, SpawnedProcess, spawn
from testbed.plan.plan import Plan, make_plan
from testbed.runner.coordinator import Listener
from testbed.runner.user_command import (
    CommandFailedError,
    Exit,
    Launch,
    aggregation_losses,
    redirections,
    worker_environment,
)
from transports.collectives.in_network import LOST_VARIABLE


def planned(*argv: str, workers: int = 2, grace: str = "5s", **spec: Any) -> Plan:
    workload = {"kind": "command", "argv": list(argv), "grace": grace, **spec.pop("workload", {})}
    return make_plan(validate({"name": "a", "workers": workers, "workload": workload, **spec}))


def environment(plan: Plan, rank: int, **inherited: str) -> dict[str, str]:
    return worker_environment(
        plan,
        rank,
        run_id="r",
        inherited=inherited,
        num_cores=8,
        redirected=Path("/run/testbed/r/redirected"),
        aggregation_lost=Path("/run/testbed/r/lost"),
    )


def test_variables_are_torchruns() -> None:
    plan = planned("true", workers=4)
    found = environment(plan, 2)
    expected = {
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "2",
        "NODE_RANK": "2",
        "MASTER_ADDR": plan.worker_port(0).address,
        "MASTER_PORT": "29500",
        "GLOO_SOCKET_IFNAME": "w2-eth0",
        "TP_SOCKET_IFNAME": "w2-eth0",
        "NCCL_SOCKET_IFNAME": "w2-eth0",
        "TESTBED_ADDRESS": plan.worker_port(2).address,
        "TORCHELASTIC_RUN_ID": "r",
        "OMP_NUM_THREADS": "2",
        "TESTBED_NATIVE_REQUIRED": "1",
    }
    assert expected.items() <= found.items()
    assert "TESTBED_REDIRECT" not in found


def test_local_ranks_count_within_a_host_and_the_last_host_may_have_fewer() -> None:
    plan = planned("true", workers=5, workers_per_host=2)
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    found = [tuple(int(environment(plan, rank)[name]) for name in names) for rank in range(5)]
    assert found == [(0, 2, 0, 3), (1, 2, 0, 3), (0, 2, 1, 3), (1, 2, 1, 3), (0, 1, 2, 3)]


def test_each_worker_is_given_its_own_aggregator_and_its_number_there() -> None:
    collective = {"kind": "in_network", "at": "tree"}
    workload = {"backend": "testbed"}
    plan = planned("true", workers=4, topology="leaf_spine", collective=collective, workload=workload)
    reported = [json.loads(environment(plan, rank)["TESTBED_COLLECTIVE"]) for rank in range(4)]
    _, first, second = (each.port.address for each in plan.aggregators)
    assert [(each["aggregator"], each["aggregator_index"]) for each in reported] == [
        (first, 0),
        (first, 1),
        (second, 0),
        (second, 1),
    ]


def test_what_the_user_has_set_is_meant() -> None:
    plan = planned("true", workload={"environment": {"MASTER_PORT": "1234", "MODE": "a"}})
    found = environment(plan, 0, OMP_NUM_THREADS="7")
    assert "OMP_NUM_THREADS" not in found  # inherited
    assert (found["MASTER_PORT"], found["MODE"]) == ("1234", "a")


def test_a_backend_that_takes_over_is_informed_where_to_say_so() -> None:
    found = environment(planned("true", workload={"backend": "testbed"}), 1)
    assert found["TESTBED_REDIRECT"] == "/run/testbed/r/redirected"
    assert found["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "1"


def test_a_launcher_is_nobody_among_the_workers() -> None:
    """It would hand RANK=0 to all that it starts."""
    found = environment(planned("mpirun", workers=4, workload={"launcher": True}), 0)
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"} & set(found)
    assert {"MASTER_ADDR", "TESTBED_ADDRESS", "GLOO_SOCKET_IFNAME"} <= set(found)


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"runtime": "docker"}, "workload.launcher"),
        ({"workers_per_host": 2}, "workers_per_host"),
        ({"hosts": {"w1": {"cpu": 0.5}}}, "hosts.w1"),
    ],
)
def test_what_a_launcher_would_ignore_is_refused(spec: dict[str, Any], word: str) -> None:
    with pytest.raises(SpecError, match=word):
        planned("mpirun", workers=4, workload={"launcher": True}, **spec)


def test_a_launcher_runs_in_the_first_host_and_finds_the_others(tmp_path: Path) -> None:
    plan = planned("sh", "-c", 'grep -c pid= "$TESTBED_SSH"; cat "$TESTBED_HOSTFILE"', workload={"launcher": True})
    hosts: dict[str, Any] = {f"w{rank}": LocalHost(tmp_path) for rank in range(2)}
    heard = Heard()
    prepared(plan, hosts, tmp_path, heard).run()
    assert [line for _, line, _ in heard.lines] == ["2", "w0 slots=1", "w1 slots=1"]
    assert heard.exits == {0: 0}
    assert hosts["w1"].started == []


def test_workers_learn_where_to_say_that_a_switch_is_lost_where_there_is_one(tmp_path: Path) -> None:
    workload = {"backend": "testbed"}
    summed = planned("true", workload=workload, collective="in_network")
    assert environment(summed, 1)[LOST_VARIABLE] == "/run/testbed/r/lost"
    assert LOST_VARIABLE not in environment(planned("true", workload=workload), 1)
    path = tmp_path / "lost"
    assert aggregation_losses(path) == []
    path.write_text("no result\nanother epoch\nno result\n")
    assert aggregation_losses(path) == ["no result", "another epoch"]


def test_redirections_are_what_was_requested(tmp_path: Path) -> None:
    path = tmp_path / "redirected"
    assert redirections(path) == []
    path.write_text("0 gloo\n1 gloo\n0 default\n")
    assert redirections(path) == ["default", "gloo"]
    path.write_text("0 gloo\n0 testbed\n")
    assert redirections(path) == ["gloo"], "a group made from the redirected one inherits its name"
    path.write_text("0 testbed\n")
    assert redirections(path) == ["testbed"]


class LocalHost:
    """A host without namespaces."""

    pid = 1

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.started: list[SpawnedProcess] = []

    def start(self, process: ProcessSpec, *, on_output: Any = None, on_error: Any = None) -> SpawnedProcess:
        output = Output(self.directory / f"{process.name}.log", on_output, on_error)
        environment = {**os.environ, **process.environment}
        self.started.append(spawn(process.name, process.argv, output, environment=environment, stdin=process.stdin))
        return self.started[-1]


class Heard(Listener):
    def __init__(self) -> None:
        self.lines: list[tuple[int, str, bool]] = []
        self.exits: dict[int, int] = {}
        self.barriers: list[str] = []
        self.interference: list[str] = []
        self.tick = lambda: None

    def on_line(self, rank: int, line: str, *, error: bool) -> None:
        self.lines.append((rank, line, error))

    def on_exit(self, rank: int, status: int) -> None:
        self.exits[rank] = status

    def on_barrier(self, name: str) -> None:
        self.barriers.append(name)

    def on_interference(self, text: str) -> None:
        self.interference.append(text)

    def on_tick(self) -> None:
        self.tick()


def prepared(plan: Plan, hosts: dict[str, Any], directory: Path, heard: Heard, **how: Any) -> Launch:
    """Not started; what it and its workers write is in the directory."""
    return Launch(
        plan,
        hosts,
        run_id="r",
        redirected=directory / "redirected",
        aggregation_lost=directory / "lost",
        directory=directory,
        listener=heard,
        **how,
    )


def launch(tmp_path: Path, script: str, *, heard: Heard | None = None, grace: str = "5s", workers: int = 2) -> Heard:
    heard = heard or Heard()
    plan = planned("sh", "-c", script, workers=workers, grace=grace)
    hosts: dict[str, Any] = {f"w{rank}": LocalHost(tmp_path) for rank in range(workers)}
    try:
        prepared(plan, hosts, tmp_path, heard).run()
    finally:
        assert all(process.poll() is not None for host in hosts.values() for process in host.started)
    return heard


def test_a_worker_that_ended_with_its_container_tells_by_its_status_and_the_container_why(tmp_path: Path) -> None:
    """Whatever is noticed first."""
    plan = planned("sh", "-c", "sleep 60")
    hosts: dict[str, Any] = {f"w{rank}": LocalHost(tmp_path) for rank in range(2)}

    def watch() -> None:
        (process,) = hosts["w1"].started
        process.send_signal(signal.SIGKILL)
        process.wait(10.0)
        raise RunFailedError("the container of w1 was removed")

    with pytest.raises(CommandFailedError, match="the container of w1 was removed") as raised:
        prepared(plan, hosts, tmp_path, Heard(), watch=watch).run()
    assert raised.value.exit_code == 128 + signal.SIGKILL


def test_lines_of_both_streams_are_distinguished_and_kept(tmp_path: Path) -> None:
    heard = launch(tmp_path, "echo out $RANK; echo err $RANK >&2; printf tail")
    assert sorted(heard.lines) == sorted(
        [(rank, text, error) for rank in (0, 1) for text, error in ((f"out {rank}", False), (f"err {rank}", True))]
        + [(0, "tail", False), (1, "tail", False)]
    )
    assert (tmp_path / "w1.log").read_text().startswith("out 1\n")
    assert (tmp_path / "w1.stderr.log").read_text() == "err 1\n"
    assert heard.exits == {0: 0, 1: 0}
    assert heard.barriers == ["measure", "done"]


def test_what_a_worker_leaves_in_the_background_does_not_lengthen_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the worker's output, for which somebody waits until the log is complete."""

    class Stamped(Heard):
        def __init__(self) -> None:
            super().__init__()
            self.order: list[str] = []

        def on_exit(self, rank: int, status: int) -> None:
            super().on_exit(rank, status)
            self.order.append("exit")

        def on_barrier(self, name: str) -> None:
            super().on_barrier(name)
            self.order.append(name)

    heard = Stamped()
    waited = SpawnedProcess.wait

    def wait(process: SpawnedProcess, timeout_s: float) -> int | None:
        heard.order.append("log")
        return waited(process, timeout_s)

    monkeypatch.setattr(SpawnedProcess, "wait", wait)
    launch(tmp_path, "sleep 4 & echo said; exit 0", heard=heard)
    assert heard.order == ["measure", "exit", "exit", "done", "log", "log"]
    assert [line for _, line, _ in heard.lines] == ["said", "said"]


def test_that_a_short_command_has_ended_is_noticed_within_a_hundredth_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked at every 50 ms, of which one that takes 0.21 s was up to a quarter longer."""
    naps_s: list[float] = []
    nap = time.sleep

    def sleep(time_s: float) -> None:
        naps_s.append(time_s)
        nap(time_s)

    monkeypatch.setattr(time, "sleep", sleep)
    begun_s = time.monotonic()
    launch(tmp_path, "sleep 0.2")
    assert naps_s
    assert max(naps_s) <= 0.01 * (time.monotonic() - begun_s)


def test_rank_0_reads_what_it_is_given_and_the_others_nothing(tmp_path: Path) -> None:
    (tmp_path / "given").write_text("a line\n")
    plan = planned("sh", "-c", "cat; echo end")
    hosts: dict[str, Any] = {f"w{rank}": LocalHost(tmp_path) for rank in range(2)}
    heard = Heard()
    with (tmp_path / "given").open() as given:
        prepared(plan, hosts, tmp_path, heard, stdin=given.fileno()).run()
    assert [line for rank, line, _ in heard.lines if rank == 0] == ["a line", "end"]
    assert [line for rank, line, _ in heard.lines if rank == 1] == ["end"]


def test_standard_input_is_closed(tmp_path: Path) -> None:
    assert (0, "nothing", False) in launch(tmp_path, "read line || echo nothing").lines


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)])
def test_the_first_failure_is_the_exit_code_and_the_others_are_ended(tmp_path: Path, script: str, code: int) -> None:
    heard = Heard()
    with pytest.raises(CommandFailedError) as raised:
        launch(tmp_path, f"echo why >&2; if [ $RANK = 1 ]; then {script}; fi; exec sleep 60", heard=heard)
    assert raised.value.exit_code == code
    assert "w1 (rank 1)" in str(raised.value)
    assert "why" in str(raised.value)
    assert "w0 was stopped" in str(raised.value)
    assert heard.exits[0] == -signal.SIGTERM
    assert heard.barriers == ["measure", "done"]


def test_who_does_not_end_within_the_grace_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"if [ $RANK = 0 ]; then while [ ! -e {ready} ]; do sleep 0.05; done; exit 3; fi; "
    script += f"trap '' TERM; touch {ready}; while :; do sleep 0.1; done"
    with pytest.raises(CommandFailedError, match=r"w1 did not stop within 0\.2 s and was killed") as raised:
        launch(tmp_path, script, grace="200ms")
    assert raised.value.exit_code == 3


@pytest.fixture
def _heard_interrupts() -> Iterator[None]:
    """Whoever starts tests in the background of a script has them ignore SIGINT, which a shell then cannot trap."""
    known = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, known)


@pytest.mark.usefixtures("_heard_interrupts")
def test_an_interrupt_goes_to_the_workers_first(tmp_path: Path) -> None:
    heard, interrupted_s = Heard(), list[float]()

    def interrupt() -> None:
        if sum(line == "ready" for _, line, _ in heard.lines) == 2:
            interrupted_s.append(time.monotonic())
            raise Interrupted("SIGINT")

    heard.tick = interrupt
    script = "trap 'echo goodbye; exit 0' INT; echo ready; while :; do sleep 0.05; done"
    with pytest.raises(Interrupted):
        launch(tmp_path, script, heard=heard)
    assert sorted(line for _, line, _ in heard.lines).count("goodbye") == 2
    assert time.monotonic() - interrupted_s[0] < 5


def test_a_signal_while_a_worker_is_being_started_reaches_that_worker_too(tmp_path: Path) -> None:
    """It has begun to print, and nobody knows of it yet."""

    class Hangup(LocalHost):
        def start(self, process: ProcessSpec, *, on_output: Any = None, on_error: Any = None) -> SpawnedProcess:
            started = super().start(process, on_output=on_output, on_error=on_error)
            deadline_s = time.monotonic() + 10
            logs = [started.log_path.with_name(f"w{rank}.log") for rank in (0, 1)]
            while not all("ready" in log.read_text() for log in logs) and time.monotonic() < deadline_s:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGHUP)
            return started

    def interrupt(number: int, _: object) -> None:
        raise Interrupted(signal.Signals(number).name)

    plan = planned("sh", "-c", "trap 'echo hung up; exit 0' HUP; echo ready; while :; do sleep 0.05; done")
    hosts: dict[str, Any] = {"w0": LocalHost(tmp_path), "w1": Hangup(tmp_path)}
    before = signal.signal(signal.SIGHUP, interrupt)
    try:
        launched = prepared(plan, hosts, tmp_path, Heard())
        with pytest.raises(Interrupted, match="SIGHUP"):
            launched.run()
    finally:
        signal.signal(signal.SIGHUP, before)
        for host in hosts.values():
            for process in host.started:
                process.stop(0.0)
    assert [(tmp_path / f"w{rank}.log").read_text() for rank in (0, 1)] == ["ready\nhung up\n"] * 2


def test_what_is_watched_ends_the_run(tmp_path: Path) -> None:
    def broken() -> None:
        raise RunFailedError("a daemon has ended")

    plan = planned("sleep", "60")
    hosts: dict[str, Any] = {f"w{rank}": LocalHost(tmp_path) for rank in range(2)}
    launched = prepared(plan, hosts, tmp_path, Heard(), watch=broken)
    with pytest.raises(RunFailedError, match="a daemon"):
        launched.run()
    assert all(process.poll() is not None for host in hosts.values() for process in host.started)


def test_lines_come_while_the_command_runs(tmp_path: Path) -> None:
    heard, reported = Heard(), threading.Event()

    def look() -> None:
        if len(heard.lines) == 2 and not heard.exits:
            reported.set()
            (tmp_path / "go").touch()

    heard.tick = look
    launch(tmp_path, f"echo one; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done", heard=heard)
    assert reported.is_set()


def test_a_worker_that_somebody_stops_for_a_while_is_named(tmp_path: Path) -> None:
    # One process: a shell that is just starting another one waits for it uninterruptibly, and is not seen as stopped.
    script = f"import os, time\nwhile not os.path.exists('{tmp_path}/done'): time.sleep(0.02)"
    plan = planned(sys.executable, "-S", "-c", script)
    hosts: dict[str, Any] = {f"w{rank}": LocalHost(tmp_path) for rank in range(2)}
    heard = Heard()
    steps = iter(
        [
            *[lambda: None] * 10,
            lambda: hosts["w1"].started[0].send_signal(signal.SIGSTOP),
            *[lambda: None] * 10,
            lambda: hosts["w1"].started[0].send_signal(signal.SIGCONT),
        ]
    )

    def step() -> None:
        next(steps, lambda: (tmp_path / "done").touch() if heard.interference else None)()

    heard.tick = step
    prepared(plan, hosts, tmp_path, heard).run()
    (text,) = heard.interference
    assert re.fullmatch(r"w1 was stopped for \d\.\d s \(SIGSTOP, or a debugger\)", text)


def test_an_exit_says_how() -> None:
    assert Exit(rank=0, status=-11, at_s=0).exit_code == 139
    assert "Segmentation fault" in Exit(rank=0, status=-11, at_s=0).text
    assert Exit(rank=0, status=2, at_s=0).text == "ended with status 2"
