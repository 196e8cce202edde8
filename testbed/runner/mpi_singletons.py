"""Whether a command's workers are MPI programs that nobody has joined into one job.

An MPI process that was not started by mpirun is a job of its own, of size one (MPI 4.1, section 11.10.4, "singleton
init"): each worker then computes alone, ends well, and nothing crosses a link. That can be seen while it runs: the
library is among the files that it has mapped, and none of the variables by which a launcher says who it is are there.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from testbed.hosts.base import Process

_LIBRARY: Final = re.compile(rb"/libmpi(ch)?(-[0-9a-f]+)?\.so[.0-9]*$", re.MULTILINE)
"""Open MPI's, MPICH's and Intel's; wheels put a digest in the name (PEP 513's auditwheel)."""
_OF_A_JOB: Final = re.compile(rb"(^|\0)(PMI_|PMIX_|OMPI_COMM_WORLD_|MPI_LOCALRANKID|SLURM_STEP_)")
_OFTEN_S: Final = 2.0
"""As long as that at every call, then ever more seldom: a program maps its libraries when it begins."""
HINT: Final = (
    "the command is an MPI program, and its processes were not started by mpirun: each is a job of its own, rank 0 of "
    "1 (singletons). Start it by `testbed exec --launcher -- mpirun COMMAND`"
)


def is_singleton(pid: int) -> bool:
    """Whether the process, or one of its process group, has an MPI library and no launcher."""
    for each in _group(pid):
        with suppress(OSError):  # it has ended
            if _LIBRARY.search(Path(f"/proc/{each}/maps").read_bytes()):
                return _OF_A_JOB.search(Path(f"/proc/{each}/environ").read_bytes()) is None
    return False


def _group(leader: int) -> Iterator[int]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - twenty times a second, and names are all that is wanted
        if name.isdigit():
            with suppress(ProcessLookupError):
                if os.getpgid(int(name)) == leader:
                    yield int(name)


class SingletonWatch:
    """Looks at the workers' processes now and then, until it knows."""

    def __init__(self, processes: Sequence[Process]) -> None:
        """One process alone is no mistake."""
        self._processes = processes
        self._begun_s = time.monotonic()
        self._next_s = self._begun_s
        self._done = len(processes) < 2

    def found(self) -> bool:
        """True once: when two workers are singletons."""
        now_s = time.monotonic()
        if self._done or now_s < self._next_s:
            return False
        age_s = now_s - self._begun_s
        self._next_s = now_s + (0.0 if age_s < _OFTEN_S else age_s)
        self._done = all(each.poll() is None and is_singleton(each.pid) for each in self._processes[:2])
        return self._done
