"""Whether a worker's bytes move, seen from outside: an iteration may last longer than a worker may be silent."""

from pathlib import Path
from typing import Final

_LOOK_INTERVAL_S: Final = 0.5
_MOVED_BYTES: Final = 65_536
"""Fewer may be probes of neighbours, acknowledgements and whatever else a worker that hangs still answers; the slowest
link that a spec may ask for carries so many in half a second."""
_RECEIVED_FIELD: Final = 0
_SENT_FIELD: Final = 8
"""Of a line of /proc/net/dev, see proc_pid_net(5), after the interface's name."""


class TrafficWatch:
    """The interface of one worker, in the network namespace of its process. Moments are of CLOCK_MONOTONIC."""

    def __init__(self, pid: int, interface: str, now_s: float) -> None:
        self._path = Path(f"/proc/{pid}/net/dev")
        self._interface = interface
        self.sent_s = now_s
        """When it had last sent a noticeable number of bytes, or was first looked at."""
        self.received_s = now_s
        """When it had last received so many."""
        self._received_bytes, self._sent_bytes = self._bytes()
        self._due_s = now_s + _LOOK_INTERVAL_S

    @property
    def moved_s(self) -> float:
        """When bytes last moved in either direction."""
        return max(self.sent_s, self.received_s)

    def look(self, now_s: float) -> None:
        """At most twice a second, however often it is called."""
        if now_s < self._due_s:
            return
        self._due_s = now_s + _LOOK_INTERVAL_S
        received_bytes, sent_bytes = self._bytes()
        if received_bytes - self._received_bytes >= _MOVED_BYTES:
            self._received_bytes, self.received_s = received_bytes, now_s
        if sent_bytes - self._sent_bytes >= _MOVED_BYTES:
            self._sent_bytes, self.sent_s = sent_bytes, now_s

    def _bytes(self) -> tuple[int, int]:
        """Received and sent; zeros where the process or the interface is not there any more."""
        try:
            lines = self._path.read_text().splitlines()
        except (OSError, ValueError):
            return 0, 0
        for line in lines:
            name, _, counters = line.strip().partition(":")
            if name == self._interface:
                fields = counters.split()
                return int(fields[_RECEIVED_FIELD]), int(fields[_SENT_FIELD])
        return 0, 0
