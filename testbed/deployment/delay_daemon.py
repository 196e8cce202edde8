"""A program that serves delay stages, while a run goes on: started, watched, read, changed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.experiment.delay_backends.base import DelayCounters, DelayProgram, ProgramReport
from testbed.experiment.delay_backends.nfqueue import parse_queues
from testbed.hosts.base import Host
from testbed.hosts.daemon import Daemon
from testbed.system.native.build import program


class DelayDaemon(Daemon):
    """Ready when every queue, or every device, is there. A change lets packets that wait keep their time."""

    def __init__(
        self, host: Host, delay_program: DelayProgram, arguments: Sequence[str], *, counters_path: Path
    ) -> None:
        """Raises MissingRequirementError with what the program said."""
        self._host = host
        self._program = delay_program
        self._counters_path = counters_path
        of_run = delay_program.serves == "run"
        super().__init__(
            host,
            "relay" if of_run else f"delay-{host.name}",
            program(delay_program.name),
            (str(counters_path), *arguments),
            title="the relay of the links" if of_run else f"the delay daemon of {host.name}",
            consequence=delay_program.consequence,
            listens=True,
        )

    def restart_draws(self) -> None:
        """Every direction draws anew from its seed. Raises RunFailedError when the program does not answer."""
        self.change("restart")

    def queues(self) -> dict[int, dict[str, int]]:
        """The node's netfilter queues as the kernel knows them."""
        return queues_of(self._host)

    def reports(self) -> Mapping[int, ProgramReport]:
        """What it says of each stage that it serves, by the stage's index."""
        return self._program.reports(self._counters_path.read_bytes(), self.queues())

    def parameters(self) -> dict[int, Any]:
        """The parameters in force, by the stages' index."""
        return {index: report.parameters for index, report in self.reports().items()}

    def counters(self) -> dict[int, DelayCounters]:
        """The counters of the delay lines, by the stages' index."""
        return {index: report.delay for index, report in self.reports().items()}


def queues_of(host: Host) -> dict[int, dict[str, int]]:
    """The netfilter queues of the host's network namespace that somebody serves."""
    path = Path(f"/proc/{host.pid}/net/netfilter/nfnetlink_queue")
    return parse_queues(path.read_text()) if path.exists() else {}
