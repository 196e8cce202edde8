"""Ray at work: an actor on each machine, and a thread here for each that talks to it (_machine)."""

import queue
import shutil
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Self

from testbed.errors import MissingRequirementError, RunFailedError
from testbed.experiment.experiment import Experiment
from testbed.runner.engines._cluster import RESOURCE
from testbed.runner.engines._lease import Timing
from testbed.runner.engines._machine import Job, Machine, Shared
from testbed.runner.engines._slot import PROGRAM, describe_here
from testbed.runner.engines.base import Abandoned, Attempt, Event, Gone, Lost, Ready, Session

_RETURN_S: Final = 120.0
"""Where no machine is left, for one that may return."""
_INCOMING: Final = "incoming"


class Machines:
    """The executor: a thread for each machine, which carries one conversation with its slot."""

    def __init__(
        self, ray: Any, session: Session, *, timing: Timing | None = None, program: Sequence[str] = PROGRAM
    ) -> None:
        self._ray = ray
        self._session = session
        self._timing = timing or Timing()
        self._events: queue.Queue[Event] = queue.Queue()
        self._early: deque[Event] = deque()
        """Those that came while machines were claimed; in their order before those of the queue."""
        self._ended = threading.Event()
        incoming = session.directory / _INCOMING
        shutil.rmtree(incoming, ignore_errors=True)
        shared = Shared(
            ray=ray,
            session=session,
            timing=self._timing,
            program=program,
            like=describe_here(),
            incoming=incoming,
            events=self._events,
            ended=self._ended,
        )
        self._machines: dict[str, Machine] = {}
        for node in ray.nodes():
            if node["Alive"] and node["Resources"].get(RESOURCE, 0) >= 1:
                name = str(node["NodeManagerAddress"])
                if name in self._machines:
                    name = f"{name} {node['NodeID'][:8]}"
                self._machines[name] = Machine(name, node["NodeID"], shared)
        self._gone: dict[str, Gone] = {}
        self._were_ready = False

    def __enter__(self) -> Self:
        """Start asking every machine; returns when all have answered and no abandoned attempt runs any more."""
        try:
            for machine in self._machines.values():
                machine.thread.start()
            answered: set[str] = set()
            while len(answered) < len(self._machines):
                self._early.append(event := self._events.get())
                answered |= {event.machine} if isinstance(event, Ready | Gone) else set()
            ready = {event.machine for event in self._early if isinstance(event, Ready)}
            self._await_end([each for each in self._session.abandoned if each.machine not in ready])
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def start(self, attempt: Attempt, experiment: Experiment) -> None:
        """Hand it to its machine's thread."""
        self._machines[attempt.machine].jobs.put(Job(attempt=attempt, experiment=experiment))

    def next_event(self) -> Event:
        """Of any machine."""
        event = self._early.popleft() if self._early else self._next()
        if isinstance(event, Gone):
            self._gone[event.machine] = event
            # It was handed over before anybody heard of this: whether the machine returns, and when, is not known.
            for job in self._machines[event.machine].take_back():
                self._events.put(Lost(number=job.attempt.number, reason=f"not begun: {event.reason}"))
        elif isinstance(event, Ready):
            self._gone.pop(event.machine, None)
            self._were_ready = True
        return event

    def _next(self) -> Event:
        patience_s = None
        if len(self._gone) == len(self._machines):
            patience_s = _RETURN_S if any(gone.may_return for gone in self._gone.values()) else 0.0
        try:
            return self._events.get(timeout=patience_s) if patience_s != 0 else self._events.get_nowait()
        except queue.Empty:
            raise self._nobody() from None

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
