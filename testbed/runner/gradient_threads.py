"""Threads that move gradients run before those that compute, as on machines where each has a core of its own.

All workers of a synchronous job wake at the same moments, and each of their threads that only hands a message on would
stand in line behind somebody's forward pass. In SCHED_RR of sched(7) it does not; such threads sleep while they wait
for the network, and share the cores in turns where several have work. What computing loses by it is computing's, and
a pace's overruns say how much.

Threads of the storage node run before them, too, as they would on a machine of their own. They move no gradients and
are not counted.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from testbed.experiment.storage.base import STORAGE_NODE
from testbed.measure.observations import GradientThreadsNow
from testbed.measure.run_queue_trace import ran_s, threads_of
from testbed.system.processes import thread_name

GRADIENT_PRIORITY: Final = 1
"""Of SCHED_RR; below the 5 of what measures links and the 10 of the programs that delay packets."""
LEAST_RUN_S: Final = 0.001
"""On a core, of a thread that has moved anything; the control plane's may start others that do next to nothing."""
_NAMES: Final = {
    os.SCHED_OTHER: "SCHED_OTHER",
    os.SCHED_FIFO: "SCHED_FIFO",
    os.SCHED_RR: "SCHED_RR",
    os.SCHED_BATCH: "SCHED_BATCH",
    os.SCHED_IDLE: "SCHED_IDLE",
}


class GradientThreads:
    """Of one run's workers, servers (the storage node, too) and aggregators. Any thread may call."""

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
        """These of a worker's threads compute, by their ids in the root namespace; all others move gradients."""
        self._computing[host] = frozenset(threads)

    def prioritise(self) -> None:
        """Those that there are now; what they start inherits it. Nothing before a worker has said which compute."""
        seen: set[int] = set()
        try:
            # One that was started while they were listed may have inherited what its starter no longer has.
            while new := [thread for _, thread in self._threads() if thread not in seen]:
                seen.update(new)
                for thread in new:
                    with suppress(ProcessLookupError):  # it has ended meanwhile
                        os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(GRADIENT_PRIORITY))
        except PermissionError as error:
            self.refused = str(error)

    def read_back(self) -> GradientThreadsNow | None:
        """How the kernel runs those that there are now; None where nobody has requested anything of it, or the machine
        gives no priority."""
        if self.refused is not None or not self._computing:
            return None
        found = [(host, thread, _policy(thread)) for host, thread in self._threads()]
        first = [policy == _REQUESTED for host, _, policy in found if host != STORAGE_NODE]
        ordinary = [
            f"{host}: {thread_name(thread)} (thread {thread}) is in {_title(policy)}"
            for host, thread, policy in found
            if policy is not None and policy != _REQUESTED and ran_s(thread) >= LEAST_RUN_S
        ]
        return GradientThreadsNow(num_first=sum(first), ordinary=ordinary)

    def _threads(self) -> Iterator[tuple[str, int]]:
        """Those that move gradients, with their hosts."""
        if not self._computing:
            return
        workers = {host: pid for host, pid in self._workers().items() if host in self._computing}
        for host, pid in ({**self._servers(), **workers}).items():
            if host not in self._limited:
                for thread in sorted(threads_of(pid) - self._computing.get(host, frozenset())):
                    yield host, thread


class _Policy(NamedTuple):
    policy: int
    priority: int


_REQUESTED: Final = _Policy(os.SCHED_RR, GRADIENT_PRIORITY)


def _policy(thread: int) -> _Policy | None:
    """None when it has ended."""
    try:
        return _Policy(os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority)
    except ProcessLookupError:
        return None


def _title(policy: _Policy) -> str:
    name = _NAMES.get(policy.policy, f"policy {policy.policy}")
    return f"{name} at {policy.priority}" if policy.priority else name
