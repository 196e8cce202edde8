"""How long a process' threads waited for a core: the scheduler's own account, `/proc/<pid>/task/<tid>/schedstat`.

The second number of that file is the time the thread was runnable but not running, in nanoseconds (kernel
documentation, scheduler/sched-stats.rst).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.system.processes import thread_name

_TASKS: Final = Path("/proc/self/task")


def run_queue_delays_s(pid: int | None = None) -> dict[int, float]:
    """Of each thread of the process (None: this one), by its native id, since the thread began; empty when the process
    has ended."""
    try:
        tasks = list((_TASKS if pid is None else Path(f"/proc/{pid}/task")).iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return {}
    delays = {}
    for task in tasks:
        try:
            fields = (task / "schedstat").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended while we looked
        delays[int(task.name)] = int(fields[1]) * 1e-9
    return delays


def waited_s(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Of all threads together, between two such looks; threads that ended in between are left out."""
    return sum(delay_s - before.get(thread, 0.0) for thread, delay_s in after.items())


def threads(*, without: Collection[str] = ()) -> frozenset[int]:
    """Native ids of this process' threads, without those of these names (proc_pid_comm(5))."""
    found = frozenset(int(task.name) for task in _TASKS.iterdir())
    return frozenset(each for each in found if thread_name(each) not in without) if without else found


@dataclass(frozen=True, slots=True)
class RunQueueDelay:
    """Time spent waiting for a core between two looks."""

    total_s: float
    communication_s: float


class RunQueueClock:
    """Differences of the run-queue delay between successive looks."""

    def __init__(self, computing_threads: frozenset[int] | None = None) -> None:
        """All other threads move gradients, those that begin later included: a channel's readers, an event loop, a
        pool of gRPC's. None: none does."""
        self._computing_threads = computing_threads
        self._previous = run_queue_delays_s()

    def lap(self) -> RunQueueDelay:
        """Since the previous lap (or construction). Threads that ended in between are left out."""
        now = run_queue_delays_s()
        laps = {thread: delay - self._previous.get(thread, 0.0) for thread, delay in now.items()}
        self._previous = now
        computing = laps.keys() if self._computing_threads is None else self._computing_threads
        communication_s = sum(delay for thread, delay in laps.items() if thread not in computing)
        return RunQueueDelay(sum(laps.values()), communication_s)
