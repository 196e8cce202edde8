"""What the machine's cores and its network code did: proc_stat(5), /proc/net/softnet_stat."""

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineSample:
    """Cumulative since boot, over all cores that this process may run on, at one moment."""

    at_s: float
    """time.monotonic()."""
    ticks: int
    """All clock ticks: idle, busy and stolen."""
    idle_ticks: int
    """Idle or waiting for a disk."""
    program_ticks: int
    """Of programs, and of the kernel for them: neither idle nor stolen, and no interrupts."""
    steal_ticks: int
    """Taken by the hypervisor for others."""
    softnet_drops: int
    """Packets that found the kernel's input queue full (net.core.netdev_max_backlog)."""
    softnet_squeezes: int
    """Times that the kernel's receive loop ran out of its time slice with packets left."""

    @classmethod
    def take(cls) -> "MachineSample":
        """Now."""
        stat = Path("/proc/stat").read_text(encoding="ascii")
        softnet = Path("/proc/net/softnet_stat").read_text(encoding="ascii")
        return cls(at_s=time.monotonic(), **parse_stat(stat, os.sched_getaffinity(0)), **parse_softnet(softnet))

    def steal_share_since(self, before: "MachineSample") -> float:
        """The share of all cores' time that the hypervisor gave to others since that sample."""
        return (self.steal_ticks - before.steal_ticks) / max(1, self.ticks - before.ticks)

    def busy_share_since(self, before: "MachineSample") -> float:
        """The share of all cores' time that was not idle since that sample."""
        return 1 - (self.idle_ticks - before.idle_ticks) / max(1, self.ticks - before.ticks)


def parse_stat(text: str, cores: Collection[int]) -> dict[str, int]:
    """Over these cores: user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user's already."""
    names = {f"cpu{core}" for core in cores}
    rows = [words[1:9] for words in map(str.split, text.splitlines()) if words and words[0] in names]
    fields = [sum(map(int, column)) for column in zip(*rows, strict=True)]
    spent = {"ticks": sum(fields), "program_ticks": sum(fields[:3])}
    return {**spent, "idle_ticks": fields[3] + fields[4], "steal_ticks": fields[7]}


def parse_softnet(text: str) -> dict[str, int]:
    """One line of hexadecimal numbers for each core: packets, drops, squeezes (net/core/net-procfs.c)."""
    rows = [[int(value, 16) for value in line.split()[:3]] for line in text.splitlines()]
    return {"softnet_drops": sum(row[1] for row in rows), "softnet_squeezes": sum(row[2] for row in rows)}
