"""Which policy the scheduler has for the threads of a running training job: sched(7)."""

import os
import threading
import time
from collections.abc import Sequence

import pytest

from testbed.measure.run_queue_trace import ran_s, threads_of
from testbed.runner.gradient_threads import GRADIENT_PRIORITY, LEAST_RUN_S, GradientThreads

pytestmark = pytest.mark.privileged


def ordinary(threads: GradientThreads) -> Sequence[str]:
    now = threads.read_back()
    assert now is not None
    return now.ordinary


def test_who_leaves_it_while_the_job_runs_is_found() -> None:
    go = threading.Event()

    def moves() -> None:
        begun_s = time.thread_time()
        while time.thread_time() - begun_s < 2 * LEAST_RUN_S:
            pass
        go.wait()

    thread = threading.Thread(target=moves)
    thread.start()
    mine = threads_of(os.getpid()) - {thread.native_id}
    threads = GradientThreads(lambda: {"w0": os.getpid()}, dict)
    threads.computes("w0", mine)
    threads.prioritise()
    deadline_s = time.monotonic() + 10
    while ran_s(thread.native_id or 0) < LEAST_RUN_S and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert ordinary(threads) == []
    os.sched_setscheduler(thread.native_id or 0, os.SCHED_OTHER, os.sched_param(0))
    (found,) = ordinary(threads)
    go.set()
    thread.join()
    assert found.startswith("w0: ")
    assert found.endswith(f"(thread {thread.native_id}) is in SCHED_OTHER")


def test_the_kernel_runs_them_first_and_what_they_start_too() -> None:
    go = threading.Event()
    found: dict[str, int] = {}

    def child() -> None:
        found["child"] = os.sched_getscheduler(0)

    def moves() -> None:
        go.wait()
        found["moves"] = os.sched_getscheduler(0)
        found["priority"] = os.sched_getparam(0).sched_priority
        later = threading.Thread(target=child)
        later.start()
        later.join()

    thread = threading.Thread(target=moves)
    thread.start()
    mine = threads_of(os.getpid()) - {thread.native_id}
    threads = GradientThreads(lambda: {"w0": os.getpid()}, dict)
    threads.computes("w0", [each for each in mine if each is not None])
    threads.prioritise()
    now = threads.read_back()
    assert now is not None
    assert now.num_first == 1, "what computes stays out of it"
    go.set()
    thread.join()
    assert threads.refused is None
    assert found == {"moves": os.SCHED_RR, "priority": GRADIENT_PRIORITY, "child": os.SCHED_RR}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER, "what computes stays as it is"
