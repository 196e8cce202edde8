"""Which programs used the machine's cores: a run's own processes, and everybody else's; see proc_pid_stat(5).

A process' CPU time comes to its parent's when it has ended and was waited for, so that programs which start many short
ones, a compiler's driver say, are seen with all that these used.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from testbed.hosts.cgroups import available_controllers, group_of, is_idle_beside
from testbed.measure.machine import MachineSample
from testbed.system.kernel import network_namespace
from testbed.system.processes import pids, read_stat, sees_all_processes, split_stat

_KERNEL_THREADS: Final = 2
"""kthreadd, the parent of all others: what they do is done for somebody, mostly for the run's packets."""
_NUM_NAMED: Final = 3


class Process(NamedTuple):
    """One process, as /proc shows it; clock ticks."""

    name: str
    parent: int
    own_ticks: int
    """Since it began, in programs and in the kernel for them."""
    ended_ticks: int
    """Of its children that have ended and were waited for, with theirs."""
    began_ticks: int
    """After the machine's start: with the pid it names a process for good."""
    policy: int = os.SCHED_OTHER
    """How its first thread is scheduled, see sched(7)."""


class Programs(NamedTuple):
    """What others than the run used of the cores over some time."""

    share: float
    """Of all cores' time."""
    most: tuple[str, ...] = ()
    """Who used most of it: `cc1plus (process 4711) 12 %`."""
    stolen_share: float = 0.0
    """Beside that: of all cores' time, what the hypervisor gave to other machines."""

    @property
    def taken_share(self) -> float:
        """Of all cores' time, what the run could not have: programs' and the hypervisor's."""
        return self.share + self.stolen_share

    @property
    def text(self) -> str:
        """The same in words: `other programs took 31 % of the cores (cc1plus (process 4711) 12 %, ...)`."""
        stolen = f"{100 * self.stolen_share:.0f} %" if self.stolen_share >= 0.005 else None
        if stolen and self.share < 0.005:
            return f"the hypervisor took {stolen} of the cores"
        who = f" ({', '.join(self.most)})" if self.most else ""
        both = f" and the hypervisor {stolen}" if stolen else ""
        return f"other programs took {100 * self.share:.0f} % of the cores{who}{both}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessorUse:
    """Since the machine's start, at one moment."""

    machine: MachineSample
    processes: Mapping[int, Process]
    """By pid; kernel threads are not among them."""
    own: frozenset[int]
    """Those of the run."""
    yielding: frozenset[int]
    """Those of others that run where nobody else wants the core, and give it away to the run at once: they lengthen
    nothing."""
    sees_all: bool
    """Whether every process of the machine is among them; in a container of its own kind only that container's."""
    all_cores: bool = True
    """Whether the run may use every core of the machine: else others may be busy on cores that are none of its."""

    @classmethod
    def take(cls, roots: Iterable[int], *, hosts: Iterable[int] = ()) -> "ProcessorUse":
        """Now. The run's own are this process, `roots`, and all that these have started; and whatever is in the network
        of one of `hosts`, pids in namespaces of the run: Docker is the parent of what it starts in a container."""
        processes = {pid: process for pid in pids() if (process := _read(pid)) is not None}
        networks = {network_namespace(pid) for pid in hosts} - {network_namespace(os.getpid()), None}
        inside = {pid for pid in processes if network_namespace(pid) in networks} if networks else set()
        own = descendants(processes, {os.getpid(), *roots, *inside})
        return cls(
            machine=MachineSample.take(),
            processes=processes,
            own=own,
            yielding=yielding({pid: process for pid, process in processes.items() if pid not in own}),
            sees_all=sees_all_processes(),
            all_cores=len(os.sched_getaffinity(0)) == os.cpu_count(),
        )


