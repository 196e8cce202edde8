"""The delay daemon of one node, while a run goes on: started, watched, read."""

import threading
from pathlib import Path
from queue import Empty, Queue
from typing import Final

from testbed.errors import EnvironmentLacksError, RunFailedError
from testbed.hosts.base import Host, Process, ProcessSpec
from testbed.hosts.spawn import log_tail
from testbed.links.native.build import program
from testbed.links.nfqueue import DelayCounters, DelayParameters, parse_counters, parse_parameters, parse_queues

_READY_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02


class DelayDaemon:
    """A running delay_nfqueue; it ends with the host's processes. Callable from any thread."""

    def __init__(self, host: Host, arguments: tuple[str, ...], *, counters_path: Path) -> None:
        """Returns when every queue is bound. Raises EnvironmentLacksError with what the daemon said."""
        self._host = host
        self._counters_path = counters_path
        self._ready = threading.Event()
        self._answers: Queue[str] = Queue()
        self._changing = threading.Lock()
        self._process: Process = host.start(
            ProcessSpec(
                name=f"delay-{host.name}",
                argv=(str(program("delay_nfqueue")), str(counters_path)),
                arguments=arguments,
                listens=True,
            ),
            on_output=self._on_output,
        )
        self._wait_ready()

    def _on_output(self, line: str) -> None:
        if line.startswith("ready "):
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
            raise EnvironmentLacksError(
                f"the delay daemon of {self._host.name} {state}: {log_tail(self._process.log_path)}"
            )

    def change(self, argument: str) -> None:
        """Replace one queue's parameters; returns when they are in force. Packets that wait keep their time.

        Raises RunFailedError when the daemon refuses them or does not answer.
        """
        with self._changing:
            self._process.tell(argument)
            try:
                answer = self._answers.get(timeout=_READY_TIMEOUT_S)
            except Empty:
                self.check()
                answer = f"nothing within {_READY_TIMEOUT_S:g} s"
            if answer != f"changed {argument.partition(':')[0]}":
                raise RunFailedError(f"the delay daemon of {self._host.name}, told {argument}, answers: {answer}")

    def check(self) -> None:
        """Raise RunFailedError if it has ended: its links then carry nothing any more."""
        status = self._process.poll()
        if status is not None:
            reason = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            tail = log_tail(self._process.log_path)
            raise RunFailedError(
                f"the delay daemon of {self._host.name} {reason}: packets on its links were lost, so the run ends"
                + (f"\nthe end of {self._process.log_path.name}:\n{tail}" if tail else "")
            )

    def queues(self) -> dict[int, dict[str, int]]:
        """The node's queues as the kernel knows them."""
        return queues_of(self._host)

    def parameters(self) -> dict[int, DelayParameters]:
        """In force, by queue."""
        return parse_parameters(self._counters_path.read_bytes())

    def counters(self) -> dict[int, DelayCounters]:
        """By queue."""
        return parse_counters(self._counters_path.read_bytes(), self.queues())


def queues_of(host: Host) -> dict[int, dict[str, int]]:
    """The netfilter queues of the host's network namespace that somebody serves."""
    path = Path(f"/proc/{host.pid}/net/netfilter/nfnetlink_queue")
    return parse_queues(path.read_text()) if path.exists() else {}
