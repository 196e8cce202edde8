"""One machine of a cluster, as the thread here that talks to it sees it.

A machine that does not answer is called lost only when no run of it can go on there any more (_lease), whatever Ray
says of it: an actor that died has left a run behind that its keeper is ending.
"""

import math
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from testbed.errors import MissingRequirementError, SpecError
from testbed.experiment.experiment import Experiment
from testbed.record.reader import load_summary
from testbed.record.summary import Summary
from testbed.runner.engines._cluster import NAMESPACE, RESOURCE
from testbed.runner.engines._lease import Contact, RefusedError, Timing, UnfitError
from testbed.runner.engines._slot import PROGRAM, Description, Request, Slot, end_process
from testbed.runner.engines._transfer import TransferError, receive
from testbed.runner.engines.base import Attempt, Event, Finished, Gone, Late, Lost, Ready, Session
from testbed.runner.program import origin_of_runs
from testbed.store.documents import Origin, origin

_START_TIMEOUT_S: Final = 120.0
"""For an actor's process, which imports this package, and for what it examines before it first answers."""


class _LostError(Exception):
    """A machine did not answer, or what answered died; nothing that ran there goes on."""

    def __init__(self, reason: str, pending: Any = None) -> None:
        super().__init__(reason)
        self.pending = pending
        """The call that may still be answered."""


