"""Who is put before whom; that the kernel does it is in tests/integration/test_gradient_threads.py."""

import os
import threading
from collections.abc import Iterator

import pytest

from testbed.runner.gradient_threads import GRADIENT_PRIORITY, GradientThreads


@pytest.fixture
def another() -> Iterator[int]:
    """A thread of this process beside the one of the test."""
    leave, ids = threading.Event(), list[int]()
    started = threading.Barrier(2)

    def wait() -> None:
        ids.append(threading.get_native_id())
        started.wait()
        leave.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    yield ids[0]
    leave.set()
    thread.join()


@pytest.fixture
def prioritised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []

    def keep(thread: int, policy: int, parameters: os.sched_param) -> None:
        assert (policy, parameters.sched_priority) == (os.SCHED_RR, GRADIENT_PRIORITY)
        found.append(thread)

    monkeypatch.setattr(os, "sched_setscheduler", keep)
    return found


def nobody() -> dict[str, int]:
    return {}


def me(name: str) -> dict[str, int]:
    return {name: os.getpid()}


def test_all_but_what_computes(another: int, prioritised: list[int]) -> None:
    threads = GradientThreads(lambda: me("w0"), nobody)
    threads.computes("w0", [threading.get_native_id()])
    threads.prioritise()
    assert another in prioritised
    assert threading.get_native_id() not in prioritised


def test_nobody_before_a_worker_has_said_what_computes(another: int, prioritised: list[int]) -> None:
    del another
    GradientThreads(lambda: me("w0"), lambda: me("ps0")).prioritise()
    assert not prioritised, "a server that runs before workers that do not is no comparison"


def test_servers_whole_and_workers_that_have_said_nothing_not_at_all(another: int, prioritised: list[int]) -> None:
    del another
    threads = GradientThreads(lambda: {"w0": os.getpid(), "w1": 2**22}, lambda: me("ps0"))
    threads.computes("w1", [2**22])
    threads.prioritise()
    assert threading.get_native_id() in prioritised, "of ps0, all"


def test_a_quota_would_not_hold_them(another: int, prioritised: list[int]) -> None:
    threads = GradientThreads(lambda: me("w0"), nobody, limited=["w0"])
    threads.computes("w0", [threading.get_native_id()])
    threads.prioritise()
    assert another not in prioritised


def test_a_thread_that_ends_meanwhile_is_none_of_anybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "sched_setscheduler", gone)
    threads = GradientThreads(lambda: me("w0"), nobody)
    threads.computes("w0", [])
    threads.prioritise()
    assert threads.refused is None


def test_a_machine_that_refuses_is_heard(monkeypatch: pytest.MonkeyPatch, another: int) -> None:
    del another

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    threads = GradientThreads(lambda: me("w0"), nobody)
    threads.computes("w0", [])
    threads.prioritise()
    assert threads.refused == "[Errno 1] Operation not permitted"
