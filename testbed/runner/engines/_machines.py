"""Ray at work: a connection, an actor on each machine, and a thread here for each that talks to it.

A machine that does not answer is called lost only when no run of it can go on there any more (_lease), whatever Ray
says of it: an actor that died has left a run behind that its keeper is ending.
"""

import logging
import math
import os
import queue
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from testbed.errors import MissingRequirementError, RunFailedError, SpecError
from testbed.experiment.experiment import Experiment
from testbed.record.reader import load_summary
from testbed.record.summary import Summary
from testbed.runner.engines._lease import Contact, RefusedError, Timing, UnfitError
from testbed.runner.engines._slot import PROGRAM, Description, Request, Slot, describe_here
from testbed.runner.engines._transfer import TransferError, receive
from testbed.runner.engines.base import (
    Abandoned,
    Attempt,
    Event,
    Finished,
    Gone,
    Late,
    Lost,
    Ready,
    Session,
)
from testbed.store.documents import Origin, origin, origin_here
from testbed.system.interruptions import SIGNALS

RESOURCE: Final = "emulation_slot"
NAMESPACE: Final = "testbed"
FIX: Final = "pip install 'ina-testbed[ray]'"
_START_TIMEOUT_S: Final = 120.0
"""For an actor's process, which imports this package, and for what it examines before it first answers."""
_CONNECT_TIMEOUT_S: Final = 10.0
_RETURN_S: Final = 120.0
"""Where no machine is left, for one that may return."""
_INCOMING: Final = "incoming"


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The module `ray`, connected to a cluster. Raises MissingRequirementError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise MissingRequirementError(f"the engine ray needs the package ray: {FIX}") from error
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        _require_listener(address)
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise MissingRequirementError(
            f"no Ray cluster to connect to ({reason}); start one with: ray start --head --resources "
            f"'{{\"{RESOURCE}\": 1}}' and on each further machine ray start --address HEAD:6379 --resources "
            f"'{{\"{RESOURCE}\": 1}}', or name it: --engine '{{kind: ray, address: HEAD:6379}}'"
        ) from error
    finally:
        for number, handler in handlers.items():  # Ray has put its own in their place
            signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def _require_listener(address: str) -> None:
    """Where an address names a port: Ray itself tries for minutes. Raises OSError, ValueError."""
    if "://" in address:
        raise ValueError(f"{address} is for Ray's client; start the sweep on a machine of the cluster")
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()


class _LostError(Exception):
    """A machine did not answer, or what answered died; nothing that ran there goes on."""

    def __init__(self, reason: str, pending: Any = None) -> None:
        super().__init__(reason)
        self.pending = pending
        """The call that may still be answered."""


class _EndedError(Exception):
    """The sweep ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    attempt: Attempt
    experiment: Experiment


class Machines:
    """The executor: a thread for each machine, which carries one conversation with its slot."""

    def __init__(
        self, ray: Any, session: Session, *, timing: Timing | None = None, program: Sequence[str] = PROGRAM
    ) -> None:
        self._ray = ray
        self._session = session
        self._timing = timing or Timing()
        self._events: queue.Queue[Event] = queue.Queue()
        self._ended = threading.Event()
        incoming = session.directory / _INCOMING
        shutil.rmtree(incoming, ignore_errors=True)
        here = describe_here()
        self._machines: dict[str, _Machine] = {}
        for node in ray.nodes():
            if node["Alive"] and node["Resources"].get(RESOURCE, 0) >= 1:
                name = str(node["NodeManagerAddress"])
                if name in self._machines:
                    name = f"{name} {node['NodeID'][:8]}"
                self._machines[name] = _Machine(
                    ray,
                    name=name,
                    node_id=node["NodeID"],
                    session=session,
                    timing=self._timing,
                    program=program,
                    like=here,
                    events=self._events,
                    ended=self._ended,
                    incoming=incoming,
                )
        self._gone: dict[str, Gone] = {}
        self._were_ready = False

    def __enter__(self) -> Self:
        """Start asking every machine; returns when all have answered and no abandoned attempt runs any more."""
        try:
            for machine in self._machines.values():
                machine.thread.start()
            early: list[Event] = []
            while len(early) < len(self._machines):
                early.append(self._events.get())
            for event in early:
                self._events.put(event)
            ready = {event.machine for event in early if isinstance(event, Ready)}
            self._await_end([each for each in self._session.abandoned if each.machine not in ready])
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def start(self, attempt: Attempt, experiment: Experiment) -> None:
        """Hand it to its machine's thread."""
        self._machines[attempt.machine].jobs.put(_Job(attempt=attempt, experiment=experiment))

    def next_event(self) -> Event:
        """Of any machine."""
        patience_s = None
        if len(self._gone) == len(self._machines):
            patience_s = _RETURN_S if any(gone.may_return for gone in self._gone.values()) else 0.0
        try:
            event = self._events.get(timeout=patience_s) if patience_s != 0 else self._events.get_nowait()
        except queue.Empty:
            raise self._nobody() from None
        if isinstance(event, Gone):
            self._gone[event.machine] = event
        elif isinstance(event, Ready):
            self._gone.pop(event.machine, None)
            self._were_ready = True
        return event

    def _nobody(self) -> MissingRequirementError | RunFailedError:
        reasons = "".join(f"\n  {gone.machine}: {gone.reason}" for gone in self._gone.values())
        if self._were_ready:
            return RunFailedError(f"no machine is left; the same command runs what is missing:{reasons}")
        if not reasons:
            reasons = f"\n  none offers {RESOURCE}: ray start --resources '{{\"{RESOURCE}\": 1}}' ..."
        return MissingRequirementError(
            f"no machine of the Ray cluster can be used; start the sweep on one like those that are to run it:{reasons}"
        )

    def _await_end(self, abandoned: Sequence[Abandoned]) -> None:
        patience_s = max((each.over_s for each in abandoned), default=0.0)
        if patience_s:
            names = ", ".join(sorted({each.machine for each in abandoned}))
            self._session.console.print(
                f"waiting {patience_s:g} s for runs of this sweep, which was killed, on {names}: nobody answers there"
            )
            time.sleep(patience_s)

    def _close(self) -> None:
        self._ended.set()
        for machine in self._machines.values():
            machine.jobs.put(None)
        releases = [call for machine in self._machines.values() if (call := machine.release()) is not None]
        if releases:
            self._ray.wait(releases, num_returns=len(releases), timeout=2 * self._timing.grace_s + 10)
        for machine in self._machines.values():
            machine.remove()
        shutil.rmtree(self._session.directory / _INCOMING, ignore_errors=True)


