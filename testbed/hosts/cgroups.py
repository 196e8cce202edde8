"""Limits of a process' CPU time, cores and memory through control groups (version 1 and 2), read back after setting.

The groups of a process are `<mount point of the controller>/testbed-<run id>/<process>`. On version 2 the controllers
stay switched on for the mount point's children afterwards, as every container runtime leaves them. Kernel
documentation: admin-guide/cgroup-v1, scheduler/sched-bwc and admin-guide/cgroup-v2.
"""

import errno
import math
import mmap
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from testbed.errors import MissingRequirementError
from testbed.experiment.host import Limits, core_list
from testbed.hosts.base import Throttling
from testbed.system.run_state import RunState

ControllerName = Literal["cpu", "cpuset", "memory"]
"""Those that limits need."""
CONTROLLERS: Final[tuple[ControllerName, ...]] = get_args(ControllerName)

_SHORTEST_QUOTA_US: Final = 1_000
"""The kernel refuses less (sched-bwc)."""
_PERIOD_US: Final = 10_000
"""Shorter than the kernel's 100 ms: a throttled worker should stall often and briefly."""
_CPUSET_FILES: Final = ("cpuset.cpus", "cpuset.mems")
"""On version 1 a group takes no process before both are set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Controller:
    """Where a controller is mounted, and as which version."""

    name: ControllerName | Literal["freezer"]
    mount_point: Path
    version: Literal[1, 2]


def find_controller(name: ControllerName | Literal["freezer"], mountinfo: str) -> Controller | None:
    """The controller in the text of /proc/self/mountinfo, see proc_pid_mountinfo(5); None if not mounted.

    A controller belongs to one hierarchy at a time: where both versions are mounted, it is in the one that has it.
    """
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        mount_point = Path(before.split()[4])
        kind, _, super_options = after.split()[:3]
        if kind == "cgroup" and name in super_options.split(","):
            return Controller(name=name, mount_point=mount_point, version=1)
        if kind == "cgroup2" and name in _words(mount_point / "cgroup.controllers"):
            return Controller(name=name, mount_point=mount_point, version=2)
    return None


def own_mountinfo() -> str:
    """What is mounted for this process."""
    return Path("/proc/self/mountinfo").read_text()


def available_controllers() -> dict[ControllerName, Controller | None]:
    """What this machine has."""
    mountinfo = own_mountinfo()
    return {name: find_controller(name, mountinfo) for name in CONTROLLERS}


def freezer() -> Controller | None:
    """What freezes processes on this machine: of version 1 a controller, of version 2 every group of it; None where
    neither is mounted."""
    mountinfo = own_mountinfo()
    found = find_controller("freezer", mountinfo)
    if found is not None:
        return found
    mounts = (line.partition(" - ") for line in mountinfo.splitlines())
    points = (Path(before.split()[4]) for before, _, after in mounts if after.split()[0] == "cgroup2")
    return next((Controller(name="freezer", mount_point=point, version=2) for point in points), None)


def is_frozen(controller: Controller, pid: int) -> bool:
    """Whether the kernel keeps the process from running because its control group, or one above, is frozen."""
    group = group_of(controller, pid)
    if group is None:
        return False
    if controller.version == 1:
        return _words(group / "freezer.state") in (["FROZEN"], ["FREEZING"])
    words = _words(group / "cgroup.events")
    return dict(zip(words[::2], words[1::2], strict=False)).get("frozen") == "1"


def needed_controllers(limits: Limits) -> list[ControllerName]:
    """The controllers of control groups that these limits need."""
    requested: dict[ControllerName, bool] = {
        "cpu": limits.cpu_cores is not None,
        "cpuset": bool(limits.pinned_cores),
        "memory": limits.memory_bytes is not None,
    }
    return [name for name, wanted in requested.items() if wanted]


def fix(name: ControllerName) -> str:
    """How a machine gets the controller."""
    return (
        f"mkdir -p /sys/fs/cgroup/{name} && mount -t cgroup -o {name} cgroup /sys/fs/cgroup/{name} (version 1), or "
        "boot with systemd.unified_cgroup_hierarchy=1 (version 2)"
    )


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
    if controller.name == "cpuset" and limits.pinned_cores:
        values = {"cpuset.cpus": core_list(limits.pinned_cores)}
    if controller.name == "memory" and limits.memory_bytes is not None:
        # The kernel rounds down to whole pages.
        limit = str(limits.memory_bytes // mmap.PAGESIZE * mmap.PAGESIZE)
        values = {"memory.limit_in_bytes": limit} if controller.version == 1 else {"memory.max": limit}
    return values


def differences(requested: Mapping[Path, str]) -> list[str]:
    """What does not read as requested, file by file."""
    found = []
    for file, value in requested.items():
        read = file.read_text().strip() if file.exists() else "nothing"
        if read != value:
            found.append(f"{file} reads {read!r}, requested {value!r}")
    return found


def parse_throttling(text: str) -> Throttling | None:
    """The text of a group's cpu.stat, either version's; None where no quota can be set, as in the root group."""
    fields = dict(line.split(maxsplit=1) for line in text.splitlines())
    if "nr_throttled" not in fields:
        return None
    throttled_s = int(fields["throttled_time"]) * 1e-9 if "throttled_time" in fields else 0.0
    throttled_s += int(fields["throttled_usec"]) * 1e-6 if "throttled_usec" in fields else 0.0
    return Throttling(
        num_periods=int(fields["nr_periods"]), num_throttled=int(fields["nr_throttled"]), throttled_s=throttled_s
    )


def group_of(controller: Controller, pid: int | Literal["self"]) -> Path | None:
    """The control group of a process, see cgroups(7); None if it has ended, or is in none that is seen from here."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    for line in lines:
        _, names, path = line.split(":", 2)
        if names.split(",") == [""] if controller.version == 2 else controller.name in names.split(","):
            group = controller.mount_point / path.lstrip("/")
            return group if group.exists() else None
    return None


