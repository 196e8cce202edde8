"""Cores that have nothing to do sleep no deeper than a run can bear (kernel: power/pm_qos_interface.rst).

Whoever waits for a message waits for its core to wake up, too, and how long that takes depends on how long it slept,
on the machine, and, of a virtual one, on its host. A byte through a pipe to another core and back took 31 us on the
machine of docs/measured.md, 55 us after a pause of 0.2 ms; 7 and 8 us with cores kept awake.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from testbed.errors import MissingRequirementError
from testbed.system.environment import is_virtual

REQUESTS: Final = Path("/dev/cpu_dma_latency")
"""A request lasts for as long as the file is open; the lowest of all counts. Kernels without CONFIG_CPU_IDLE, and most
containers, have no such file."""
_SHALLOWEST: Final = Path("/sys/devices/system/cpu/cpu0/cpuidle/state1/latency")
"""Of the first state in which a core sleeps; before it, it only spins."""
_REQUEST: Final = struct.Struct("i")


def wake_up_limit_us(requests: Path = REQUESTS) -> int | None:
    """How long a core may take to wake up now; None where nobody can ask for less."""
    try:
        with requests.open("rb", buffering=0) as file:
            return int(_REQUEST.unpack(file.read(_REQUEST.size))[0])
    except (OSError, struct.error):
        return None


def bearable_us(*, virtual: bool, shallowest: Path = _SHALLOWEST) -> int:
    """What runs ask for. A virtual machine's cores do not sleep at all, because its host decides for how long they
    would; others' may in their shallowest state (C1), as tuned's profile network-latency has them: where some sleep,
    others may run at a higher clock."""
    if virtual or not shallowest.is_file():
        return 0
    return max(1, int(shallowest.read_text()))


@contextmanager
def shallow_sleep(requests: Path = REQUESTS) -> Iterator[None]:
    """Within it no core of this machine sleeps deeper than that; where nobody can ask for it, as deep as before.

    Raises MissingRequirementError where the kernel takes a request and does not do it.
    """
    limit_us = bearable_us(virtual=is_virtual())
    try:
        request = os.open(requests, os.O_WRONLY)
    except OSError:
        yield
        return
    try:
        os.write(request, _REQUEST.pack(limit_us))
        found_us = wake_up_limit_us(requests)
        if found_us is None or found_us > limit_us:
            raise MissingRequirementError(f"{requests}: cores may take {found_us} us to wake up, requested {limit_us}")
        yield
    finally:
        os.close(request)