class _Machine:
    """One machine, as its thread sees it."""

    def __init__(
        self,
        ray: Any,
        *,
        name: str,
        node_id: str,
        session: Session,
        timing: Timing,
        program: Sequence[str],
        like: Description,
        events: "queue.Queue[Event]",
        ended: threading.Event,
        incoming: Path,
    ) -> None:
        self._ray = ray
        self._name = name
        self._node_id = node_id
        self._session = session
        self._timing = timing
        self._program = program
        self._like = like
        self._events = events
        self._ended = ended
        self._incoming = incoming
        self._actor: Any = None
        self._latest = 0
        """The number of the latest attempt there."""
        self._contact = Contact(timing, time.monotonic())
        self.jobs: queue.Queue[_Job | None] = queue.Queue()
        self.thread = threading.Thread(target=self._work, name=f"slot {name}", daemon=True)

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
        affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(self._node_id, soft=False)
        self._actor = (
            self._ray.remote(Slot)
            .options(
                name=self._actor_name,
                namespace=NAMESPACE,
                lifetime="detached",
                num_cpus=0,
                resources={RESOURCE: 1},
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=affinity,
            )
            .remote(lease_s=self._timing.lease_s, grace_s=self._timing.grace_s, program=self._program)
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
        return str(self._session.directory.absolute())

    @property
    def _start_timeout_s(self) -> float:
        return _START_TIMEOUT_S + self._timing.lease_s + 4 * self._timing.grace_s

    def _claim(self) -> None:
        """Raises RefusedError where it is another sweep's, or the machine is not like this one; _LostError."""
        claim = self._actor.claim.remote(self._owner, self._session.number, self._latest)
        found = self._answer(claim, self._start_timeout_s)
        if unlike := self._like.unlike(found):
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
            self._ask("hold")
        except RefusedError:
            self._claim()  # this process was not run for so long that the lease ended
        except _LostError as lost:
            self._events.put(Gone(machine=self._name, reason=str(lost), may_return=True))
            self._recover(None, lost)
            self._events.put(Ready(machine=self._name))

    def _make(self, job: _Job) -> None:
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
        except (RefusedError, TransferError) as error:
            # The slot answers, but what it ran may be in the grace after its lease: a claim waits for its end.
            try:
                self._claim()
            except (_LostError, RefusedError):
                self._await_end()
                raise
            finally:
                self._events.put(Lost(number=number, reason=str(error)))
        else:
            self._events.put(event)
        self._events.put(Ready(machine=self._name))

    def _request(self, job: _Job) -> Request:
        return Request(
            number=job.attempt.number,
            spec=job.experiment.to_yaml(),
            arguments=tuple(self._session.arguments),
            working_directory=str(Path.cwd()),
        )

    def _result(self, job: _Job) -> Event:
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
            summary = arrived(record, job.experiment, origin_here())
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


def arrived(record: Path, experiment: Experiment, here: Origin) -> Summary:
    """The summary of a record that came from another machine. Raises SpecError unless it is one of that experiment,
    made by this code on a machine like this one."""
    summary, made = load_summary(record / "summary.json"), origin(record)
    if summary.spec_sha256 != experiment.sha256():
        raise SpecError(f"it is of the spec {summary.spec_sha256[:8]} instead of {experiment.sha256()[:8]}")
    if (made.machine, made.code) != (here.machine, here.code):
        raise SpecError(f"it was made by another code or machine ({made.machine})")
    return summary.model_copy(update={"record": str(record)})


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
