"""The coordinator with real gRPC and real worker processes; forks and namespaces are in tests/integration."""

import importlib
import os
import queue
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import grpc
import pytest

from testbed.control import control_pb2 as messages
from testbed.control.control_pb2_grpc import ControlStub
from testbed.control.worker import WorkerConfiguration
from testbed.errors import RunFailedError
from testbed.hosts.spawn import Output, SpawnedProcess, spawn
from testbed.runner import coordinator
from testbed.runner.control_service import Arrived, ControlService
from testbed.runner.coordinator import Coordinator, Listener

TESTS = Path(__file__).parents[3]
Configure = Callable[..., list[WorkerConfiguration]]
SILENT_S = 2.0
"""The timeout where somebody falls silent: a worker of a busy machine may need a second from one word to the next."""


class Recorder(Listener):
    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []
        self.ticks = 0
        self.threads: set[int] = set()

    def note(self, *event: object) -> None:
        self.threads.add(threading.get_ident())
        self.events.append(event)

    def on_barrier(self, name: str) -> None:
        self.note("barrier", name)

    def on_iteration(self, rank: int, iteration: messages.Iteration) -> None:
        self.note("iteration", rank, iteration.index)

    def on_result(self, rank: int, json: str) -> None:
        self.note("result", rank, json)

    def on_finished(self, rank: int, finished: messages.Finished) -> None:
        self.note("finished", rank, finished.parameters_sha256)

    def on_failure(self, rank: int, failure: messages.Failure) -> None:
        self.note("failure", rank, failure.error)

    def on_tick(self) -> None:
        self.ticks += 1


@pytest.fixture
def directory() -> Iterator[Path]:
    # Short: a Unix socket's path has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="tb") as path:
        yield Path(path)


@pytest.fixture
def make_configurations(monkeypatch: pytest.MonkeyPatch) -> Configure:
    monkeypatch.syspath_prepend(str(TESTS))
    return cast("Configure", importlib.import_module("probe_workload").configurations)


class Bench:
    """A coordinator and its workers, each a process of its own."""

    def __init__(self, directory: Path, configurations: list[WorkerConfiguration], timeout_s: float = 20.0) -> None:
        self.listener = Recorder()
        self.complaints = directory / "complaints"
        self.complaints.mkdir()
        self.socket_path = directory / "control.sock"
        self.coordinator = Coordinator(self.socket_path, configurations, timeout_s=timeout_s, listener=self.listener)
        self.workers = [self._start(directory, each.rank) for each in configurations]

    def _start(self, directory: Path, rank: int) -> SpawnedProcess:
        process = spawn(
            f"w{rank}",
            [sys.executable, str(TESTS / "probe_workload.py"), str(self.socket_path), str(rank)],
            Output(directory / f"w{rank}.log", None),
            environment={
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                "PROBE_COMPLAINTS": str(self.complaints),
            },
        )
        self.coordinator.attach(rank, process)
        return process

    def run(self) -> None:
        with self.coordinator:
            self.coordinator.wait_registered(60.0)
            self.registered_s = time.monotonic()
            self.coordinator.wait_finished(30.0)

    def failure(self) -> str:
        self.registered_s = float("inf")
        with pytest.raises(RunFailedError) as caught:
            self.run()
        assert time.monotonic() - self.registered_s < 25.0
        assert all(worker.poll() is not None for worker in self.workers)
        return str(caught.value)


def test_a_run_goes_from_registration_to_the_end(directory: Path, make_configurations: Configure) -> None:
    bench = Bench(directory, make_configurations(3, "r", action="report", actor=1))
    bench.run()
    events = bench.listener.events
    assert [event for event in events if event[0] == "barrier"] == [("barrier", "ready"), ("barrier", "end")]
    for rank in range(3):
        mine = [event for event in events if event[0] != "barrier" and event[1] == rank]
        iterations = [("iteration", rank, 0), ("iteration", rank, 1)]
        extra = [("result", 1, '{"x": 1}'), ("finished", 1, "abc")] if rank == 1 else [("finished", rank, "")]
        assert mine == iterations + extra
    assert [worker.poll() for worker in bench.workers] == [0, 0, 0]
    assert bench.listener.ticks > 0


