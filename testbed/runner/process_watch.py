"""What others do to a run's processes while it goes on: stop or freeze them, put them under a CPU quota, end them for
want of memory.

Nobody tells the one whose process it is, so it is looked at about ten times a second: its state in /proc/<pid>/stat
(proc_pid_stat(5)), whether its control group is frozen, the CPU quotas of its control groups, and how often the kernel
has run out of memory.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from testbed.hosts.cgroups import (
    Controller,
    available_controllers,
    freezer,
    group_of,
    is_frozen,
    num_out_of_memory,
    quota_cores,
)
from testbed.system.processes import stat_fields

_STOPPED: Final = frozenset("Tt")
"""By a signal, and by a debugger."""
_QUOTA_INTERVAL_S: Final = 1.0
"""Between two looks at control groups, which are several files."""
_QUOTA_CHANGE: Final = 0.001
"""Relative: quotas are whole microseconds."""
_STILL_S: Final = 2.0
"""Between two looks of a run at its processes, from the first one on. They are a tenth of a second apart; reading
every counter of a large network at a border of the measured window takes some tenths."""


class RunWatch:
    """The processes beside the workers that a run's numbers rest on, and the one that watches all of them."""

    def __init__(self, processes: Mapping[str, int], now_s: float) -> None:
        """Pids by the names that a reader knows the processes by: `ps0`, `relay`, `aggregator-a0`."""
        self._watches = [ProcessWatch(name, pid, now_s) for name, pid in processes.items()]
        self._looked_s: float | None = None

    def look(self, now_s: float) -> list[str]:
        """What has been done to them, one phrase each."""
        still_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        found = (
            [f"the testbed itself stood still for {still_s:.1f} s and watched nothing"] if still_s > _STILL_S else []
        )
        return found + [text for watch in self._watches for text in watch.look(now_s)]


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
        self._freezer = freezer()
        self._memory = controllers["memory"]
        self._cores_now = self._cores()
        self._memory_group = group_of(self._memory, pid) if self._memory else None
        self._num_kills = self._kills()
        self._machine_kills = _machine_kills()
        self._quota_due_s = now_s + _QUOTA_INTERVAL_S
        self._stopped_since_s: float | None = None
        self._how = ("", "")

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
        if how := self._standstill():
            if self._stopped_since_s is None:
                self._stopped_since_s, self._how = now_s, how
            return []
        since_s, self._stopped_since_s = self._stopped_since_s, None
        if since_s is None:
            return []
        stopped, by = self._how
        return [f"{self._name} was {stopped} for {now_s - since_s:.1f} s ({by})"]

    def _standstill(self) -> tuple[str, str] | None:
        """How it is kept from running now, and by what; None: it is not."""
        if _state(self._pid) in _STOPPED:
            return "stopped", "SIGSTOP, or a debugger"
        if self._freezer is not None and is_frozen(self._freezer, self._pid):
            return "frozen", "its control group"
        return None

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
    fields = stat_fields(pid)
    return None if fields is None else fields[0]


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
