"""Drives the workers of a run, and is the one place where their failures are noticed.

Everything here, the listener's methods included, happens on the thread that calls the `wait_...` methods;
gRPC's threads only queue what arrives (testbed.runner.control_service).
"""

import queue
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from testbed.control import control_pb2 as messages
from testbed.control.worker import WorkerConfiguration
from testbed.errors import RunFailedError
from testbed.hosts.base import Process, RunningRuntime
from testbed.hosts.spawn import log_tail
from testbed.runner.control_service import Arrival, Arrived, ControlService, Registered
from testbed.runner.process_watch import ProcessWatch
from testbed.runner.traffic_watch import TrafficWatch

_TICK_S: Final = 0.1
_EXIT_TICK_S: Final = 0.01
"""Once all have finished there is nothing left to hear of, and the end of a process is found by looking."""
_SETTLE_S: Final = 0.5
"""So long others are heard after the first failure: who complains first has seldom failed first."""
_CAUSE_S: Final = 2.0
"""So long where only complaints about others are known: whom they miss may have to wait for a core to end."""
_CONSEQUENCE: Final = 3
"""The priority of such a complaint."""
_SILENCE: Final = 1.5
"""Timeouts that a worker may say nothing. More than one, because everybody who waits for a worker that hangs is silent
as well until their own timeout: they know whom they wait for."""
_STOP_GRACE_S: Final = 2.0
_CONSEQUENCES: Final = ("PeerLostError", "PeerTimeoutError", "/gloo/gloo/", "mpirun has ended the job")
"""What the error of a worker says that has lost another one: our errors, wrapped or not, gloo's, which have no type of
their own but name the source file, and that of a rank of MPI."""
_WRAPPINGS: Final = (
    "RuntimeError: Got the following error when running the callback: ",
    "RuntimeError: Unable to cast Python instance of type 'none', for the operation failed.\n",
)
"""What torch puts before an error that a future's callback has raised, and what it makes of the error of an operation
whose future is read (transports.torch_backend.works)."""


class Listener:
    """What a run wants to know. Nothing happens by default."""

    def on_launch(self, at_s: float) -> None:
        """The workers are started from that moment of CLOCK_MONOTONIC on."""

    def on_barrier(self, name: str) -> None:
        """Every worker has come to the barrier, and none has been released yet."""

    def on_iteration(self, rank: int, iteration: messages.Iteration) -> None:
        """A worker has done an iteration."""

    def on_stage(self, rank: int, stage: messages.Stage) -> None:
        """A worker has started, or has read data."""

    def on_computing_threads(self, rank: int, threads: Sequence[int]) -> None:
        """A worker computes with these threads, by their ids in its own pid namespace; all others move gradients."""

    def on_result(self, rank: int, json: str) -> None:
        """A workload other than training has measured something."""

    def on_finished(self, rank: int, finished: messages.Finished) -> None:
        """A worker has done its work and is about to exit."""

    def on_failure(self, rank: int, failure: messages.Failure) -> None:
        """A worker has raised; the wait ends with RunFailedError soon after."""

    def on_line(self, rank: int, line: str, *, error: bool) -> None:
        """A worker's command has printed a line, to standard error or output; on a thread of that stream's own."""

    def on_exit(self, rank: int, status: int) -> None:
        """A worker's command has ended; a negative status is the signal that ended it."""

    def on_hint(self, text: str) -> None:
        """Something about a command that whoever reads the results should know."""

    def on_interference(self, text: str) -> None:
        """Others have done something to a worker's process: `w1 was stopped for 2.0 s (SIGSTOP, or a debugger)`."""

    def on_tick(self) -> None:
        """About ten times a second."""


@dataclass(slots=True)
class _Worker:
    """What is known of a worker."""

    configuration: WorkerConfiguration
    process: Process | None = None
    watch: ProcessWatch | None = None
    traffic: TrafficWatch | None = None
    registered: bool = False
    finished: bool = False
    exited: bool = False
    failed: bool = False
    barrier: str | None = None
    """The barrier it waits in."""
    heard_s: float = field(default_factory=time.monotonic)

    @property
    def active_s(self) -> float:
        """When it last said something or its bytes moved."""
        return max(self.heard_s, self.traffic.moved_s) if self.traffic else self.heard_s

    @property
    def sent_s(self) -> float:
        """When it last said something or sent."""
        return max(self.heard_s, self.traffic.sent_s) if self.traffic else self.heard_s

    @property
    def title(self) -> str:
        return f"worker {self.configuration.rank} on {self.configuration.host}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Problem:
    """One sign that the run has failed."""

    priority: int
    """0 is surely a cause; 3 is most likely the consequence of another worker's failure."""
    summary: str
    details: str = ""