def is_idle_beside(controller: Controller, group: Path, other: Path) -> bool:
    """Whether what runs in `group` gives cores up to what runs in `other` at once: it is in a group that is idle
    (cpu.idle, Linux 5.15 and newer) and that stands beside `other` or a group that `other` is in. An idle group yields
    to its siblings only: deeper in another branch it competes with that branch's whole weight."""
    others = set(_with_those_above(controller, other))
    return any(
        _words(each / "cpu.idle") == ["1"] and each not in others and each.parent in others
        for each in _with_those_above(controller, group)
    )


def _with_those_above(controller: Controller, group: Path) -> Iterator[Path]:
    """The group, and the groups that it is in, to the one that is mounted: in a container that is the container's."""
    while group.is_relative_to(controller.mount_point):
        yield group
        group = group.parent


def own_throttling() -> dict[Path, Throttling]:
    """What quotas on this process itself have done, by control group: its own, and all that it is in, such as a
    container's or a systemd slice's. Groups that count nothing are left out."""
    controller = find_controller("cpu", own_mountinfo())
    group = group_of(controller, "self") if controller else None
    if controller is None or group is None:
        return {}
    files = {each: each / "cpu.stat" for each in _with_those_above(controller, group)}
    found = {each: parse_throttling(file.read_text()) for each, file in files.items() if file.exists()}
    return {each: throttling for each, throttling in found.items() if throttling is not None}


def quota_cores(controller: Controller, group: Path) -> float:
    """The cores that a group may use: the least that it or any group above it may; infinity without a quota."""
    groups = _with_those_above(controller, group)
    return min((_own_quota_cores(controller, each) for each in groups), default=math.inf)


def _own_quota_cores(controller: Controller, group: Path) -> float:
    if controller.version == 1:
        words = _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
    else:
        words = _words(group / "cpu.max")
    if len(words) != 2 or words[0] in ("max", "-1"):
        return math.inf
    return int(words[0]) / int(words[1])


