"""Which threads' waiting counts as communication's, with real threads that want the same core."""

import hashlib
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from testbed.worker.run_queue import RunQueueClock, RunQueueDelay, run_queue_delays_s, threads, waited_s

_BLOCK = bytes(1 << 20)
"""Hashed without the interpreter's lock."""


def contended(clocks: Sequence[RunQueueClock], *, cpu_s: float) -> list[RunQueueDelay]:
    """Laps of these clocks around two threads that want the same core until each of them has had it for so long."""
    core = min(os.sched_getaffinity(0))
    begun, done, leave = threading.Barrier(2), threading.Barrier(3), threading.Event()

    def work() -> None:
        os.sched_setaffinity(threading.get_native_id(), {core})
        begun.wait()
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


def test_another_process_waits_for_the_core_that_it_shares_and_has_no_threads_when_it_has_ended() -> None:
    core = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    both = [subprocess.Popen(["python3", "-c", spin]) for _ in range(2)]
    try:
        before: dict[int, dict[int, float]] = {each.pid: {} for each in both}
        deadline_s = time.monotonic() + 20
        while any(waited_s(before[each.pid], run_queue_delays_s(each.pid)) < 0.05 for each in both):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    finally:
        for each in both:
            each.kill()
            each.wait()
    assert run_queue_delays_s(both[0].pid) == {}


def test_threads_that_ended_in_between_are_left_out_and_those_that_began_count_whole() -> None:
    assert waited_s({1: 1.0, 2: 5.0}, {1: 1.5, 3: 0.25}) == 0.75


def test_threads_that_a_library_has_for_the_whole_process_can_be_left_out() -> None:
    """As gRPC's, which the control plane has started before a channel moves anything over them."""
    leave = threading.Event()
    named: list[int] = []

    def work() -> None:
        Path("/proc/thread-self/comm").write_text("event_engine")
        named.append(threading.get_native_id())
        begun.set()
        leave.wait()

    begun = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    found = threads(), threads(without={"event_engine"}), threads(without={"lifeguard"})
    leave.set()
    thread.join()
    everyone, without_it, without_another = ({*named} <= each for each in found)
    assert (everyone, without_it, without_another) == (True, False, True)
