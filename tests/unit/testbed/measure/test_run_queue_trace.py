"""Waits host by host; whether the kernel says the truth of them is in tests/integration/test_run_queue_trace.py."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from testbed.errors import MissingRequirementError
from testbed.measure import run_queue_trace
from testbed.measure.run_queue_trace import WAIT, HostWait, RunQueueWatch, by_host, ran_s, root_threads


def test_waits_of_a_host_that_touch_are_one_and_threads_that_compute_are_apart() -> None:
    waits = np.array(
        [
            (1_000_000_000, 1_200_000_000, 0, 7, 70),
            (1_100_000_000, 1_300_000_000, 0, 7, 71),
            (1_300_010_000, 1_400_000_000, 90_000_000, 7, 70),
            (1_400_030_000, 1_500_000_000, 0, 7, 70),
            (1_000_000_000, 2_000_000_000, 0, 7, 72),
            (1_000_000_000, 1_100_000_000, 0, 8, 80),
        ],
        dtype=WAIT,
    )
    found = list(by_host(waits, {7: "w0", 8: "ps0"}, frozenset({72})))
    assert [each[:2] for each in found] == [("w0", False), ("w0", False), ("w0", True), ("ps0", False)]
    spans = [each[3:] for each in found]
    assert np.allclose(spans, [(1.0, 1.4), (1.40003, 1.5), (1.0, 2.0), (1.0, 1.1)]), "gaps of 10 and of 30 us"
    assert list(by_host(waits[:0], {}, frozenset())) == []


def test_a_thread_that_computes_waits_behind_its_own_process_thread_first_and_then_behind_others() -> None:
    waits = np.array(
        [
            (1_000_000_000, 1_300_000_000, 100_000_000, 7, 72),
            (2_000_000_000, 2_100_000_000, 100_000_003, 7, 72),
            (3_000_000_000, 3_100_000_000, 50_000_000, 7, 70),
        ],
        dtype=WAIT,
    )
    found = list(by_host(waits, {7: "w0"}, frozenset({72})))
    assert [each[:3] for each in found] == [
        ("w0", False, False),
        ("w0", True, False),
        ("w0", True, True),
        ("w0", True, True),
    ]
    assert np.allclose([each[3:] for each in found], [(3.0, 3.1), (1.1, 1.3), (1.0, 1.1), (2.0, 2.1)])


def test_threads_are_known_by_their_ids_in_both_namespaces() -> None:
    own = threading.get_native_id()
    assert root_threads(os.getpid(), [own]) == {own}, "here they are the same, or tests run in a pid namespace"
    assert root_threads(os.getpid(), [2**22]) == frozenset()
    assert root_threads(2**22, [1]) == frozenset(), "a process that has ended"


def test_a_thread_has_run_for_so_long_and_one_that_has_ended_for_no_time() -> None:
    begun_s = time.thread_time()
    while time.thread_time() - begun_s < 0.01:
        pass
    assert ran_s(threading.get_native_id()) > 0.009
    assert ran_s(2**22) == 0.0


def test_where_nothing_can_be_traced_the_reason_is_kept_and_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise MissingRequirementError("no eBPF: not here")

    monkeypatch.setattr(run_queue_trace, "RunQueueTrace", refused)
    watch = RunQueueWatch(lambda: {"w0": os.getpid()})
    assert watch.missing == "no eBPF: not here"
    watch.computes([os.getpid()])
    assert watch.take() == []
    watch.close()


def test_a_wait_without_room_is_a_reason_for_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def follow(self, processes: list[int]) -> None:
            assert list(processes) == [7]

        def take(self) -> run_queue_trace.Waits:
            return run_queue_trace.Waits(np.array([(10**9, 2 * 10**9, 0, 7, 70)], dtype=WAIT), 3)

        def close(self) -> None:
            pass

    monkeypatch.setattr(run_queue_trace, "RunQueueTrace", Full)
    watch = RunQueueWatch(lambda: {"w0": 7})
    assert watch.missing is None
    assert watch.take() == [HostWait("w0", False, False, 1.0, 2.0)]
    assert watch.missing == "there was no room for 3 of them"
    watch.close()
    assert watch.take() == []


def test_in_a_pid_namespace_of_its_own_the_testbed_traces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pids would be others' there, and nobody would seem to wait."""
    stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda path: stat(Path("/proc/self/ns/net" if path.name == "pid" else path)))
    with pytest.raises(MissingRequirementError, match="--pid=host"):
        run_queue_trace.RunQueueTrace()