def others_between(before: ProcessorUse, after: ProcessorUse) -> Programs | None:
    """What programs that are not the run's used; None where no time passed.

    Where not every process can be seen, it is at least what cores spent beside idling, interrupts and the run; where
    the run has not all cores, it is at most that.
    """
    ticks = after.machine.ticks - before.machine.ticks
    if ticks <= 0:
        return None
    used = ticks_between(before.processes, after.processes)
    harmless = after.own | after.yielding
    others = Counter({pid: used[pid] for pid in used if pid not in harmless and used[pid] > 0})
    num_ticks = others.total()
    harmless_ticks = sum(used[pid] for pid in used if pid in harmless)
    unaccounted_ticks = after.machine.program_ticks - before.machine.program_ticks - harmless_ticks
    if not after.all_cores:
        num_ticks = min(num_ticks, max(0, unaccounted_ticks))
    if not after.sees_all:
        num_ticks = max(num_ticks, unaccounted_ticks)
    most = (
        f"{after.processes[pid].name} (process {pid}) {100 * its / ticks:.0f} %"
        for pid, its in others.most_common(_NUM_NAMED)
        if its >= ticks / 100
    )
    return Programs(min(1.0, num_ticks / ticks), tuple(most), after.machine.steal_share_since(before.machine))


def descendants(processes: Mapping[int, Process], roots: Iterable[int]) -> frozenset[int]:
    """The roots that there are, and all that they have started."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    found: set[int] = set()
    waiting = [pid for pid in roots if pid in processes]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return frozenset(found)


def ticks_between(before: Mapping[int, Process], after: Mapping[int, Process]) -> dict[int, int]:
    """By pid of those that are there at the end: what they used, and what their children did that ended meanwhile.

    Of a child that was there before, what it had used by then is in what its parent is charged with at its end, and is
    taken off.
    """
    used: dict[int, int] = {}
    ended: dict[int, int] = {}
    for pid, process in after.items():
        known = _same(before.get(pid), process)
        used[pid] = process.own_ticks - (known.own_ticks if known else 0)
        ended[pid] = process.ended_ticks - (known.ended_ticks if known else 0)
    for pid, process in before.items():
        if _same(process, after.get(pid)) is None:
            heir = process.parent
            while heir in before and _same(before[heir], after.get(heir)) is None:
                heir = before[heir].parent
            # A parent that does not wait for its children is not charged with them.
            if heir in ended:
                ended[heir] = max(0, ended[heir] - process.own_ticks - process.ended_ticks)
    return {pid: used[pid] + ended[pid] for pid in used}


def yielding(processes: Mapping[int, Process]) -> frozenset[int]:
    """Those in an idle control group beside ours, and those of SCHED_IDLE that the scheduler weighs against the run one
    by one: of the same control group, where sessions are not grouped (sched_autogroup_enabled, sched(7)). Else a
    session's idle processes have what any session has."""
    controller = available_controllers()["cpu"]
    own = group_of(controller, "self") if controller else None
    if controller is None or own is None:
        return frozenset()
    groups = {pid: group for pid in processes if (group := group_of(controller, pid)) is not None}
    idle = {group for group in set(groups.values()) if is_idle_beside(controller, group, own)}
    alike = own != controller.mount_point or not groups_sessions()
    return frozenset(
        pid
        for pid, group in groups.items()
        if group in idle or (alike and group == own and processes[pid].policy == os.SCHED_IDLE)
    )


def groups_sessions() -> bool:
    """Whether the scheduler weighs sessions against each other, and processes only within theirs."""
    path = Path("/proc/sys/kernel/sched_autogroup_enabled")
    return path.exists() and path.read_text().strip() == "1"


def _same(one: Process | None, other: Process | None) -> Process | None:
    return one if one is not None and other is not None and one.began_ticks == other.began_ticks else None


def _read(pid: int) -> Process | None:
    """None for one that has ended, and for kernel threads."""
    text = read_stat(pid)
    process = None if text is None else parse_stat(text)
    return None if process is None or _KERNEL_THREADS in (pid, process.parent) else process


def parse_stat(text: str) -> Process:
    """The text of /proc/<pid>/stat."""
    name, fields = split_stat(text)  # from the third field on
    own, ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    began_ticks, policy = int(fields[19]), int(fields[38])
    return Process(name, int(fields[1]), own_ticks=own, ended_ticks=ended, began_ticks=began_ticks, policy=policy)
