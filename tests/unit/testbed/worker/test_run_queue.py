"""Which threads' waiting counts as communication's, with real threads that want the same core."""

import hashlib
import os
import threading
import time
from collections.abc import Sequence

from testbed.worker.run_queue import RunQueueClock, RunQueueDelay, threads

_BLOCK = bytes(1 << 20)
"""Hashed without the interpreter's lock."""


def contended(clocks: Sequence[RunQueueClock], *, cpu_s: float) -> list[RunQueueDelay]:
    """Laps of these clocks around two threads that want the same core until each of them has had it for so long."""
    core = min(os.sched_getaffinity(0))
    done, leave = threading.Barrier(3), threading.Event()

    def work() -> None:
        os.sched_setaffinity(threading.get_native_id(), {core})
        while time.thread_time() < cpu_s:
            hashlib.sha256(_BLOCK).digest()
        done.wait()
        leave.wait()  # a thread that is gone is counted no more

    both = [threading.Thread(target=work) for _ in range(2)]
    for each in both:
        each.start()
    done.wait()
    laps = [clock.lap() for clock in clocks]
    leave.set()
    for each in both:
        each.join()
    return laps


def test_threads_that_come_later_move_gradients_unless_nobody_does() -> None:
    beside, alone = contended([RunQueueClock(threads()), RunQueueClock()], cpu_s=0.1)
    assert beside.communication_s > 0.05, "each waits while the other runs"
    assert alone.communication_s == 0
    assert alone.total_s >= beside.communication_s


def test_threads_that_compute_do_not() -> None:
    clock = RunQueueClock(threads())
    assert clock.lap().communication_s == 0
