"""Whether other programs use this machine's cores while a test that wants a quiet one does nothing."""

import os
import time
from pathlib import Path
from typing import Final

BUSY_SHARE: Final = 0.1
"""Of one core."""
LOOK_S: Final = 0.3


def is_busy() -> bool:
    """Whether more than a tenth of a core was used, or taken by the hypervisor, while this process slept."""
    return sum(_busy_shares().values()) > BUSY_SHARE


def idlest_core() -> int:
    """Of those that this process may use."""
    shares = _busy_shares()
    return min(sorted(os.sched_getaffinity(0), reverse=True), key=lambda core: shares[core])


def _busy_shares() -> dict[int, float]:
    """By core."""
    before = _busy_ticks()
    time.sleep(LOOK_S)
    after = _busy_ticks()
    return {core: (ticks - before[core]) / os.sysconf("SC_CLK_TCK") / LOOK_S for core, ticks in after.items()}


def _busy_ticks() -> dict[int, int]:
    """Of each core, all but idle and iowait (proc_stat(5))."""
    found = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _, _, interrupts, soft, stolen = map(int, ticks[:8])
            found[int(name.removeprefix("cpu"))] = user + nice + system + interrupts + soft + stolen
    return found
