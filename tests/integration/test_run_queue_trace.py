"""The scheduler's tracepoints beside its own sums, with real threads on a core that they share."""

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from testbed.measure.run_queue_trace import RunQueueTrace
from testbed.worker.run_queue import run_queue_delays_s
from tests.load import idlest_core

pytestmark = [pytest.mark.privileged, pytest.mark.quiet]  # who is woken onto an idle core

SPIN = "import time\nprint('ready', flush=True)\nwhile True: pass"
YIELD = "import os\nprint('ready', flush=True)\nwhile True: os.sched_yield()"
FIRST = """\
import os, threading, time

def move():
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    while True:
        until = time.monotonic() + 0.01
        while time.monotonic() < until:
            pass
        time.sleep(0.01)

threading.Thread(target=move, daemon=True).start()
print('ready', flush=True)
import ctypes
spin = ctypes.CDLL(None).sched_yield
while True: spin()
"""
WAKE = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.005)"


@pytest.fixture
def trace() -> Iterator[RunQueueTrace]:
    trace = RunQueueTrace()
    yield trace
    trace.close()


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for each in processes:
        each.kill()
        each.communicate()


def start(started: list[subprocess.Popen[str]], program: str, *, core: int = 0) -> int:
    process = subprocess.Popen(
        ["taskset", "-c", str(core), sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    )
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process.pid


class OwnWaits(NamedTuple):
    """In seconds, of a process of two threads."""

    waited_s: float
    """Of its main thread."""
    behind_s: float
    """Of these, while the other one ran."""
    first_behind_s: float
    """Of the other one's own."""


def own_waits(trace: RunQueueTrace, pid: int) -> OwnWaits:
    found = trace.take()
    assert found.num_lost == 0
    mine = found.waits[found.waits["process"] == pid]
    main, other = mine[mine["thread"] == pid], mine[mine["thread"] != pid]
    assert (mine["behind_ns"] <= mine["end_ns"] - mine["begin_ns"]).all()
    return OwnWaits(
        1e-9 * float(np.sum(main["end_ns"] - main["begin_ns"])),
        1e-9 * float(np.sum(main["behind_ns"])),
        1e-9 * float(np.sum(other["behind_ns"])),
    )


def waited_s(trace: RunQueueTrace, pid: int) -> float:
    found = trace.take()
    assert found.num_lost == 0
    mine = found.waits[found.waits["process"] == pid]
    assert (mine["end_ns"] >= mine["begin_ns"]).all()
    return 1e-9 * float(np.sum(mine["end_ns"] - mine["begin_ns"]))


def test_two_that_share_a_core_wait_half_of_the_time_as_the_scheduler_says(
    trace: RunQueueTrace, started: list[subprocess.Popen[str]]
) -> None:
    pids = [start(started, SPIN) for _ in range(2)]
    trace.follow(pids)
    time.sleep(0.1)  # whoever waited before has run
    trace.take()
    before = [run_queue_delays_s(pid)[pid] for pid in pids]
    time.sleep(1.0)
    after = [run_queue_delays_s(pid)[pid] for pid in pids]
    waits = trace.take()
    for pid, since_s, until_s in zip(pids, before, after, strict=True):
        mine = waits.waits[waits.waits["process"] == pid]
        traced_s = 1e-9 * float(np.sum(mine["end_ns"] - mine["begin_ns"]))
        assert traced_s == pytest.approx(until_s - since_s, abs=0.05), "a wait that goes on is in neither, or in one"
        assert traced_s > 0.2
    assert set(waits.waits["process"]) == set(pids), "nobody else is looked at"


def test_who_is_woken_onto_an_idle_core_waits_for_nobody_and_beside_a_load_he_does(
    trace: RunQueueTrace, started: list[subprocess.Popen[str]]
) -> None:
    core = idlest_core()
    pid = start(started, WAKE, core=core)
    trace.follow([pid])
    deadline_s = time.monotonic() + 20
    alone_s, summed_s = 1.0, 1.0
    while alone_s > 0.3 * summed_s:  # until nobody else came to that core meanwhile
        assert time.monotonic() < deadline_s, f"waited for {alone_s} s of {summed_s} s on a core of its own"
        waited_s(trace, pid)
        before_s = run_queue_delays_s(pid)[pid]
        time.sleep(0.1)
        summed_s, alone_s = run_queue_delays_s(pid)[pid] - before_s, waited_s(trace, pid)
    load = start(started, SPIN, core=core)
    os.setpriority(os.PRIO_PROCESS, load, -10)
    waited_s(trace, pid)
    before_s = run_queue_delays_s(pid)[pid]
    time.sleep(0.5)
    summed_s, loaded_s = run_queue_delays_s(pid)[pid] - before_s, waited_s(trace, pid)
    assert loaded_s > 0.8 * summed_s, "nobody is woken onto an idle core any more"


def test_what_a_thread_waits_behind_one_of_its_own_process_that_runs_first_is_known_apart(
    trace: RunQueueTrace, started: list[subprocess.Popen[str]]
) -> None:
    """Its second thread takes the core for half of the time; another process' takes what it can."""
    core = idlest_core()
    pid = start(started, FIRST, core=core)
    trace.follow([pid])
    time.sleep(0.1)
    trace.take()
    time.sleep(1.0)
    alone = own_waits(trace, pid)
    assert 0.3 < alone.behind_s < 0.7
    assert alone.behind_s == pytest.approx(alone.waited_s, abs=0.1), "nobody else is there, to speak of"
    assert alone.first_behind_s == 0, "the one that runs first waits behind nobody of its own"
    start(started, SPIN, core=core)
    trace.take()
    time.sleep(1.0)
    beside = own_waits(trace, pid)
    assert 0.3 < beside.behind_s < 0.7
    assert beside.waited_s - beside.behind_s > 0.1, "it shares the other half with another process"


def test_a_ring_goes_round_and_what_finds_no_room_is_counted(started: list[subprocess.Popen[str]]) -> None:
    core = max(os.sched_getaffinity(0))
    pids = [start(started, YIELD, core=core) for _ in range(2)]
    trace = RunQueueTrace(ring_bytes=mmap.PAGESIZE)
    try:
        trace.follow(pids)
        num_waits, ends_ns = 0, 0
        deadline_s = time.monotonic() + 20
        while num_waits < 20 * mmap.PAGESIZE / 40:
            assert time.monotonic() < deadline_s
            waits = trace.take().waits
            assert set(waits["process"]) <= set(pids)
            assert len(waits) == 0 or waits["end_ns"].min() >= ends_ns, "in order, each once"
            ends_ns = max([ends_ns, *waits["end_ns"]])
            num_waits += len(waits)
        while not trace.take().num_lost:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
    finally:
        trace.close()
