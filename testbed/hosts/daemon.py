"""A program of ours that serves a host until the run ends: started, waited for, watched, and sent changes."""

import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, Queue
from typing import Final

from testbed.errors import MissingRequirementError, RunFailedError
from testbed.hosts.base import Host, Process, ProcessSpec
from testbed.hosts.spawn import log_tail

_READY_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02


class Daemon:
    """It says "ready" on its standard output, and ends with the host's processes. Callable from any thread."""

    def __init__(
        self,
        host: Host,
        name: str,
        program: Path,
        arguments: Sequence[str],
        *,
        title: str,
        consequence: str,
        listens: bool = False,
        privileged: bool = True,
    ) -> None:
        """Returns when it is ready. Raises MissingRequirementError with what it said.

        `title` is what errors call it, `consequence` what its end means; one that `listens` can be sent changes. One
        that is not `privileged` runs in what the host's workers run in.
        """
        self._title = title
        self._consequence = consequence
        self._ready = threading.Event()
        self._answers: Queue[str] = Queue()
        self._num_owed = 0
        """Answers to changes so far that have not come: one that is late must not pass for the next one's."""
        self._changing = threading.Lock()
        spec = ProcessSpec(
            name=name, argv=(str(program),), arguments=tuple(arguments), listens=listens, privileged=privileged
        )
        self._process: Process = host.start(spec, on_output=self._on_output)
        self._wait_ready()

    def _on_output(self, line: str) -> None:
        if line.split(maxsplit=1)[:1] == ["ready"]:
            self._ready.set()
        elif line.startswith(("changed ", "refused ")):
            self._answers.put(line)

    def _wait_ready(self) -> None:
        waited_s = 0.0
        while not self._ready.wait(_POLL_S):
            waited_s += _POLL_S
            status = self._process.wait(0.0)
            if status is None and waited_s < _READY_TIMEOUT_S:
                continue
            state = "is not ready in time" if status is None else f"ended with status {status}"
            raise MissingRequirementError(f"{self._title} {state}: {log_tail(self._process.log_path)}")

    @property
    def name(self) -> str:
        """Of its process, unique within the run."""
        return self._process.name

    @property
    def pid(self) -> int:
        """Of its process, in the root pid namespace."""
        return self._process.pid

    def change(self, argument: str) -> None:
        """Replace the parameters of what the argument names before its first colon; returns when they are in force.

        Raises RunFailedError when the daemon refuses them or does not answer.
        """
        with self._changing:
            self._process.tell(argument)
            self._num_owed += 1
            answer = ""
            try:
                while self._num_owed:
                    answer = self._answers.get(timeout=_READY_TIMEOUT_S)
                    self._num_owed -= 1
            except Empty:
                self.check()
                answer = f"nothing within {_READY_TIMEOUT_S:g} s"
            if answer != f"changed {argument.partition(':')[0]}":
                raise RunFailedError(f"{self._title} answers {argument} with: {answer}")

    def check(self) -> None:
        """Raise RunFailedError if it has ended."""
        status = self._process.poll()
        if status is not None:
            reason = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            tail = log_tail(self._process.log_path)
            raise RunFailedError(
                f"{self._title} {reason}: {self._consequence}"
                + (f"\nthe end of {self._process.log_path.name}:\n{tail}" if tail else "")
            )
