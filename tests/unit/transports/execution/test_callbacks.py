"""Callbacks have threads as long as they need them, and what they know is let go afterwards."""

import gc
import logging
import queue
import subprocess
import sys
import threading
import weakref

import pytest

from transports.execution.callbacks import CallbackThreads

ENDING = """
import threading, time
from transports.execution.callbacks import CallbackThreads
threads = CallbackThreads(1, "callback")
begun = threading.Event()
threads.submit(lambda _: (begun.set(), time.sleep(0.2), print("first", flush=True)), None)
threads.submit(lambda _: print("second", flush=True), None)
begun.wait()
"""


def test_as_many_wait_for_each_other_as_there_may_be_threads() -> None:
    threads, meeting = CallbackThreads(4, "callback"), threading.Barrier(4)
    met: queue.SimpleQueue[int] = queue.SimpleQueue()
    for _ in range(4):
        threads.submit(lambda _: met.put(meeting.wait(20)), None)
    assert {met.get(timeout=20) for _ in range(4)} == {0, 1, 2, 3}
    threads.shutdown(wait=True)


def test_no_more_threads_than_callbacks_at_a_time_nor_than_are_allowed() -> None:
    threads = CallbackThreads(2, "callback")
    names: queue.SimpleQueue[str] = queue.SimpleQueue()
    release = threading.Event()

    def callback(_: BaseException | None) -> None:
        names.put(threading.current_thread().name)
        release.wait(20)

    for _ in range(5):
        threads.submit(callback, None)
    assert {names.get(timeout=20) for _ in range(2)} == {"callback_0", "callback_1"}
    assert names.empty()
    release.set()
    assert {names.get(timeout=20) for _ in range(3)} <= {"callback_0", "callback_1"}
    threads.shutdown(wait=True)


def test_a_thread_that_is_idle_is_taken_again() -> None:
    threads = CallbackThreads(8, "callback")
    called: queue.SimpleQueue[int] = queue.SimpleQueue()
    for _ in range(20):
        threads.submit(lambda _: called.put(threading.get_ident()), None)
        first = called.get(timeout=20)
        while not threads._idle:  # it is about to say so
            pass
    assert first == threads._threads[0].ident
    assert len(threads._threads) == 1
    threads.shutdown(wait=True)


def test_what_was_submitted_is_called_and_nothing_afterwards() -> None:
    threads = CallbackThreads(2, "callback")
    errors: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    reason = ValueError("lost")
    for _ in range(10):
        threads.submit(errors.put, reason)
    threads.shutdown()
    threads.shutdown(wait=True)
    assert [errors.get_nowait() for _ in range(10)] == [reason] * 10
    with pytest.raises(RuntimeError, match="callback: no threads"):
        threads.submit(errors.put, None)
    assert not any(thread.is_alive() for thread in threads._threads)


def test_one_that_fails_is_logged_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    threads = CallbackThreads(1, "callback")
    called: queue.SimpleQueue[None] = queue.SimpleQueue()

    def fail(_: BaseException | None) -> None:
        raise SystemExit("enough")

    with caplog.at_level(logging.ERROR):
        threads.submit(fail, None)
        threads.submit(lambda _: called.put(None), None)
        called.get(timeout=20)
    assert "callback: a callback failed" in caplog.text
    assert "enough" in caplog.text
    threads.shutdown(wait=True)


def test_a_thread_that_waits_holds_nothing() -> None:
    class Known:
        def call(self, error: BaseException | None) -> None:
            pass

    threads, known = CallbackThreads(1, "callback"), Known()
    gone = weakref.ref(known)
    threads.submit(known.call, None)
    del known
    called: queue.SimpleQueue[None] = queue.SimpleQueue()
    threads.submit(lambda _: called.put(None), None)
    called.get(timeout=20)
    gc.collect()
    assert gone() is None
    threads.shutdown(wait=True)


def test_a_process_ends_after_its_callbacks() -> None:
    script = f"import transports.execution.communicator\n{ENDING}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "first\nsecond\n"
    assert done.stderr == ""
