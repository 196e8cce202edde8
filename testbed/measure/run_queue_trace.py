"""Who waited for a core, and when: every wait of chosen processes' threads, as the scheduler's tracepoints say it
(testbed/system/native/run_queue.bpf.c).
"""

import ctypes
import mmap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from switch_agg.errors import UnsupportedError
from switch_agg.native.layout import layout_of
from switch_agg.native.libbpf import TRACING_FIX, BpfObject
from testbed.errors import MissingRequirementError
from testbed.system.intervals import union
from testbed.system.native.build import kernel_program
from testbed.system.processes import sees_all_processes

WAIT: Final = np.dtype(
    [("begin_ns", "=u8"), ("end_ns", "=u8"), ("behind_ns", "=u8"), ("process", "=u4"), ("thread", "=u4")]
)
"""`behind_ns` of it a thread of the same process ran that runs before others (SCHED_RR, SCHED_FIFO)."""
_RECORD: Final = np.dtype([("length", "=u4"), ("page", "=u4"), *((name, WAIT[name]) for name in WAIT.names or ())])
"""As it lies in the ring, behind its header (kernel documentation, bpf/ringbuf.rst)."""
GAP_S: Final = 20e-6
"""Waits of a host that are no further apart are one: rather too much than a row for each of thousands a second."""
_BUSY: Final = np.uint32(1 << 31)
"""In the length: the record is not yet written."""


class Waits(NamedTuple):
    """Those that ended since they were taken last; a wait that goes on comes when it is over."""

    waits: npt.NDArray[np.void]
    """Of dtype WAIT, in the order in which they ended."""
    num_lost: int
    """Of all until now, those for which there was no room."""


class _Number(ctypes.Structure):
    _fields_ = (("value", ctypes.c_uint64),)


class _Process(ctypes.Structure):
    _fields_ = (("since_ns", ctypes.c_uint64), ("ran_ns", ctypes.c_uint64), ("num_running", ctypes.c_uint64))


class RunQueueTrace:
    """Begins when it is made; close it."""

    def __init__(self, *, ring_bytes: int = 1 << 22) -> None:
        """`ring_bytes`, a power of two of pages, hold what is not taken yet.

        Raises MissingRequirementError where the kernel or the machine has not what it needs."""
        if not sees_all_processes():
            raise MissingRequirementError(
                "the testbed runs in a pid namespace of its own, and the kernel's tracepoints have pids of the root "
                "namespace; start the container with --pid=host"
            )
        try:
            program = kernel_program("run_queue", layout_of("wait", WAIT), layout_of("process", _Process))
            self._program = BpfObject(program, max_entries={"waits": ring_bytes}, fix=TRACING_FIX)
            try:
                self._program.attach_tracing("woken", "started", "switched")
                self._consumer, self._data = self._map_ring(ring_bytes)
            except BaseException:
                self._program.close()
                raise
        except (UnsupportedError, OSError) as error:
            raise MissingRequirementError(str(error)) from error
        self._followed: set[int] = set()

    def _map_ring(self, size_bytes: int) -> tuple[mmap.mmap, mmap.mmap]:
        """The consumer's page, and the producer's with all data behind it."""
        ring, page = self._program.descriptor("waits"), mmap.PAGESIZE
        consumer = mmap.mmap(ring, page)
        return consumer, mmap.mmap(ring, page + 2 * size_bytes, prot=mmap.PROT_READ, offset=page)

    def follow(self, processes: Iterable[int]) -> None:
        """All threads of these processes from now on, those that begin later included; pids in the root namespace."""
        for pid in set(processes) - self._followed:
            self._program.set("processes", pid, _Process())
            self._followed.add(pid)

    def take(self) -> Waits:
        """Once at a time."""
        size_bytes = (len(self._data) - mmap.PAGESIZE) // 2
        begin = int.from_bytes(self._consumer[:8], "little")
        end = int.from_bytes(self._data[:8], "little")
        # Seen twice in a row, so that what goes around the end is in one piece.
        records = np.frombuffer(
            self._data,
            dtype=_RECORD,
            count=(end - begin) // _RECORD.itemsize,
            offset=mmap.PAGESIZE + begin % size_bytes,
        )
        busy = np.flatnonzero(records["length"] & _BUSY)
        records = records[: busy[0] if len(busy) else None]
        waits = np.empty(len(records), dtype=WAIT)
        for name in WAIT.names or ():
            waits[name] = records[name]
        done = begin + records.nbytes
        del records  # it holds the memory that it looks at
        self._consumer[:8] = done.to_bytes(8, "little")
        return Waits(waits, int(self._program.get("lost", 0, _Number).value))

    def close(self) -> None:
        """Stop; what has not been taken is lost."""
        self._data.close()
        self._consumer.close()
        self._program.close()