class Coordinator:
    """Serves the workers of one run; as a context manager it leaves none of them alive."""

    def __init__(
        self,
        socket_path: Path,
        configurations: Sequence[WorkerConfiguration],
        *,
        timeout_s: float,
        listener: Listener,
        runtime: RunningRuntime | None = None,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """A worker that says nothing for one and a half `timeout_s`, outside a barrier, while no bytes cross its
        interface, has failed; for one, if others have lost their peers. `watch` is called about ten times a second and
        raises what else has ended the run."""
        assert [each.rank for each in configurations] == list(range(len(configurations)))
        self._timeout_s = timeout_s
        self._listener = listener
        self._runtime = runtime
        self._watch = watch
        self._workers = [_Worker(configuration) for configuration in configurations]
        self._barriers: dict[str, list[Arrived]] = {}
        self._problems: list[_Problem] = []
        self._runtime_failed = False
        self._service = ControlService(socket_path, [each.model_dump_json() for each in configurations])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop("the run is over" if error is None else f"the run has failed: {type(error).__name__}")
        self._service.close()

    def attach(self, rank: int, process: Process, *, requested_cores: float | None = None) -> None:
        """Watch the process of a worker: its exit status is part of the outcome. `requested_cores`: the CPU quota that
        the spec gives it."""
        worker = self._workers[rank]
        worker.process = process
        now_s = time.monotonic()
        worker.watch = ProcessWatch(worker.configuration.host, process.pid, now_s, requested_cores=requested_cores)
        worker.traffic = TrafficWatch(process.pid, worker.configuration.interface, now_s)

    def wait_registered(self, timeout_s: float) -> None:
        """Until every worker has registered. Raises RunFailedError, having stopped all workers."""
        self._wait("register", timeout_s, lambda worker: worker.registered)

    def wait_finished(self, timeout_s: float) -> None:
        """Until every worker has finished and exited with 0. Raises RunFailedError, having stopped all."""
        self._wait("finish", timeout_s, lambda worker: worker.finished and worker.exited)

    def stop(self, reason: str) -> None:
        """Tell every worker to stop, and end those that do not. Idempotent."""
        self._service.stop(reason)
        processes = [worker.process for worker in self._workers if worker.process is not None]
        deadline_s = time.monotonic() + _STOP_GRACE_S
        for process in processes:
            process.wait(max(0.0, deadline_s - time.monotonic()))
        for process in processes:
            process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + _STOP_GRACE_S
        for process in processes:
            process.stop(max(0.0, deadline_s - time.monotonic()))

    def _wait(self, what: str, timeout_s: float, done: Callable[[_Worker], bool]) -> None:
        try:
            self._wait_for(what, time.monotonic() + timeout_s, done)
        except BaseException as error:
            self.stop(f"the run has failed: {type(error).__name__}")
            raise

    def _wait_for(self, what: str, deadline_s: float, done: Callable[[_Worker], bool]) -> None:
        while not all(done(worker) for worker in self._workers):
            self._advance()
            if time.monotonic() > deadline_s:
                for worker in self._workers:
                    if not done(worker) and not worker.failed:
                        self._fail(worker, 2, f"did not {what} in time", _log_tail(worker))
            if self._problems:
                self._settle()
                raise RunFailedError(self._explain())

    def _advance(self) -> None:
        """Handle everything that has arrived, waiting at most one tick for it, then look for failures."""
        # Statuses first: what a worker said before it exited has then arrived before its exit is judged.
        statuses = [worker.process.poll() if worker.process else None for worker in self._workers]
        exiting = all(worker.finished for worker in self._workers)
        try:
            self._handle(self._service.arrivals.get(timeout=_EXIT_TICK_S if exiting else _TICK_S))
            while True:
                self._handle(self._service.arrivals.get_nowait())
        except queue.Empty:
            pass
        now_s = time.monotonic()
        for worker, status in zip(self._workers, statuses, strict=True):
            if worker.watch is not None and status is None:
                for text in worker.watch.look(now_s):
                    self._listener.on_interference(text)
            if worker.traffic is not None:
                worker.traffic.look(now_s)
            self._judge(worker, status)
        failure = self._runtime.failure if self._runtime is not None else None
        if failure is not None and not self._runtime_failed:
            self._runtime_failed = True
            self._problems.insert(0, _Problem(priority=0, summary=failure))
        self._watch()
        self._listener.on_tick()

    def _handle(self, arrival: Arrival) -> None:
        worker = self._workers[arrival.rank]
        worker.heard_s = time.monotonic()
        if isinstance(arrival, Registered):
            if worker.registered:
                self._fail(worker, 0, "registered twice")
            worker.registered = True
        elif isinstance(arrival, Arrived):
            self._enter_barrier(worker, arrival)
        else:
            self._handle_event(worker, arrival)

    def _enter_barrier(self, worker: _Worker, arrived: Arrived) -> None:
        if worker.barrier is not None:
            self._fail(worker, 0, f"came to barrier {arrived.name!r} while it waits in {worker.barrier!r}")
            return
        worker.barrier = arrived.name
        waiting = self._barriers.setdefault(arrived.name, [])
        waiting.append(arrived)
        if len(waiting) < len(self._workers):
            return
        self._listener.on_barrier(arrived.name)
        del self._barriers[arrived.name]
        released_s = time.monotonic()
        for each in waiting:
            self._workers[each.rank].barrier = None
            self._workers[each.rank].heard_s = released_s
            if each.released.set_running_or_notify_cancel():
                each.released.set_result(released_s)

    def _handle_event(self, worker: _Worker, event: messages.Event) -> None:
        kind = event.WhichOneof("kind")
        if kind == "iteration":
            self._listener.on_iteration(event.rank, event.iteration)
        elif kind == "stage":
            self._listener.on_stage(event.rank, event.stage)
        elif kind == "computing":
            self._listener.on_computing_threads(event.rank, event.computing.ids)
        elif kind == "result":
            self._listener.on_result(event.rank, event.result.json)
        elif kind == "finished":
            worker.finished = True
            self._listener.on_finished(event.rank, event.finished)
        elif kind == "failure":
            self._listener.on_failure(event.rank, event.failure)
            error = event.failure.error
            consequence = any(mark in error for mark in _CONSEQUENCES)
            # The traceback ends with all of it; DistributedDataParallel's errors go on for many lines.
            for wrapping in _WRAPPINGS:
                error = error.removeprefix(wrapping)
            first_line = error.partition("\n")[0].rstrip(": ")
            # Where a worker has waited for another says nothing about why that is gone; its log has the traceback.
            details = "" if consequence else event.failure.traceback
            self._fail(worker, _CONSEQUENCE if consequence else 1, f"raised {first_line}", details)

    def _judge(self, worker: _Worker, status: int | None) -> None:
        """A worker that ended too early, or says nothing any more, has failed."""
        if status is not None and not worker.exited:
            worker.exited = True
            if worker.failed:
                return
            if status < 0:
                # Nobody but the outside world sends signals while the run goes on.
                cause = worker.watch.cause_of_kill() if worker.watch and status == -signal.SIGKILL else ""
                name = ": ".join(filter(None, [signal.strsignal(-status), cause]))
                self._fail(worker, 0, f"was killed by signal {-status}, {name}", _log_tail(worker))
            elif status > 0 or not worker.finished:
                self._fail(worker, 1, f"ended with status {status} before it was finished", _log_tail(worker))
        if time.monotonic() - worker.active_s > _SILENCE * self._timeout_s:
            self._fail_silent(worker)

    def _fail_silent(self, worker: _Worker) -> None:
        """Unless nothing is to be heard of it: in a barrier, and before and after its work."""
        silent_s = time.monotonic() - worker.heard_s
        if worker.registered and not (worker.exited or worker.failed or worker.barrier):
            stopped = " and is stopped (SIGSTOP, or a debugger)" if worker.watch and worker.watch.is_stopped else ""
            self._fail(worker, 2, f"has said nothing for {silent_s:.1f} s{stopped}", _log_tail(worker))

    def _fail(self, worker: _Worker, priority: int, summary: str, details: str = "") -> None:
        worker.failed = True
        self._problems.append(_Problem(priority=priority, summary=f"{worker.title} {summary}", details=details))

    def _settle(self) -> None:
        """Hear the others for a moment."""
        begun_s = time.monotonic()
        while not all(worker.failed or worker.exited for worker in self._workers):
            caused = any(problem.priority < _CONSEQUENCE for problem in self._problems)
            if time.monotonic() - begun_s >= (_SETTLE_S if caused else _CAUSE_S):
                break
            self._advance()
        now_s = time.monotonic()
        for worker in self._workers:
            # Whoever has not even complained is whom the others have waited for, unless it is sending to one of them.
            sending = now_s - worker.sent_s < self._timeout_s / 2
            if now_s - worker.heard_s > self._timeout_s and not sending:
                self._fail_silent(worker)

    def _explain(self) -> str:
        """The likeliest cause with its traceback or log, then what else was noticed."""
        ordered = sorted(self._problems, key=lambda problem: problem.priority)
        cause, others = ordered[0], [f"also: {problem.summary}" for problem in ordered[1:]]
        now_s = time.monotonic()
        for worker in self._workers:
            if not (worker.failed or worker.exited):
                where = f"waits in barrier {worker.barrier!r}, " if worker.barrier else ""
                others.append(f"still running: {worker.title} ({where}last heard {now_s - worker.heard_s:.1f} s ago)")
        return "\n".join(filter(None, [cause.summary, cause.details.rstrip(), *others]))


def _log_tail(worker: _Worker) -> str:
    if worker.process is None:
        return ""
    worker.process.wait(0.0)  # if it has ended, its log is then complete
    path = worker.process.log_path
    tail = log_tail(path)
    return f"the end of {path.name}:\n{tail}" if tail else ""
