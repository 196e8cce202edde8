"""Runs on this machine, one after another, by the sweep's own process."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from testbed.experiment.experiment import Experiment
from testbed.runner.engines.base import ENGINES, Attempt, Engine, Event, Executor, Finished, Ready, Session

if TYPE_CHECKING:
    from testbed.hosts.machines import Launch
    from testbed.record.summary import Summary
    from testbed.system.run_state import RunState


@ENGINES.register
class Local(Engine):
    """On this machine, one after another."""

    runs_here: ClassVar[bool] = True

    @contextmanager
    def open(self, session: Session) -> Iterator[Executor]:
        """Nothing is to be had hold of; what another engine's sweep has left on other machines is waited for."""
        if patience_s := max((each.over_s for each in session.abandoned), default=0.0):
            session.console.print(
                f"waiting {patience_s:g} s: a run of this sweep, which was killed, may go on on another machine"
            )
            time.sleep(patience_s)
        yield _Here(session.run)

    @contextmanager
    def placing(self, state: "RunState", log_directory: Path) -> "Iterator[Launch]":
        """In the network namespaces of this machine that are to be the others."""
        from testbed.hosts.machines import spawned_in_namespaces

        yield spawned_in_namespaces(state, log_directory)


class _Here:
    def __init__(self, run: "Callable[[Experiment], Summary]") -> None:
        self._run = run
        self._events: deque[Event] = deque([Ready(machine="")])

    def start(self, attempt: Attempt, experiment: Experiment) -> None:
        """The whole run."""
        from testbed.runner.run import RunStoppedError

        try:
            summary = self._run(experiment)
        except RunStoppedError as stopped:
            summary = stopped.summary_unless_interrupted()
        self._events += [Finished(number=attempt.number, summary=summary, is_moved_in=True), Ready(machine="")]

    def next_event(self) -> Event:
        """Of the run that has been made."""
        return self._events.popleft()