def test_the_listener_is_called_on_the_thread_that_waits(directory: Path, make_configurations: Configure) -> None:
    bench = Bench(directory, make_configurations(2, "r"))
    bench.run()
    assert bench.listener.threads == {threading.get_ident()}


def test_the_socket_is_not_for_everybody(directory: Path, make_configurations: Configure) -> None:
    with Bench(directory, make_configurations(1, "r")).coordinator:
        assert (directory / "control.sock").stat().st_mode & 0o777 == 0o660


def test_the_traceback_of_a_worker_that_raises_is_in_the_error(directory: Path, make_configurations: Configure) -> None:
    bench = Bench(directory, make_configurations(3, "r", action="raise", actor=2))
    message = bench.failure()
    assert message.startswith("worker 2 on w2 raised ValueError: the probe raises as configured\nTraceback")
    assert 'raise ValueError("the probe raises as configured")' in message
    assert ("failure", 2, "ValueError: the probe raises as configured") in bench.listener.events
    assert "waits in barrier 'end'" in message


def test_a_worker_that_is_killed_is_the_cause_even_if_its_peers_complain_first(
    directory: Path, make_configurations: Configure
) -> None:
    message = Bench(directory, make_configurations(3, "r", action="die_and_be_missed", actor=1)).failure()
    assert message.startswith("worker 1 on w1 was killed by signal 9, Killed\n")
    assert "the end of w1.log:\nrank 1 works" in message
    assert "also: worker 0 on w0 raised PeerLostError: rank 1 is lost: connection reset" in message


def test_a_worker_that_has_lost_its_peers_fails_in_one_line_without_a_traceback(
    directory: Path, make_configurations: Configure
) -> None:
    message = Bench(directory, make_configurations(2, "r", action="lose_all", actor=1)).failure()
    first, *others = message.splitlines()
    assert first == "worker 1 on w1 raised PeerLostError: rank 0 is lost: connection reset"
    assert all(line.startswith("still running: worker 0 on w0") for line in others), message


def test_what_gloo_says_of_a_lost_peer_is_a_consequence_too_and_reported_in_one_line(
    directory: Path, make_configurations: Configure
) -> None:
    message = Bench(directory, make_configurations(3, "r", action="be_missed_by_gloo", actor=1)).failure()
    assert message.startswith("worker 1 on w1 raised ValueError: the probe raises as configured\nTraceback")
    assert "ValueError: the probe raises as configured\nand to say a lot about it\nalso: " in message
    others = [line for line in message.splitlines() if line.startswith("also: ")]
    assert len(others) == 2
    assert all("Connection closed by peer" in line for line in others)
    assert "somewhere" not in message


@pytest.mark.parametrize(("action", "reported"), [("exit", "raised SystemExit: 7"), ("vanish", "ended with status 0")])
def test_a_worker_that_ends_before_it_is_finished_has_failed(
    directory: Path, make_configurations: Configure, action: str, reported: str
) -> None:
    message = Bench(directory, make_configurations(2, "r", action=action, actor=1)).failure()
    assert message.startswith(f"worker 1 on w1 {reported}")


def silent_s(message: str, who: str) -> float:
    """For how long the worker that is named first has said nothing."""
    found = re.match(rf"{who} has said nothing for (\d+\.\d) s", message)
    assert found is not None, message
    return float(found[1])


@pytest.mark.parametrize("action", ["hang", "stop"])
def test_a_worker_that_falls_silent_has_failed_within_the_timeout(
    directory: Path, make_configurations: Configure, action: str
) -> None:
    bench = Bench(directory, make_configurations(2, "r", action=action, actor=0), timeout_s=SILENT_S)
    message = bench.failure()
    assert silent_s(message, "worker 0 on w0") >= 1.5 * SILENT_S
    assert "still running: worker 1 on w1 (waits in barrier 'end'" in message


