"""Errors of threads come out where these are joined."""

import threading

import pytest

from testbed.worker.raising_threads import RaisingThreads


def test_the_first_error_is_raised_when_all_have_ended() -> None:
    first, done = threading.Event(), []

    def early() -> None:
        first.set()
        raise ValueError("early")

    def late() -> None:
        first.wait(10)
        done.append("late")
        raise KeyError("late")

    threads = RaisingThreads()
    threads.start(late, name="late")
    threads.start(early, name="early")
    with pytest.raises((ValueError, KeyError)):
        threads.join()
    assert done == ["late"], "all were waited for"


def test_without_errors_nothing_is_raised() -> None:
    done: list[str] = []
    threads = RaisingThreads()
    threads.start(lambda: done.append(threading.current_thread().name), name="only")
    threads.join()
    assert done == ["only"]
    RaisingThreads().join()
