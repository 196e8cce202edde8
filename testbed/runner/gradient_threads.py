"""Threads that move gradients run before those that compute, as on machines where each has a core of its own.

All workers of a synchronous job wake at the same moments, and each of their threads that only hands a message on would
stand in line behind somebody's forward pass. In SCHED_RR of sched(7) it does not; such threads sleep while they wait
for the network, and share the cores in turns where several have work. What computing loses by it is computing's, and
a pace's overruns say how much.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from testbed.measure.run_queue_trace import root_threads, threads_of

GRADIENT_PRIORITY: Final = 1
"""Of SCHED_RR; below the 5 of what measures links and the 10 of the programs that delay packets."""


class GradientThreads:
    """Of one run's workers, servers and aggregators. Any thread may call."""

    def __init__(
        self,
        workers: Callable[[], Mapping[str, int]],
        servers: Callable[[], Mapping[str, int]],
        *,
        limited: Collection[str] = (),
    ) -> None:
        """Pids in the root namespace, by host, now. A CPU quota does not hold real-time threads (sched(7)): hosts that
        are `limited` by one keep ordinary ones."""
        self._workers = workers
        self._servers = servers
        self._limited = frozenset(limited)
        self._computing: dict[str, frozenset[int]] = {}
        self.refused: str | None = None
        """Why they have no priority, on a machine that gives them none; None: they have, or nobody requested it."""

    def computes(self, host: str, threads: Iterable[int]) -> None:
        """These of a worker's threads, by their ids in its own pid namespace, compute; all others move gradients."""
        self._computing[host] = root_threads(self._workers()[host], threads)

    def prioritise(self) -> None:
        """Those that there are now; what they start inherits it. Nothing before a worker has said which compute."""
        if not self._computing:
            return
        workers = {host: pid for host, pid in self._workers().items() if host in self._computing}
        try:
            for host, pid in ({**self._servers(), **workers}).items():
                if host not in self._limited:
                    for thread in threads_of(pid) - self._computing.get(host, frozenset()):
                        _prioritise(thread)
        except PermissionError as error:
            self.refused = str(error)


def _prioritise(thread: int) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(GRADIENT_PRIORITY))
