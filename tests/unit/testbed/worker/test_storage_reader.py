import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from testbed.control.worker import WorkerStorage
from testbed.worker import storage_reader
from testbed.worker.run_queue import threads
from testbed.worker.storage_node import Disk, serve
from testbed.worker.storage_reader import (
    Ahead,
    InMemory,
    OnDemand,
    StorageLostError,
    StorageReader,
    worker_input,
)

Read = tuple[str, float, float, int]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def served(listener: socket.socket, rate: float | None) -> None:
    threading.Thread(target=serve, args=(listener, Disk(rate), 1), daemon=True).start()


def test_what_is_read_is_reported_with_its_moments(listener: socket.socket) -> None:
    served(listener, None)
    found: list[Read] = []
    reader = StorageReader("127.0.0.1", port_of(listener), 5.0, lambda *read: found.append(read))
    before_s = time.monotonic()
    end_s = reader.read(3_000_000, "reading")
    assert reader.read(1, "batch") >= end_s
    reader.close()
    (what, begin_s, reported_s, num_bytes), (second, *_, one) = found
    assert (what, reported_s, num_bytes) == ("reading", end_s, 3_000_000)
    assert before_s <= begin_s <= end_s <= time.monotonic()
    assert (second, one) == ("batch", 1)


def test_a_long_reading_is_reported_in_pieces_without_gaps(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_reader, "_REPORT_S", 0.02)
    served(listener, 5e6)
    found: list[Read] = []
    reader = StorageReader("127.0.0.1", port_of(listener), 5.0, lambda *read: found.append(read))
    reader.read(1_000_000, "reading")
    reader.close()
    assert len(found) > 2
    assert sum(num_bytes for *_, num_bytes in found) == 1_000_000
    assert all(first[2] == second[1] for first, second in pairwise(found))


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


class AtOnce(ThreadPoolExecutor):
    """Does what is submitted before submitting returns."""

    def submit(self, function: Any, /, *arguments: Any, **keywords: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*arguments, **keywords))
        return done


def waited_s(monkeypatch: pytest.MonkeyPatch, *, reading_s: float, computing_s: float, num_phases: int) -> list[float]:
    """From where each of two iterations a phase begins until its batch is there, or negative; phases are 5 s apart."""
    clock = Clock()
    monkeypatch.setattr(storage_reader, "time", clock)
    ahead = Ahead(lambda: clock.now_s + reading_s, AtOnce())
    found = []
    for _ in range(num_phases):
        for _ in range(2):
            start_s = clock.now_s
            there_s = ahead.take(start_s)
            found.append(there_s - start_s)
            clock.now_s = max(clock.now_s, there_s)
            ahead.computing_from(clock.now_s)
            clock.sleep(computing_s)
        ahead.settle()
        clock.sleep(5.0)
        ahead.settle()
    return found


def test_what_is_left_of_reading_between_two_phases_is_left_to_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 80 ms of reading beside 20 ms of computing, 60 are waited for in each iteration, the first of a phase too."""
    found_s = waited_s(monkeypatch, reading_s=0.08, computing_s=0.02, num_phases=3)
    assert found_s == pytest.approx([0.08] + 5 * [0.06])


def test_what_was_read_before_a_phase_ended_is_known_for_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copy to the device goes on meanwhile: the first iteration of a phase waits for it no more than others do."""
    found_s = waited_s(monkeypatch, reading_s=0.005, computing_s=0.06, num_phases=2)
    assert found_s == pytest.approx([0.005] + 3 * [-0.055])


def test_a_node_that_says_nothing_is_lost(listener: socket.socket) -> None:
    reader = StorageReader("127.0.0.1", port_of(listener), 0.1, lambda *_: None)
    with pytest.raises(StorageLostError, match=r"d0 sent nothing for 0\.1 s .* 77 of 77 bytes"):
        reader.read(77, "reading")
    reader.close()


