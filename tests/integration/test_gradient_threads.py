"""Which policy the scheduler has for the threads of a running training job: sched(7)."""

import os
import threading

import pytest

from testbed.measure.run_queue_trace import threads_of
from testbed.runner.gradient_threads import GRADIENT_PRIORITY, GradientThreads

pytestmark = pytest.mark.privileged


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
    go.set()
    thread.join()
    assert threads.refused is None
    assert found == {"moves": os.SCHED_RR, "priority": GRADIENT_PRIORITY, "child": os.SCHED_RR}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER, "what computes stays as it is"
