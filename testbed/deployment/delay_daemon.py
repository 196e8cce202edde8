"""The delay daemon of one node, while a run goes on: started, watched, read, changed."""

from pathlib import Path

from testbed.experiment.delay_backends.nfqueue import (
    DelayCounters,
    DelayParameters,
    parse_counters,
    parse_parameters,
    parse_queues,
)
from testbed.hosts.base import Host
from testbed.hosts.daemon import Daemon
from testbed.system.native.build import program


class DelayDaemon(Daemon):
    """A running delay_nfqueue; ready when every queue is bound. A change lets packets that wait keep their time."""

    def __init__(self, host: Host, arguments: tuple[str, ...], *, counters_path: Path) -> None:
        """Raises EnvironmentLacksError with what the daemon said."""
        self._host = host
        self._counters_path = counters_path
        super().__init__(
            host,
            f"delay-{host.name}",
            program("delay_nfqueue"),
            (str(counters_path), *arguments),
            title=f"the delay daemon of {host.name}",
            consequence="packets on its links were lost, so the run ends",
            listens=True,
        )

    def restart_draws(self) -> None:
        """Every queue draws anew from its seed. Raises RunFailedError when the program does not answer."""
        self.change("restart")

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
