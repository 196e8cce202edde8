"""The relay of all links of a run, while it goes on: started, watched, read, changed."""

from pathlib import Path

from testbed.experiment.delay_backends.tap import RelayCounters, parse_counters
from testbed.hosts.base import Host
from testbed.hosts.daemon import Daemon
from testbed.system.native.build import program


class LinkRelay(Daemon):
    """A running relay_tap; ready when every TAP device is there. A change lets packets under way keep their time."""

    def __init__(self, host: Host, arguments: tuple[str, ...], *, counters_path: Path) -> None:
        """Raises EnvironmentLacksError with what the relay said."""
        self._counters_path = counters_path
        super().__init__(
            host,
            "relay",
            program("relay_tap"),
            (str(counters_path), *arguments),
            title="the relay of the links",
            consequence="its links are gone, so the run ends",
            listens=True,
        )

    def restart_draws(self) -> None:
        """Every direction draws anew from its seed. Raises RunFailedError when the program does not answer."""
        self.change("restart")

    def counters(self) -> dict[int, RelayCounters]:
        """By index of the direction."""
        return parse_counters(self._counters_path.read_bytes())