def test_a_worker_that_hangs_is_the_cause_and_not_those_who_waited_for_it(
    directory: Path, make_configurations: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its silence begins with the last that is heard of it; those who wait complain when they have done so for their
    timeout, all at once. How far apart a busy machine lets them is no matter."""
    timeout_s = 0.5
    monkeypatch.setattr(coordinator, "_SETTLE_S", 2.0)  # for both to be heard
    monkeypatch.setattr(coordinator, "_SILENCE", 60.0)  # nobody is found out by silence alone
    configurations = make_configurations(3, "r", timeout_s=timeout_s, action="hang_and_be_missed", actor=1)
    bench = Bench(directory, configurations, timeout_s=timeout_s)

    def note_the_last(rank: int, iteration: messages.Iteration) -> None:
        if (rank, iteration.index) == (1, 1):
            (bench.complaints / "silent").touch()

    bench.listener.on_iteration = note_the_last  # type: ignore[method-assign]
    message = bench.failure()
    assert silent_s(message, "worker 1 on w1") >= timeout_s
    assert "also: worker 0 on w0 raised PeerTimeoutError" in message
    assert "also: worker 2 on w2 raised PeerTimeoutError" in message


def test_a_worker_whose_bytes_move_is_not_silent(directory: Path, make_configurations: Configure) -> None:
    """An iteration may last longer than a worker may say nothing: 528 MB over 100 Mbit/s are 63 s."""
    timeout_s, moving_s = 0.5, 2.0
    configurations = make_configurations(2, "r", timeout_s=timeout_s, action="hang", actor=0)
    configurations = [each.model_copy(update={"interface": "lo"}) for each in configurations]
    bench = Bench(directory, configurations, timeout_s=timeout_s)
    bench.registered_s = float("inf")

    def move() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while time.monotonic() < bench.registered_s + moving_s:
                for _ in range(4):
                    sender.sendto(bytes(32_768), ("127.0.0.1", 9))
                time.sleep(0.1)

    mover = threading.Thread(target=move)
    mover.start()
    assert silent_s(bench.failure(), "worker 0 on w0") > moving_s
    mover.join()


def test_a_worker_that_never_registers_is_named(directory: Path, make_configurations: Configure) -> None:
    bench = Bench(directory, make_configurations(1, "r"))
    bench.workers[0].send_signal(signal.SIGSTOP)
    with bench.coordinator, pytest.raises(RunFailedError, match=r"^worker 0 on w0 did not register in time$"):
        bench.coordinator.wait_registered(0.5)
    assert bench.workers[0].poll() == -signal.SIGKILL


def test_workers_end_when_the_coordinator_stops(directory: Path, make_configurations: Configure) -> None:
    bench = Bench(directory, make_configurations(2, "r", action="hang", actor=0))
    with bench.coordinator:
        bench.coordinator.wait_registered(30.0)
        bench.coordinator.stop("enough")
    for worker in bench.workers:
        assert worker.poll() == 1, "stopped over the control plane, not by a signal"
        assert "enough" in worker.log_path.read_text()


def test_an_error_in_the_listener_stops_the_workers_and_is_raised(
    directory: Path, make_configurations: Configure
) -> None:
    bench = Bench(directory, make_configurations(2, "r", action="hang", actor=0))

    def fail(rank: int, iteration: messages.Iteration) -> None:
        raise KeyError("listener")

    bench.listener.on_iteration = fail  # type: ignore[method-assign]
    with pytest.raises(KeyError, match="listener"):
        bench.run()
    assert all(worker.poll() is not None for worker in bench.workers)


class Clients:
    """Stubs in this process, to see the order of things at a barrier."""

    def __init__(self, socket_path: Path, num_workers: int) -> None:
        self.channel = grpc.insecure_channel(f"unix:{socket_path}")
        self.stub = ControlStub(self.channel)
        for rank in range(num_workers):
            self.stub.Register(messages.RegisterRequest(rank=rank))

    def arrive(self, rank: int, name: str) -> "grpc.CallFuture[messages.BarrierReply]":
        return self.stub.Barrier.future(messages.BarrierRequest(rank=rank, name=name), timeout=20.0)


class Hook(Listener):
    """Ends the wait once `num_completed` barriers have been passed by all."""

    def __init__(self, num_completed: int = 1) -> None:
        self.num_completed = num_completed
        self.calls: list[grpc.CallFuture[messages.BarrierReply]] = []
        self.log: list[tuple[str, list[bool]]] = []
        self.completed_s = 0.0

    def on_barrier(self, name: str) -> None:
        self.log.append((name, [call.done() for call in self.calls]))
        self.completed_s = time.monotonic()

    def on_tick(self) -> None:
        if len(self.log) == self.num_completed and all(call.done() for call in self.calls):
            raise StopIteration


def test_the_hook_runs_once_before_anyone_is_released(directory: Path, make_configurations: Configure) -> None:
    hook = Hook()
    socket_path = directory / "control.sock"
    with Coordinator(socket_path, make_configurations(3, "r"), timeout_s=20.0, listener=hook) as coordinator:
        clients = Clients(socket_path, 3)
        hook.calls = [clients.arrive(rank, "start") for rank in range(3)]
        with pytest.raises(StopIteration):
            coordinator.wait_finished(20.0)
        assert hook.log == [("start", [False, False, False])]
        released_s = {call.result().released_s for call in hook.calls}
        assert len(released_s) == 1, "all are released at one time"
        assert released_s.pop() >= hook.completed_s
        clients.channel.close()


def test_a_barrier_can_be_used_again(directory: Path, make_configurations: Configure) -> None:
    hook = Hook(num_completed=2)
    socket_path = directory / "control.sock"
    with Coordinator(socket_path, make_configurations(2, "r"), timeout_s=20.0, listener=hook) as coordinator:
        clients = Clients(socket_path, 2)

        def arrive_again(rank: int, _: object) -> None:
            hook.calls.append(clients.arrive(rank, "iteration"))

        for rank in range(2):
            clients.arrive(rank, "iteration").add_done_callback(partial(arrive_again, rank))
        with pytest.raises(StopIteration):
            coordinator.wait_finished(20.0)
        assert [name for name, _ in hook.log] == ["iteration", "iteration"]
        clients.channel.close()


def test_a_barrier_comes_after_all_that_was_reported_before_it(directory: Path) -> None:
    """Events are a stream and a barrier is a call of its own: gRPC does not say which of them arrives first."""
    service = ControlService(directory / "control.sock", ["{}"])
    clients = Clients(directory / "control.sock", 1)
    late = threading.Event()

    def events() -> Iterator[messages.Event]:
        yield messages.Event(rank=0, iteration=messages.Iteration(index=0))
        late.wait()
        yield messages.Event(rank=0, iteration=messages.Iteration(index=1))

    call = clients.stub.Barrier.future(messages.BarrierRequest(rank=0, name="end", num_events=2), timeout=20.0)
    report = clients.stub.Report.future(events(), timeout=20.0)
    arrived = [service.arrivals.get(timeout=20.0) for _ in range(2)]
    with pytest.raises(queue.Empty):
        service.arrivals.get(timeout=0.1)
    late.set()
    arrived += [service.arrivals.get(timeout=20.0) for _ in range(2)]
    assert [type(each).__name__ for each in arrived] == ["Registered", "Event", "Event", "Arrived"]
    assert isinstance(arrived[-1], Arrived)
    arrived[-1].released.set_result(1.0)
    assert call.result().released_s == 1.0
    report.result()
    clients.channel.close()
    service.close()


def test_a_stop_cancels_those_who_wait_in_a_barrier(directory: Path, make_configurations: Configure) -> None:
    socket_path = directory / "control.sock"
    with Coordinator(socket_path, make_configurations(2, "r"), timeout_s=20.0, listener=Listener()) as coordinator:
        clients = Clients(socket_path, 2)
        call = clients.arrive(0, "start")
        coordinator.stop("enough")
        assert call.code() == grpc.StatusCode.CANCELLED
        assert clients.arrive(1, "start").code() == grpc.StatusCode.CANCELLED, "also those who come later"
        command = next(iter(clients.stub.Watch(messages.WatchRequest(rank=1), timeout=20.0)))
        assert (command.kind, command.reason) == (messages.Command.STOP, "enough")
        clients.channel.close()


def test_a_rank_that_does_not_exist_is_refused(directory: Path, make_configurations: Configure) -> None:
    socket_path = directory / "control.sock"
    with Coordinator(socket_path, make_configurations(1, "r"), timeout_s=20.0, listener=Listener()):
        with pytest.raises(grpc.RpcError) as caught:
            Clients(socket_path, 2)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
