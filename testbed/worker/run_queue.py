"""How long this process' threads waited for a core: the scheduler's own account,
`/proc/<pid>/task/<tid>/schedstat`.

The second number of that file is the time the thread was runnable but not running, in nanoseconds (kernel
documentation, scheduler/sched-stats.rst).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TASKS: Final = Path("/proc/self/task")


def run_queue_delays_s() -> dict[int, float]:
    """Of each thread of this process, by its native id, since the thread began."""
    delays = {}
    for task in _TASKS.iterdir():
        try:
            fields = (task / "schedstat").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended while we looked
        delays[int(task.name)] = int(fields[1]) * 1e-9
    return delays


def threads_named(part: str) -> frozenset[int]:
    """Native ids of this process' threads whose name contains `part`."""
    found = set()
    for task in _TASKS.iterdir():
        try:
            if part in (task / "comm").read_text():
                found.add(int(task.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class RunQueueDelay:
    """Time spent waiting for a core between two looks."""

    total_s: float
    communication_s: float


class RunQueueClock:
    """Differences of the run-queue delay between successive looks."""

    def __init__(self, communication_threads: frozenset[int]) -> None:
        self._communication_threads = communication_threads
        self._previous = run_queue_delays_s()

    def lap(self) -> RunQueueDelay:
        """Since the previous lap (or construction). Threads that ended in between are left out."""
        now = run_queue_delays_s()
        laps = {thread: delay - self._previous.get(thread, 0.0) for thread, delay in now.items()}
        self._previous = now
        communication_s = sum(laps.get(thread, 0.0) for thread in self._communication_threads)
        return RunQueueDelay(sum(laps.values()), communication_s)