def root_threads(pid: int, threads: Iterable[int]) -> frozenset[int]:
    """Ids in the root namespace of threads whose ids in the process' own are given; `pid` is in the root namespace."""
    wanted = set(threads)
    found = set()
    for task in _tasks(pid):
        own = _own_id(task)
        if own in wanted:
            found.add(int(task.name))
    return frozenset(found)


def threads_of(pid: int) -> frozenset[int]:
    """Ids of a process' threads now, in the namespace of `pid`; none when it has ended."""
    return frozenset(int(task.name) for task in _tasks(pid))


def ran_s(thread: int) -> float:
    """For how long a thread has run on a core since it began (kernel documentation, scheduler/sched-stats.rst); 0 when
    it has ended."""
    try:
        return int(Path(f"/proc/{thread}/schedstat").read_text().split()[0]) * 1e-9
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _own_id(task: Path) -> int | None:
    """NSpid of proc_pid_status(5): the thread's id in each namespace, the innermost last."""
    try:
        lines = (task / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields: Mapping[str, str] = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields.get("NSpid", task.name).split()[-1])


class HostWait(NamedTuple):
    """A time in which at least one thread of a kind of a host's process waited for a core."""

    host: str
    computing: bool
    """Threads that compute, or those that move gradients."""
    behind: bool
    """Of threads that compute, while one of the process that moves gradients ran, which has a core before them."""
    begin_s: float
    """CLOCK_MONOTONIC, as the other one."""
    end_s: float

    def since(self, epoch_s: float) -> "HostWait":
        """The same in seconds since another moment of that clock."""
        return self._replace(begin_s=self.begin_s - epoch_s, end_s=self.end_s - epoch_s)


class RunQueueWatch:
    """The waits of a run's processes, host by host. Any thread may call."""

    def __init__(self, processes: Callable[[], Mapping[str, int]]) -> None:
        """`processes`: pids in the root namespace by host, now. Where the machine cannot trace, `missing` says why, and
        nothing is ever taken."""
        self._processes = processes
        self._hosts: dict[int, str] = {}
        self._computing: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        self._trace: RunQueueTrace | None = None
        np.unique(np.zeros(0))  # loads numpy.ma: now, and not beside workers that compute
        self.missing: str | None = None
        """Why not every wait has been taken; None: all have."""
        try:
            self._trace = RunQueueTrace()
        except MissingRequirementError as error:
            self.missing = str(error)

    def computes(self, threads: Iterable[int]) -> None:
        """These threads compute, by their ids in the root namespace."""
        with self._lock:
            self._computing |= frozenset(threads)

    def take(self) -> list[HostWait]:
        """What has ended since the last time, each host's in order and apart from each other."""
        with self._lock:
            if self._trace is None:
                return []
            processes = self._processes()
            self._hosts |= {pid: host for host, pid in processes.items()}
            self._trace.follow(processes.values())
            waits, num_lost = self._trace.take()
            if num_lost:
                self.missing = f"there was no room for {num_lost} of them"
            return list(by_host(waits, self._hosts, self._computing))

    def close(self) -> None:
        """Stop."""
        with self._lock:
            if self._trace is not None:
                self._trace.close()
                self._trace = None


def by_host(waits: npt.NDArray[np.void], hosts: Mapping[int, str], computing: frozenset[int]) -> Iterator[HostWait]:
    """Apart from each other by GAP_S at least, those of a kind.

    Whoever is preempted by a thread of its own process waits behind it first, and perhaps behind others afterwards.
    """
    computes = np.isin(waits["thread"], list(computing))
    begins_s, ends_s = 1e-9 * waits["begin_ns"], 1e-9 * waits["end_ns"]
    parted_s = np.where(computes, np.minimum(begins_s + 1e-9 * waits["behind_ns"], ends_s), begins_s)
    for pid in np.unique(waits["process"]):
        mine = waits["process"] == pid
        for kind, behind, from_s, until_s in (
            (False, False, begins_s, ends_s),
            (True, False, parted_s, ends_s),
            (True, True, begins_s, parted_s),
        ):
            some = mine & (computes == kind) & (until_s > from_s)
            if some.any():
                froms_s, untils_s = union(from_s[some], until_s[some] + GAP_S)
                for begin_s, end_s in zip(froms_s, untils_s - GAP_S, strict=True):
                    yield HostWait(hosts[int(pid)], kind, behind, float(begin_s), float(end_s))