class _EndedError(Exception):
    """The sweep ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    attempt: Attempt
    experiment: Experiment


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """What the machines of a sweep have in common."""

    ray: Any
    session: Session
    timing: Timing
    program: Sequence[str]
    """`testbed run`."""
    like: Description
    """What a machine must be like."""
    incoming: Path
    """Where records arrive."""
    events: "queue.Queue[Event]"
    ended: threading.Event
    """Set when the sweep ends."""


class Machine:
    """A thread that carries one conversation with the machine's slot, job by job."""

    def __init__(self, name: str, node_id: str, shared: Shared) -> None:
        self._name = name
        self._node_id = node_id
        self._ray = shared.ray
        self._session = shared.session
        self._timing = shared.timing
        self._program = shared.program
        self._like = shared.like
        self._incoming = shared.incoming
        self._events = shared.events
        self._ended = shared.ended
        self._actor: Any = None
        self._latest = 0
        """The number of the latest attempt there."""
        self._contact = Contact(shared.timing, time.monotonic())
        self.jobs: queue.Queue[Job | None] = queue.Queue()
        """None ends the thread."""
        self.thread = threading.Thread(target=self._work, name=f"slot {name}", daemon=True)

    def take_back(self) -> Iterator[Job]:
        """Jobs that were handed over and that the thread has not begun."""
        with suppress(queue.Empty):
            while True:
                if (job := self.jobs.get_nowait()) is not None:
                    yield job

    def _work(self) -> None:
        try:
            self._take_hold()
            self._events.put(Ready(machine=self._name))
            while True:
                try:
                    job = self.jobs.get(timeout=self._timing.lease_s / 4)
                except queue.Empty:
                    self._keep()
                    continue
                if job is None:
                    return
                self._make(job)
        except _EndedError:
            return
        except (_LostError, RefusedError, UnfitError, TransferError) as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - a thread that dies silently would be waited for
            reason = f"{type(error).__name__}: {error}"
        self._events.put(Gone(machine=self._name, reason=reason))
        while (job := self.jobs.get()) is not None:  # handed over before the sweep heard of it
            self._events.put(Lost(number=job.attempt.number, reason=reason))

    def _take_hold(self) -> None:
        """Of the machine's slot, with an actor of this session. Raises RefusedError, _LostError."""
        self._remove_earlier()
        self._actor = slot_actor(
            self._ray,
            self._node_id,
            timing=self._timing,
            program=self._program,
            name=self._actor_name,
            namespace=NAMESPACE,
            lifetime="detached",
        )
        self._claim()

    @property
    def _actor_name(self) -> str:
        return f"{RESOURCE} {self._node_id}"

    def _remove_earlier(self) -> None:
        """The actor of a sweep that was killed; one of a sweep that goes on refuses. Raises RefusedError."""
        try:
            earlier = self._ray.get_actor(self._actor_name, namespace=NAMESPACE)
        except ValueError:
            return
        try:
            self._answer(earlier.claim.remote(self._owner, self._session.number), self._start_timeout_s)
            self._answer(earlier.release.remote(self._session.number), self._start_timeout_s)
        except _LostError:
            pass  # it is dead or hangs: its keeper ends its run, and the lock says when
        self._kill(earlier)

    def _kill(self, actor: Any) -> None:
        """And wait until its name is free. Raises _LostError."""
        self._ray.kill(actor, no_restart=True)
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                self._ray.get_actor(self._actor_name, namespace=NAMESPACE)
            except ValueError:
                return
            time.sleep(0.05)
        raise _LostError("the actor of an earlier sweep there cannot be removed")

    @property
    def _owner(self) -> str:
        return f"{self._session.directory.absolute()} ({self._session.identity})"

    @property
    def _start_timeout_s(self) -> float:
        return _START_TIMEOUT_S + self._timing.lease_s + 4 * self._timing.grace_s

    def _claim(self) -> None:
        """Raises RefusedError where it is another sweep's, or the machine is not like this one; _LostError."""
        claim = self._actor.claim.remote(self._owner, self._session.number, self._latest)
        found = self._answer(claim, self._start_timeout_s)
        if unlike := self._like.unlike(found, with_costs=self._session.goes_by_costs):
            raise RefusedError("; ".join(unlike))
        self._contact.heard(time.monotonic())

    def _answer(self, call: Any, patience_s: float) -> Any:
        """Of a call. Raises _LostError, what the slot raised, and _EndedError where the sweep ends meanwhile."""
        errors = self._ray.exceptions
        deadline_s = time.monotonic() + patience_s
        while True:
            if self._ended.is_set():
                raise _EndedError
            try:
                return self._ray.get(call, timeout=min(1.0, max(0.0, deadline_s - time.monotonic())))
            except errors.GetTimeoutError:
                if time.monotonic() >= deadline_s:
                    raise _LostError(f"it has not answered for {patience_s:.0f} s", call) from None
            except errors.RayTaskError as error:
                cause = error.cause
                if isinstance(cause, RefusedError | UnfitError | TransferError):
                    raise cause from None
                raise _LostError(f"its slot failed: {type(cause).__name__}: {cause}") from None
            except errors.RayError as error:
                raise _LostError(f"its slot is gone: {_first_line(error)}") from None

    def _ask(self, method: str, *arguments: Any) -> Any:
        """A call of this session, which prolongs its lease. Raises _LostError when nothing of it runs any more."""
        call = getattr(self._actor, method).remote(self._session.number, *arguments)
        try:
            answer = self._answer(call, self._contact.left_s(time.monotonic()))
        except _LostError:
            self._await_end()
            raise
        self._contact.heard(time.monotonic())
        return answer

    def _await_end(self) -> None:
        """Until nothing that ran there goes on, whatever Ray says of it. Raises _EndedError."""
        if self._ended.wait(self._contact.left_s(time.monotonic())):
            raise _EndedError

    def _keep(self) -> None:
        """The slot, with nothing to do. Raises what means that the machine cannot be used any more."""
        try:
            try:
                self._ask("hold")
            except RefusedError:
                self._claim()  # this process was not run for so long that the lease ended
        except _LostError as lost:
            self._events.put(Gone(machine=self._name, reason=str(lost), may_return=True))
            self._recover(None, lost)
            self._events.put(Ready(machine=self._name))

    def _make(self, job: Job) -> None:
        """A run, and get hold of its record. Raises what means that the machine cannot be used any more."""
        number = self._latest = job.attempt.number
        try:
            self._ask("start", self._request(job))
            event = self._result(job)
        except _LostError as lost:
            self._events.put(Lost(number=number, reason=str(lost)))
            self._events.put(Gone(machine=self._name, reason=str(lost), may_return=True))
            self._recover(number, lost)
        except UnfitError as error:
            self._events.put(Lost(number=number, reason=str(error)))
            raise
        except _EndedError:
            raise
        except (RefusedError, TransferError) as error:
            # The slot answers, but what it ran may be in the grace after its lease: a claim waits for its end.
            try:
                self._claim()
            except Exception:
                self._await_end()
                raise
            finally:
                self._events.put(Lost(number=number, reason=str(error)))
        except Exception as error:
            self._await_end()  # nobody has foreseen it: the machine is left alone, and its run ends with its lease
            self._events.put(Lost(number=number, reason=f"{type(error).__name__}: {error}"))
            raise
        else:
            self._events.put(event)
        self._events.put(Ready(machine=self._name))

    def _request(self, job: Job) -> Request:
        return Request(
            number=job.attempt.number,
            spec=job.experiment.to_yaml(),
            arguments=tuple(self._session.arguments),
            working_directory=str(Path.cwd()),
        )

    def _result(self, job: Job) -> Event:
        """Raises UnfitError where the machine cannot make the run, RefusedError, TransferError, _LostError."""
        number = job.attempt.number
        while (status := self._ask("poll")).exit_code is None:
            if self._ended.wait(self._timing.poll_s):
                raise _EndedError
        said = status.said.splitlines()[-1:] or ["it said nothing"]
        if status.was_ended:
            return Lost(number=number, reason=f"its run was ended (exit code {status.exit_code}: {said[0]})")
        if not status.has_record and status.exit_code in (SpecError.exit_code, MissingRequirementError.exit_code):
            raise UnfitError(f"it cannot make the run: {status.said}")
        if not status.has_record:
            return Lost(number=number, reason=f"its run left no record (exit code {status.exit_code}: {said[0]})")
        name, files = self._ask("files")
        record = self._incoming / str(number) / name
        receive(files, lambda path, offset: self._ask("read", path, offset), record)
        try:
            summary = arrived(record, job.experiment, origin_of_runs(job.experiment))
        except SpecError as error:
            return Lost(number=number, reason=f"what it left is not the record that was requested: {error}")
        return Finished(number=number, summary=summary, is_moved_in=False)

    def _recover(self, number: int | None, lost: _LostError) -> None:
        """Wait for the machine; `number` is that of the attempt that was lost with it. Raises RefusedError, _LostError
        where it cannot be used any more."""
        if lost.pending is not None:
            with suppress(_LostError):  # it died in the end
                try:
                    self._answer(lost.pending, math.inf)
                    said = "the machine answers again"
                except (RefusedError, UnfitError, TransferError) as error:
                    said = str(error)
                if number is not None:
                    self._events.put(Late(number=number, reason=said))
                self._claim()
                return
        if not any(node["NodeID"] == self._node_id and node["Alive"] for node in self._ray.nodes()):
            raise lost
        self._take_hold()

    def release(self) -> Any:
        """End what runs there and let it go: the call that does it, None where there is nothing to let go."""
        if self.thread.ident is not None:
            self.thread.join(self._timing.over_s)
        return None if self._actor is None else self._actor.release.remote(self._session.number)

    def remove(self) -> None:
        """The actor; whatever it still runs ends with it."""
        if self._actor is not None:
            with suppress(Exception):  # it may be gone with its machine
                self._ray.kill(self._actor, no_restart=True)


