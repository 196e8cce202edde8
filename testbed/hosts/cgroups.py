"""Limits of a host's CPU time and memory through control groups (version 1 and 2), read back after setting.

A host's groups are `<mount point of the controller>/testbed-<run id>/<host>`. Kernel documentation:
admin-guide/cgroup-v1, scheduler/sched-bwc and admin-guide/cgroup-v2.
"""

import errno
import math
import mmap
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from testbed.errors import EnvironmentLacksError
from testbed.hosts.base import Limits
from testbed.state import RunState

ControllerName = Literal["cpu", "memory"]

_SHORTEST_QUOTA_US: Final = 1_000
"""The kernel refuses less (sched-bwc)."""
_PERIOD_US: Final = 10_000
"""Shorter than the kernel's 100 ms: a throttled worker should stall often and briefly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Controller:
    """Where a controller is mounted, and as which version."""

    name: ControllerName
    mount_point: Path
    version: Literal[1, 2]


def find_controller(name: ControllerName, mountinfo: str) -> Controller | None:
    """The controller in the text of /proc/self/mountinfo, see proc_pid_mountinfo(5); None if not mounted."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        mount_point = Path(before.split()[4])
        kind, _, super_options = after.split()[:3]
        if kind == "cgroup" and name in super_options.split(","):
            return Controller(name=name, mount_point=mount_point, version=1)
        if kind == "cgroup2" and name in _words(mount_point / "cgroup.controllers"):
            return Controller(name=name, mount_point=mount_point, version=2)
    return None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except FileNotFoundError:
        return []


def settings(controller: Controller, limits: Limits) -> Mapping[str, str]:
    """The files to write for this controller, in order, and what they then read."""
    values: dict[str, str] = {}
    if controller.name == "cpu" and limits.cpu_cores is not None:
        period_us = max(_PERIOD_US, math.ceil(_SHORTEST_QUOTA_US / limits.cpu_cores))
        quota_us = round(limits.cpu_cores * period_us)
        if controller.version == 1:
            values = {"cpu.cfs_period_us": str(period_us), "cpu.cfs_quota_us": str(quota_us)}
        else:
            values = {"cpu.max": f"{quota_us} {period_us}"}
    if controller.name == "memory" and limits.memory_bytes is not None:
        # The kernel rounds down to whole pages.
        limit = str(limits.memory_bytes // mmap.PAGESIZE * mmap.PAGESIZE)
        values = {"memory.limit_in_bytes": limit} if controller.version == 1 else {"memory.max": limit}
    return values


class HostCgroup:
    """The control groups of one host; made by the first limit, removed by :meth:`remove`."""

    def __init__(self, host: str, state: RunState) -> None:
        self._host = host
        self._state = state
        self._groups: dict[ControllerName, Path] = {}

    @property
    def procs_files(self) -> list[Path]:
        """Where a process writes its pid to be limited."""
        return [group / "cgroup.procs" for group in self._groups.values()]

    def limit(self, limits: Limits) -> None:
        """Set and read back. Raises EnvironmentLacksError, naming the cure."""
        if limits.cpu_cores is not None:
            self._apply("cpu", limits)
        if limits.memory_bytes is not None:
            self._apply("memory", limits)

    def _apply(self, name: ControllerName, limits: Limits) -> None:
        controller = find_controller(name, Path("/proc/self/mountinfo").read_text())
        if controller is None:
            raise EnvironmentLacksError(
                f"host {self._host} asks for a {name} limit, but the cgroup controller is not mounted: "
                f"mkdir -p /sys/fs/cgroup/{name} && mount -t cgroup -o {name} cgroup /sys/fs/cgroup/{name}, "
                "or drop the limit"
            )
        try:
            group = self._make(controller)
            for file, value in settings(controller, limits).items():
                (group / file).write_text(value)
                if (read := (group / file).read_text().strip()) != value:
                    raise EnvironmentLacksError(f"{group / file} reads {read!r} after {value!r} was written to it")
        except OSError as error:
            raise EnvironmentLacksError(
                f"cannot limit {name} of host {self._host}: {error}; this needs root and a writable "
                f"{controller.mount_point} (in a container: --privileged, or a delegated cgroup)"
            ) from error

    def _make(self, controller: Controller) -> Path:
        """The host's group for this controller, made if it is not there yet."""
        if controller.name in self._groups:
            return self._groups[controller.name]
        of_run = controller.mount_point / f"testbed-{self._state.run_id}"
        group = of_run / self._host
        for path in (of_run, group):
            if not path.exists():
                self._state.add_cgroup(path)
                path.mkdir()
        if controller.version == 2:
            for parent in (controller.mount_point, of_run):
                control = parent / "cgroup.subtree_control"
                if controller.name not in control.read_text().split():
                    control.write_text(f"+{controller.name}")
        self._groups[controller.name] = group
        return group

    def remove(self) -> None:
        """Remove the groups; the processes in them must have ended. Idempotent."""
        for name, group in list(self._groups.items()):
            for path in (group, group.parent):
                if path == group or not any(child.is_dir() for child in path.iterdir()):
                    remove_cgroup(path)
                    self._state.remove_cgroup(path)
            del self._groups[name]


def remove_cgroup(path: Path, *, timeout_s: float = 5.0) -> None:
    """rmdir a control group, patiently: the kernel lets go of ended processes a moment later. Idempotent.

    Raises OSError if it stays busy.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline_s:
                raise
            time.sleep(0.01)
        else:
            return