def test_a_node_that_closes_is_lost(listener: socket.socket) -> None:
    reader = StorageReader("127.0.0.1", port_of(listener), 5.0, lambda *_: None)
    connection, _ = listener.accept()
    connection.sendall(b"abc")
    connection.shutdown(socket.SHUT_WR)
    with pytest.raises(StorageLostError, match="closed the connection"):
        reader.read(77, "reading")
    reader.close()
    connection.close()


def test_a_node_that_is_not_there_is_waited_for_and_then_lost() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(StorageLostError, match="did not listen"):
            StorageReader("127.0.0.1", unused.getsockname()[1], 0.1, lambda *_: None)


class Batches:
    """Reads in no time, and notes when."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def __call__(self) -> float:
        self.at_s.append(time.monotonic())
        return self.at_s[-1]


def test_on_demand_a_batch_is_read_when_its_iteration_begins_and_not_before() -> None:
    batches = Batches()
    source = OnDemand(batches)
    start_s = time.monotonic() + 0.03
    assert source.take(start_s) == batches.at_s[0] >= start_s
    source.computing_from(time.monotonic())
    source.settle()
    assert len(batches.at_s) == 1, "one for each iteration"


def test_ahead_the_next_batch_is_read_once_the_place_of_this_one_is_free() -> None:
    batches = Batches()
    with ThreadPoolExecutor(1) as executor:
        source = Ahead(batches, executor)
        source.settle()
        first_s = source.take(time.monotonic())
        assert batches.at_s == [first_s]
        freed_s = time.monotonic()
        free_s = freed_s + 0.03
        source.computing_from(free_s)
        source.settle()
        assert batches.at_s[1] >= free_s
        start_s = time.monotonic()
        assert start_s <= source.take(start_s) <= start_s + batches.at_s[1] - freed_s, "what was left of it is left"
        source.computing_from(time.monotonic())
        source.settle()
        source.settle()
        assert len(batches.at_s) == 3, "as many as iterations, and the first of all"


def test_what_fails_while_reading_ahead_is_raised_where_the_batch_is_taken() -> None:
    def fail() -> float:
        raise StorageLostError("gone")

    with ThreadPoolExecutor(1) as executor:
        source = Ahead(fail, executor)
        with pytest.raises(StorageLostError, match="gone"):
            source.take(time.monotonic())


def test_without_storage_nothing_is_waited_for() -> None:
    with worker_input(None, 1.0, lambda *_: None) as source:
        assert not source.reads_at_start
        assert isinstance(source.batches, InMemory)
        assert source.batches.take(time.monotonic() + 99) is None


@pytest.mark.parametrize("prefetch", [True, False])
def test_whoever_reads_batches_has_one_connection_and_its_thread_from_the_beginning(
    listener: socket.socket, *, prefetch: bool
) -> None:
    served(listener, None)
    storage = WorkerStorage(
        address="127.0.0.1",
        port=port_of(listener),
        start_bytes=10,
        reads_at_start=True,
        batch_bytes=1000,
        prefetch=prefetch,
    )
    found: list[Read] = []
    with worker_input(storage, 5.0, lambda *read: found.append(read)) as source:
        source.read_at_start()
        before = threads()  # the node's own among them
        source.batches.take(time.monotonic())
        source.batches.computing_from(time.monotonic())
        source.batches.settle()
        assert threads() <= before
    assert [(what, num_bytes) for what, *_, num_bytes in found] == [
        ("reading", 10),
        *[("batch", 1000)] * (2 if prefetch else 1),
    ]


def test_leaving_ends_a_reading_that_is_under_way(listener: socket.socket) -> None:
    storage = WorkerStorage(
        address="127.0.0.1", port=port_of(listener), start_bytes=0, reads_at_start=False, batch_bytes=9, prefetch=True
    )
    begun_s = time.monotonic()
    with worker_input(storage, 60.0, lambda *_: None) as source:
        source.batches.computing_from(time.monotonic())
        time.sleep(0.05)
    assert time.monotonic() - begun_s < 30, "nobody ever answers"
