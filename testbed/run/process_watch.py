"""What others do to a worker's process while it works: stop it, put it under a CPU quota, end it for want of memory.

Nobody tells the one whose process it is, so it is looked at about ten times a second: its state in /proc/<pid>/stat
(proc_pid_stat(5)), the CPU quotas of its control groups, and how often the kernel has run out of memory.
"""

import math
from pathlib import Path
from typing import Final

from testbed.hosts.cgroups import (
    Controller,
    available_controllers,
    group_of,
    num_out_of_memory,
    quota_cores,
)

_STOPPED: Final = frozenset("Tt")
"""By a signal, and by a debugger."""
_QUOTA_INTERVAL_S: Final = 1.0
"""Between two looks at control groups, which are several files."""
_QUOTA_CHANGE: Final = 0.001
"""Relative: quotas are whole microseconds."""


class ProcessWatch:
    """One process. What has been noticed is said once, when it is over."""

    def __init__(self, name: str, pid: int, now_s: float, *, requested_cores: float | None = None) -> None:
        """`name` as people read it: `w1`. `requested_cores`: the quota that the spec gives it, which holds it from its
        beginning on."""
        self._name = name
        self._requested_cores: Final = math.inf if requested_cores is None else requested_cores
        self._pid = pid
        controllers = available_controllers()
        self._cpu = controllers["cpu"]
        self._memory = controllers["memory"]
        self._cores_now = self._cores()
        self._memory_group = group_of(self._memory, pid) if self._memory else None
        self._num_kills = self._kills()
        self._machine_kills = _machine_kills()
        self._quota_due_s = now_s + _QUOTA_INTERVAL_S
        self._stopped_since_s: float | None = None

    def look(self, now_s: float) -> list[str]:
        """What has been done to it, one phrase each."""
        found = self._stops(now_s)
        if now_s >= self._quota_due_s:
            self._quota_due_s = now_s + _QUOTA_INTERVAL_S
            found += self._quotas()
        return found

    @property
    def is_stopped(self) -> bool:
        """Whether the process was stopped when it was last looked at."""
        return self._stopped_since_s is not None

    def cause_of_kill(self) -> str:
        """Why SIGKILL may have ended it, as far as the kernel has counted; empty where it was somebody's signal."""
        if self._kills() > self._num_kills:
            return "out of memory (OOM): the memory limit of its control group was reached"
        if _machine_kills() > self._machine_kills:
            return "out of memory (OOM): the machine had none left, and the kernel ends processes then"
        return ""

    def _stops(self, now_s: float) -> list[str]:
        if _state(self._pid) in _STOPPED:
            self._stopped_since_s = now_s if self._stopped_since_s is None else self._stopped_since_s
            return []
        since_s, self._stopped_since_s = self._stopped_since_s, None
        if since_s is None:
            return []
        return [f"{self._name} was stopped for {now_s - since_s:.1f} s (SIGSTOP, or a debugger)"]

    def _quotas(self) -> list[str]:
        before, self._cores_now = self._cores_now, self._cores()
        unchanged = math.isclose(before, self._cores_now, rel_tol=_QUOTA_CHANGE)
        if unchanged or self._requested_anew(before) or _state(self._pid) is None:
            return []
        if math.isinf(self._cores_now):
            return [f"the CPU quota of {self._name}, {before:g} cores, was taken away"]
        return [f"a CPU quota of {self._cores_now:g} cores was put on {self._name}"]

    def _requested_anew(self, before: float) -> bool:
        """Whether it has come under the quota that the spec gives it, having had none."""
        own = not math.isinf(self._requested_cores) and math.isinf(before)
        return own and math.isclose(self._cores_now, self._requested_cores, rel_tol=_QUOTA_CHANGE)

    def _cores(self) -> float:
        """Infinity without a quota."""
        group = group_of(self._cpu, self._pid) if self._cpu else None
        return quota_cores(self._cpu, group) if self._cpu and group else math.inf

    def _kills(self) -> int:
        return _group_kills(self._memory, self._memory_group)


def _state(pid: int) -> str | None:
    """The letter of proc_pid_stat(5); None for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def _group_kills(controller: Controller | None, group: Path | None) -> int:
    if controller is None or group is None:
        return 0
    try:
        return num_out_of_memory(controller, group)
    except (OSError, KeyError):  # the root group has no limit, and a group may be gone
        return 0


def _machine_kills() -> int:
    """Processes that the kernel has ended for want of memory since the machine started, see proc_vmstat(5)."""
    lines = Path("/proc/vmstat").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