def slot_actor(ray: Any, node_id: str, *, timing: Timing, program: Sequence[str] = PROGRAM, **options: Any) -> Any:
    """An actor with the slot of that machine; it is there once it has answered."""
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
    return (
        ray.remote(Slot)
        .options(
            num_cpus=0,
            resources={RESOURCE: 1},
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=affinity,
            **options,
        )
        .remote(lease_s=timing.lease_s, grace_s=timing.grace_s, program=program, on_abandoned=end_process)
    )


def arrived(record: Path, experiment: Experiment, here: Origin) -> Summary:
    """The summary of a record that came from another machine. Raises SpecError unless it is one of that experiment,
    made by this code, and of a command by this program, on a machine like this one; UnfitError where the image was
    another one, as it would be of all further runs there."""
    summary, made = load_summary(record / "summary.json"), origin(record)
    if summary.spec_sha256 != experiment.sha256():
        raise SpecError(f"it is of the spec {summary.spec_sha256[:8]} instead of {experiment.sha256()[:8]}")
    if made.image != here.image:
        images = f"{made.image or 'none, or unknown'} instead of {here.image or 'none, or unknown'}"
        raise UnfitError(f"it has another image under the name in runtime.image: {images}")
    if unlike := made.unlike(here):
        raise SpecError(f"it was made otherwise than it would be here: {'; '.join(unlike)}")
    return summary


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
