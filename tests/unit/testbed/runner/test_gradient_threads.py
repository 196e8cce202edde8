"""Who is put before whom; that the kernel does it is in tests/integration/test_gradient_threads.py."""

import os
import threading
from collections.abc import Iterator

import pytest

import testbed.runner.gradient_threads
from testbed.measure.run_queue_trace import threads_of
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


def test_the_storage_node_has_a_machine_of_its_own_and_moves_no_gradients(
    another: int, prioritised: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads are put first and read back as all others are, and are not counted among those of gradients."""
    del another
    threads = GradientThreads(lambda: {"w0": os.getpid()}, lambda: me("d0"))
    threads.computes("w0", threads_of(os.getpid()))
    threads.prioritise()
    assert set(prioritised) == threads_of(os.getpid()), "of d0, all"
    found = threads.read_back()
    assert found is not None
    assert any(each.startswith("d0: ") for each in found.ordinary)
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_RR)
    monkeypatch.setattr(os, "sched_getparam", lambda _: os.sched_param(GRADIENT_PRIORITY))
    assert threads.read_back() == (0, [])


def test_one_that_is_started_meanwhile_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a thread whose turn has not come it inherits nothing."""
    leave, later, prioritised = threading.Event(), list[threading.Thread](), list[int]()

    def keep(thread: int, *_: object) -> None:
        prioritised.append(thread)
        if not later:
            later.append(threading.Thread(target=leave.wait))
            later[0].start()

    monkeypatch.setattr(os, "sched_setscheduler", keep)
    threads = GradientThreads(lambda: me("w0"), nobody)
    threads.computes("w0", [])
    threads.prioritise()
    leave.set()
    later[0].join()
    assert later[0].native_id in prioritised
    assert len(prioritised) == len({*prioritised})


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


def test_who_is_not_run_as_requested_is_named_and_who_computes_is_not(another: int) -> None:
    threads = GradientThreads(lambda: me("w0"), nobody)
    assert threads.read_back() is None, "nobody has requested anything"
    own = threading.get_native_id()
    threads.computes("w0", [another])
    found = threads.read_back()
    assert found is not None
    assert found.num_first == 0
    assert any(each.startswith("w0: ") and f"(thread {own}) is in SCHED_OTHER" in each for each in found.ordinary)
    assert not any(f"thread {another})" in each for each in found.ordinary)
    threads.computes("w0", [own, another])
    now = threads.read_back()
    assert now is not None
    assert not any(f"thread {own})" in each for each in now.ordinary)


def test_who_is_run_as_requested_is_counted(another: int, monkeypatch: pytest.MonkeyPatch) -> None:
    priorities = {another: os.sched_param(2)}
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_RR)
    monkeypatch.setattr(os, "sched_getparam", lambda each: priorities.get(each, os.sched_param(GRADIENT_PRIORITY)))
    monkeypatch.setattr(testbed.runner.gradient_threads, "LEAST_RUN_S", 0.0)
    threads = GradientThreads(lambda: me("w0"), nobody)
    threads.computes("w0", [])
    found = threads.read_back()
    assert found is not None
    assert found.num_first == len(threads_of(os.getpid())) - 1
    (other,) = found.ordinary
    assert other.endswith(f"(thread {another}) is in SCHED_RR at 2"), "somebody else has set it"


def test_a_thread_that_has_not_run_has_moved_nothing(another: int) -> None:
    threads = GradientThreads(lambda: me("w0"), nobody)
    threads.computes("w0", [threading.get_native_id()])
    found = threads.read_back()
    assert found is not None
    assert not any(f"thread {another})" in each for each in found.ordinary)


def test_nothing_is_read_back_of_a_machine_that_refuses_nor_of_hosts_with_a_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limited = GradientThreads(lambda: me("w0"), nobody, limited=["w0"])
    limited.computes("w0", [])
    assert limited.read_back() == (0, [])

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    threads = GradientThreads(lambda: me("w0"), nobody)
    threads.computes("w0", [])
    threads.prioritise()
    assert threads.read_back() is None