def num_out_of_memory(controller: Controller, group: Path) -> int:
    """How many processes of a group the kernel has ended because of its memory limit."""
    name = "memory.oom_control" if controller.version == 1 else "memory.events"
    fields = dict(line.split(maxsplit=1) for line in (group / name).read_text().splitlines())
    return int(fields["oom_kill"])


class ProcessCgroup:
    """The control groups of one process and all that it starts; made by its limits, removed by :meth:`remove`."""

    def __init__(self, process: str, state: RunState, *, mountinfo: str | None = None) -> None:
        self._process = process
        self._state = state
        self._mountinfo = mountinfo
        self._controllers: dict[str, Controller] = {}
        self._set: dict[Path, str] = {}
        """Every file that was written, and what it must read."""

    def _group(self, controller: Controller) -> Path:
        return controller.mount_point / f"testbed-{self._state.run_id}" / self._process

    @property
    def _groups(self) -> list[Path]:
        """On version 2 one for all controllers."""
        return list(dict.fromkeys(self._group(controller) for controller in self._controllers.values()))

    @property
    def procs_files(self) -> list[Path]:
        """The files into which a process writes its pid to be limited."""
        return [group / "cgroup.procs" for group in self._groups]

    def limit(self, limits: Limits) -> None:
        """Set and read back. Raises MissingRequirementError, naming the fix."""
        for name in needed_controllers(limits):
            self._apply(name, limits)
        if differences := self.differences():
            raise MissingRequirementError("; ".join(differences))

    def differences(self) -> list[str]:
        """What no longer reads as it was set."""
        return differences(self._set)

    def throttling(self) -> Throttling | None:
        """What the CPU quota has done so far; None without one."""
        controller = self._controllers.get("cpu")
        return parse_throttling((self._group(controller) / "cpu.stat").read_text()) if controller else None

    def num_out_of_memory(self) -> int:
        """How many processes the kernel has ended because of the memory limit."""
        controller = self._controllers.get("memory")
        if controller is None:
            return 0
        return num_out_of_memory(controller, self._group(controller))

    def _apply(self, name: ControllerName, limits: Limits) -> None:
        controller = find_controller(name, self._mountinfo or own_mountinfo())
        if controller is None:
            raise MissingRequirementError(
                f"{self._process} asks for a limit that needs the {name} controller, and it is not mounted: "
                f"{fix(name)}; or drop the limit"
            )
        try:
            self._make(controller)
            group = self._group(controller)
            for file, value in settings(controller, limits).items():
                (group / file).write_text(value)
                self._set[group / file] = value
        except OSError as error:
            raise MissingRequirementError(
                f"cannot set the {name} limit of {self._process}: {error}; this needs root and a writable "
                f"{controller.mount_point} (in a container: --privileged, or a delegated cgroup)"
            ) from error

    def _make(self, controller: Controller) -> None:
        """The process' group for this controller, made if it is not there yet."""
        group = self._group(controller)
        self._controllers[controller.name] = controller
        for path in (group.parent, group):
            if not path.exists():
                self._state.add_cgroup(path)
                path.mkdir(exist_ok=True)
            if controller.version == 1 and controller.name == "cpuset":
                for file in _CPUSET_FILES:
                    (path / file).write_text((path.parent / file).read_text())
        if controller.version == 2:
            for parent in (controller.mount_point, group.parent):
                control = parent / "cgroup.subtree_control"
                if controller.name not in _words(control):
                    control.write_text(f"+{controller.name}")

    def remove(self) -> None:
        """Remove the groups, as far as they could be made; the processes in them must have ended. Idempotent."""
        for group in self._groups:
            for path in (group, group.parent):
                if path == group or not any(path.glob("*/")):
                    remove_cgroup(path)
                    self._state.remove_cgroup(path)
        self._controllers.clear()
        self._set.clear()


def remove_cgroup(path: Path, *, timeout_s: float = 5.0) -> None:
    """rmdir a control group, patiently: the kernel lets go of ended processes a moment later. Idempotent.

    Raises OSError if it stays busy.
    """
    deadline_s = time.monotonic() + timeout_s
    while path.exists():  # where nothing can be written rmdir says so of what was never made, too
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
