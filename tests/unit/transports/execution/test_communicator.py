"""Work in the background: who is notified of what, on which thread, and what is left after an error."""

import queue
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from tests.threads import groups, run_communicators, run_threads
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES
from transports.compression.base import COMPRESSORS
from transports.errors import FrameMismatchError, OptionError, PeerLostError, PeerTimeoutError, TransportError
from transports.execution import communicator
from transports.execution.callbacks import CallbackThreads
from transports.execution.communicator import Communicator, Work
from transports.execution.operations import Transport
from transports.execution.trace import OperationTrace
from transports.group import Group

CHANNEL_KINDS = ("memory", "tcp")


def wait_for(event: threading.Event) -> None:
    assert event.wait(20)


def test_operations_run_in_the_order_given() -> None:
    def body(communicator: Communicator) -> list[float]:
        values = torch.ones(1000)
        works = [communicator.all_reduce(values) for _ in range(5)]
        for work in works:
            work.wait()
        return [float(values[0]), float(values[-1])]

    assert run_communicators(body, 3) == [[3.0**5] * 2] * 3


def test_waiting_gives_up_without_harm() -> None:
    def body(communicator: Communicator) -> float:
        release = threading.Event()
        work = communicator.submit("slow", lambda _: wait_for(release), 0)
        with pytest.raises(TimeoutError, match=r"0\.01 s"):
            work.wait(0.01)
        assert not work.done()
        release.set()
        work.wait()
        assert work.done()
        values = torch.ones(3)
        communicator.all_reduce(values).wait()
        return float(values.sum())

    assert run_communicators(body, 2) == [6.0, 6.0]


def test_callbacks_never_run_on_the_communication_thread() -> None:
    def body(communicator: Communicator) -> bool:
        release, threads = threading.Event(), []
        received = threading.Semaphore(0)

        def callback(error: BaseException | None) -> None:
            assert error is None
            threads.append(threading.get_native_id())
            received.release()

        work = communicator.submit("wait", lambda _: wait_for(release), 0)
        work.add_done_callback(callback)
        release.set()
        work.wait()
        work.add_done_callback(callback)  # one that comes late is called as well
        assert received.acquire(timeout=20)
        assert received.acquire(timeout=20)
        return communicator.thread_id not in threads and len(threads) == 2

    assert run_communicators(body, 1) == [True]


def test_each_callback_is_called_once_whenever_it_is_added() -> None:
    """Two threads add some while a third ends the work, twice, as after an exception of a signal's handler."""
    pool, num_threads, num_callbacks = CallbackThreads(4, "callback"), 2, 10
    every = sorted(product(("done", "end"), range(num_threads), range(num_callbacks)))

    def note(called: "queue.SimpleQueue[object]", kind: str, thread: int, number: int, _: BaseException | None) -> None:
        called.put((kind, thread, number))

    def add(work: Work, thread: int, meeting: threading.Barrier, called: "queue.SimpleQueue[object]") -> None:
        meeting.wait(20)
        for number in range(num_callbacks):
            work.add_end_callback(partial(note, called, "end", thread, number))
            work.add_done_callback(partial(note, called, "done", thread, number))

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            work, meeting = Work(pool), threading.Barrier(num_threads + 1)
            called: queue.SimpleQueue[Any] = queue.SimpleQueue()
            adding = [
                threading.Thread(target=add, args=(work, thread, meeting, called)) for thread in range(num_threads)
            ]
            for thread in adding:
                thread.start()
            meeting.wait(20)
            work.finish(None)
            work.finish(None)
            for thread in adding:
                thread.join()
            assert sorted(called.get(timeout=20) for _ in every) == every
            assert called.empty()
    finally:
        sys.setswitchinterval(interval_s)
        pool.shutdown(wait=True)


def test_a_callback_that_is_added_while_others_are_called_is_called_once() -> None:
    pool = CallbackThreads(1, "callback")
    work, called = Work(pool), list[str]()

    def first(_: BaseException | None) -> None:
        called.append("first")
        work.add_end_callback(lambda _: called.append("while"))

    work.add_end_callback(first)
    work.add_end_callback(lambda _: called.append("second"))
    work.finish(None)
    work.add_end_callback(lambda _: called.append("after"))
    assert called == ["first", "while", "second", "after"]
    pool.shutdown(wait=True)


def test_an_end_that_a_signals_handler_cuts_short_is_gone_on_with() -> None:
    pool = CallbackThreads(1, "callback")
    work, called = Work(pool), list[str]()
    failing = [KeyboardInterrupt()]

    def second(_: BaseException | None) -> None:
        if failing:
            raise failing.pop()
        called.append("second")

    work.add_end_callback(lambda _: called.append("first"))
    work.add_end_callback(second)
    work.add_end_callback(lambda _: called.append("third"))
    with pytest.raises(KeyboardInterrupt):
        work.finish(None)
    assert not work.is_over
    work.add_end_callback(lambda _: called.append("late"))
    work.finish(None)
    assert called == ["first", "late", "second", "third"]
    assert work.is_over
    pool.shutdown(wait=True)


def test_a_callback_may_wait_for_further_operations() -> None:
    """What deadlocks if callbacks run on the communication thread: the hook of PowerSGD does this."""

    def body(communicator: Communicator) -> float:
        values, over = torch.ones(10), threading.Event()

        def again(error: BaseException | None) -> None:
            communicator.all_reduce(values).wait()
            over.set()

        communicator.all_reduce(values).add_done_callback(again)
        assert over.wait(20)
        return float(values[0])

    assert run_communicators(body, 3) == [9.0] * 3


def test_a_job_of_several_phases_has_the_group_to_itself() -> None:
    def body(communicator: Communicator) -> tuple[float, float]:
        values, gathered = torch.ones(4), torch.empty(2)

        def job(transport: Transport) -> None:
            transport.all_reduce(values)
            communicator.all_reduce(values)  # queued behind the job, whatever comes next in it
            transport.all_gather(gathered, values[:1].clone())
            transport.broadcast(values, 1)
            transport.barrier()

        communicator.submit("phases", job, values.nbytes).wait()
        communicator.barrier().wait()
        return float(gathered.sum()), float(values[0])

    assert run_communicators(body, 2) == [(4.0, 4.0)] * 2


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
def test_two_ranks_may_send_before_they_receive(channel: str) -> None:
    def body(communicator: Communicator) -> bool:
        peer = 1 - communicator.rank
        sent, received = torch.full((3_000_000,), float(communicator.rank)), torch.empty(3_000_000)
        sending = communicator.send(sent, peer, tag=3)
        receiving = communicator.receive(received, peer, tag=3)
        sending.wait()
        receiving.wait()
        return bool((received == peer).all())

    assert run_communicators(body, 2, channel=channel) == [True, True]


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
def test_a_message_that_is_posted_while_another_waits_goes_out(channel: str) -> None:
    """Rank 0's receive is under way, and waits for what rank 1 only sends after rank 0's later send."""

    def body(communicator: Communicator) -> float:
        values = torch.full((1,), 5.0 + communicator.rank)
        if communicator.rank == 1:
            communicator.receive(values, 0).wait()
            communicator.send(values + 1, 0).wait()
            return float(values)
        answer = torch.zeros(1)
        receiving = communicator.receive(answer, 1)
        with pytest.raises(TimeoutError):
            receiving.wait(0.05)
        communicator.send(values, 1).wait()
        receiving.wait()
        return float(answer)

    assert run_communicators(body, 2, channel=channel) == [6.0, 5.0]


def test_messages_and_collectives_mix() -> None:
    def body(communicator: Communicator) -> list[float]:
        values = torch.full((8,), float(communicator.rank))
        communicator.all_reduce(values).wait()
        neighbour = (communicator.rank + 1) % 3
        received = torch.empty(8, 2)[:, 0]  # not contiguous
        sending = communicator.send(values, neighbour)
        communicator.receive(received, (communicator.rank - 1) % 3).wait()
        sending.wait()
        communicator.all_reduce(received, "max").wait()
        return received.tolist()

    assert run_communicators(body, 3) == [[3.0] * 8] * 3


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: torch.ones(6, 4).t(), torch.full((4, 6), 2.0)),
        (lambda: torch.ones(6, 4)[:, 1:3], torch.full((6, 2), 2.0)),
        (lambda: torch.ones(6, 4)[::2], torch.full((3, 4), 2.0)),
        (lambda: torch.tensor(1.0), torch.tensor(2.0)),
        (lambda: torch.ones(1).expand(1), torch.full((1,), 2.0)),
        (lambda: torch.empty(0, 3), torch.empty(0, 3)),
        (lambda: torch.ones(3, requires_grad=True), torch.full((3,), 2.0)),
    ],
    ids=["transposed", "columns", "rows", "scalar", "expanded", "empty", "parameter"],
)
def test_tensors_of_every_layout_work_in_place(make: Any, expected: torch.Tensor) -> None:
    def body(communicator: Communicator) -> torch.Tensor:
        values: torch.Tensor = make()
        communicator.all_reduce(values).wait()
        received = values.detach()
        communicator.broadcast(received, 1).wait()
        return received

    for result in run_communicators(body, 2):
        assert torch.equal(result, expected)


def test_only_the_chosen_part_of_a_larger_tensor_changes() -> None:
    def body(communicator: Communicator) -> torch.Tensor:
        whole = torch.ones(4, 4)
        communicator.all_reduce(whole[:, 1:3]).wait()
        return whole

    expected = torch.ones(4, 4)
    expected[:, 1:3] = 2
    for result in run_communicators(body, 2):
        assert torch.equal(result, expected)


def test_mistakes_are_given_to_the_caller_and_break_nothing() -> None:
    def body(communicator: Communicator) -> float:
        values = torch.ones(4)
        with pytest.raises(OptionError, match="'mean' is not a reduction; allowed: sum, product, min, max, avg"):
            communicator.all_reduce(values, "mean")  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="complex64 cannot be exchanged; allowed: uint8"):
            communicator.all_reduce(torch.ones(4, dtype=torch.complex64))
        with pytest.raises(OptionError, match="truth values have no average"):
            communicator.all_reduce(torch.ones(4, dtype=torch.bool), "avg")
        with pytest.raises(OptionError, match=r"on the CPU, not .* on meta"):
            communicator.all_reduce(torch.ones(4, device="meta"))
        with pytest.raises(OptionError, match="root 2 is not among 2 ranks"):
            communicator.broadcast(values, 2)
        with pytest.raises(OptionError, match=r"with 2 ranks 4 torch\.float32 go with 8, not with 4"):
            communicator.all_gather(values, values.clone())
        with pytest.raises(OptionError, match="with 2 ranks"):
            communicator.reduce_scatter(values, torch.ones(8, dtype=torch.float64))
        with pytest.raises(OptionError, match="cannot exchange messages with rank"):
            communicator.send(values, communicator.rank)
        with pytest.raises(OptionError, match="cannot exchange messages with rank 7"):
            communicator.receive(values, 7)
        with pytest.raises(OptionError, match="does not fit 64 bits"):
            communicator.send(values, 1 - communicator.rank, 2**63)
        freed = torch.ones(4)
        freed.untyped_storage().resize_(0)
        with pytest.raises(OptionError, match="its storage was freed"):
            communicator.all_reduce(freed)
        communicator.all_reduce(values).wait()
        return float(values.sum())

    assert run_communicators(body, 2) == [8.0, 8.0]


def spread(*shape: int) -> torch.Tensor:
    """One element that stands for all."""
    return torch.ones(1).expand(*shape)


WRITTEN: dict[str, Callable[[Communicator], Work]] = {
    "all_reduce": lambda each: each.all_reduce(spread(4)),
    "broadcast": lambda each: each.broadcast(spread(4)),
    "all_gather": lambda each: each.all_gather(spread(8), torch.ones(4)),
    "reduce_scatter": lambda each: each.reduce_scatter(spread(4), torch.ones(8)),
    "reduce": lambda each: each.reduce(spread(4), each.rank),
    "gather": lambda each: each.gather(spread(8), torch.ones(4), each.rank),
    "scatter": lambda each: each.scatter(spread(4), torch.ones(8), each.rank),
    "all_to_all": lambda each: each.all_to_all([spread(4), torch.ones(4)], [torch.ones(4), torch.ones(4)]),
    "receive": lambda each: each.receive(spread(4), 1 - each.rank),
    "receive from any": lambda each: each.receive(spread(4), None),
}
NEVER_EXCHANGED: dict[str, Callable[[Communicator], Work]] = {
    "all_gather": lambda each: each.all_gather(torch.ones(8, device="meta"), torch.ones(4, device="meta")),
    "all_gather input": lambda each: each.all_gather(torch.ones(8), torch.ones(4, device="meta")),
    "reduce_scatter input": lambda each: each.reduce_scatter(torch.ones(4), torch.ones(8, device="meta")),
    "gather": lambda each: each.gather(None, torch.ones(4).to_sparse(), 1 - each.rank),
    "scatter": lambda each: each.scatter(torch.ones(4).to_sparse(), None, 1 - each.rank),
    "all_to_all": lambda each: each.all_to_all([torch.ones(4)] * 2, [torch.ones(4), torch.ones(4, device="meta")]),
    "send": lambda each: each.send(torch.ones(4).to_sparse(), 1 - each.rank),
}


@pytest.mark.parametrize("start", [*WRITTEN.values(), *NEVER_EXCHANGED.values()], ids=[*WRITTEN, *NEVER_EXCHANGED])
def test_one_ranks_mistake_is_its_own(start: Callable[[Communicator], Work]) -> None:
    """It is raised where it was made, and later operations work."""

    def body(communicator: Communicator) -> float:
        if communicator.rank == 0:
            with pytest.raises(OptionError, match=r"share memory|dense and on the CPU"):
                start(communicator)
        values = torch.ones(4)
        communicator.all_reduce(values).wait()
        peer, received = 1 - communicator.rank, torch.zeros(4)
        sending = communicator.send(values, peer)
        communicator.receive(received, peer).wait()
        sending.wait()
        return float(received.sum())

    assert run_communicators(body, 2, timeout_s=10) == [8.0, 8.0]


def test_what_is_only_read_may_share_memory_and_be_negated() -> None:
    def body(communicator: Communicator) -> list[list[float]]:
        peer, received, gathered = 1 - communicator.rank, torch.zeros(3), torch.zeros(6)
        negated = torch.complex(torch.zeros(3), torch.full((3,), 1.0 + communicator.rank)).conj().imag
        assert negated.is_neg()
        communicator.all_gather(gathered, spread(3)).wait()
        sending = communicator.send(negated, peer)
        communicator.receive(received, peer).wait()
        sending.wait()
        communicator.all_reduce(negated).wait()
        return [gathered.tolist(), received.tolist(), negated.tolist()]

    assert run_communicators(body, 2) == [
        [[1.0] * 6, [-2.0] * 3, [-3.0] * 3],
        [[1.0] * 6, [-1.0] * 3, [-3.0] * 3],
    ]


def _wait_for(*works: Work) -> None:
    for work in works:
        work.wait()


def test_after_an_operation_that_failed_on_one_rank_alone_nothing_is_paired_with_the_others_last_one() -> None:
    """A gather's senders wait for nobody: what the root then got would be theirs of one call earlier, for ever."""

    def body(communicator: Communicator) -> str:
        def fail(transport: Transport) -> None:
            raise ValueError("no memory for the result")

        source, gathered = torch.full((1,), 10.0 + communicator.rank), torch.zeros(2)
        if communicator.rank == 0:
            with pytest.raises(ValueError, match="no memory"):
                communicator.submit("gather", fail, 0).wait()
            first = communicator.barrier()
        else:
            first = communicator.gather(None, source - 10)
        again = communicator.gather(gathered if communicator.rank == 0 else None, source)
        after = communicator.barrier()
        with pytest.raises((TransportError, ValueError)) as caught:
            _wait_for(first, again, after)
        assert gathered.tolist() == [0.0, 0.0]
        return type(caught.value).__name__

    assert run_communicators(body, 2, timeout_s=10) == ["ValueError", "PeerLostError"]


def test_a_job_that_fails_in_a_group_of_one_puts_nobody_out_of_step() -> None:
    def body(communicator: Communicator) -> float:
        def fail(transport: Transport) -> None:
            raise ValueError("a mistake")

        with pytest.raises(ValueError, match="a mistake"):
            communicator.submit("broken", fail, 0).wait()
        values = torch.ones(4)
        communicator.all_reduce(values).wait()
        return float(values.sum())

    assert run_communicators(body, 1) == [4.0]


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
def test_the_first_error_fails_all_that_comes_after_it(channel: str) -> None:
    def body(communicator: Communicator) -> BaseException | None:
        def fail(transport: Transport) -> None:
            transport.barrier()
            raise ValueError("a mistake in a compressor")

        if communicator.rank == 0:
            failed = communicator.submit("broken", fail, 0)
            queued = communicator.all_reduce(torch.ones(4))
            with pytest.raises(ValueError, match="a mistake in a compressor"):
                failed.wait()
            with pytest.raises(ValueError, match="a mistake in a compressor"):
                queued.wait()
            received: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
            communicator.barrier().add_done_callback(received.put)
            assert isinstance(received.get(timeout=20), ValueError)
            with pytest.raises(TransportError, match="a mistake in a compressor"):
                communicator.send(torch.ones(4), 1).wait(20)
            return None
        communicator.barrier().wait()
        with pytest.raises(PeerLostError) as raised:
            communicator.all_reduce(torch.ones(4)).wait()
        return raised.value

    started_s = time.monotonic()
    _, lost = run_communicators(body, 2, channel=channel, timeout_s=30)
    assert lost.peer == 0
    assert time.monotonic() - started_s < 15, "the peer noticed only at the timeout"


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
@pytest.mark.parametrize("size", [2, 4])
def test_a_peer_that_closes_is_lost_to_all(channel: str, size: int) -> None:
    def body(communicator: Communicator) -> int | None:
        values = torch.ones(200_000)
        for _ in range(3):
            communicator.all_reduce(values).wait()
        if communicator.rank == size - 1:
            communicator.close()
            return None
        with pytest.raises(PeerLostError) as raised:
            communicator.all_reduce(values).wait()
        return raised.value.peer

    results = run_communicators(body, size, channel=channel, timeout_s=30)
    assert results[:-1] == [size - 1] * (size - 1)


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
def test_a_hung_peer_times_out(channel: str) -> None:
    release = threading.Event()

    def body(communicator: Communicator) -> float | None:
        if communicator.rank == 1:
            release.wait(20)
            return None
        started_s = time.monotonic()
        with pytest.raises(PeerTimeoutError, match=r"all_reduce \(sum\) #1 of 4 .*timed out; no progress with rank 1"):
            communicator.all_reduce(torch.ones(4)).wait()
        waited_s = time.monotonic() - started_s
        release.set()
        return waited_s

    waited_s, _ = run_communicators(body, 2, channel=channel, timeout_s=0.4)
    assert 0.4 <= waited_s < 10


def test_a_barrier_may_have_a_timeout_of_its_own() -> None:
    release = threading.Event()

    def body(communicator: Communicator) -> None:
        if communicator.rank == 1:
            release.wait(20)
            return
        with pytest.raises(PeerTimeoutError):
            communicator.barrier(timeout_s=0.2).wait(10)
        release.set()

    assert run_communicators(body, 2, timeout_s=30) == [None, None]


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
def test_different_operations_name_both_sides(channel: str) -> None:
    def body(communicator: Communicator) -> BaseException | None:
        values = torch.ones(64)
        work = communicator.all_reduce(values) if communicator.rank else communicator.broadcast(values, 1)
        try:
            work.wait()
        except TransportError as error:
            return error
        return None

    errors = run_communicators(body, 2, channel=channel)
    mismatches = [str(error) for error in errors if isinstance(error, FrameMismatchError)]
    assert mismatches
    assert "rank 1 sends all_reduce (sum) #1 of 64 float32 (256 B), message 0: 32 float32; " in mismatches[0]
    assert "rank 0 expects broadcast (from rank 1) #1 of 64 float32 (256 B), message 0" in mismatches[0]


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
def test_different_sizes_are_reported_as_those_of_the_tensors(channel: str) -> None:
    def body(communicator: Communicator) -> str:
        with pytest.raises(TransportError) as raised:
            communicator.all_reduce(torch.ones(1000 + communicator.rank)).wait()
        return str(raised.value)

    received = run_communicators(body, 2, channel=channel)
    assert any("of 1000 float32 (4000 B)" in each and "of 1001 float32 (4004 B)" in each for each in received)


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
def test_different_reductions_are_an_error_and_no_number(channel: str) -> None:
    def body(communicator: Communicator) -> BaseException | None:
        work = communicator.all_reduce(torch.ones(64), "avg" if communicator.rank else "sum")
        try:
            work.wait()
        except TransportError as error:
            return error
        return None

    errors = run_communicators(body, 2, channel=channel)
    assert None not in errors
    received = [str(error) for error in errors if isinstance(error, FrameMismatchError)]
    assert any("all_reduce (avg) #1" in text and "all_reduce (sum) #1" in text for text in received)


@pytest.mark.parametrize("channel", CHANNEL_KINDS)
def test_different_roots_are_an_error_and_no_number(channel: str) -> None:
    def body(communicator: Communicator) -> BaseException | None:
        try:
            communicator.broadcast(torch.ones(64), 1 if communicator.rank == 2 else 0).wait()
            communicator.barrier().wait()
        except TransportError as error:
            return error
        return None

    errors = run_communicators(body, 3, channel=channel, timeout_s=5)
    assert None not in errors
    assert any(isinstance(error, FrameMismatchError) and "from rank" in str(error) for error in errors)


def test_closing_fails_what_is_under_way_and_queued() -> None:
    def body(communicator: Communicator) -> None:
        if communicator.rank == 1:
            return
        works = [communicator.barrier() for _ in range(3)]
        communicator.close()
        for work in (*works, communicator.barrier()):
            with pytest.raises(TransportError):
                work.wait(20)
        communicator.close()

    assert run_communicators(body, 2) == [None, None]


def test_callbacks_are_called_after_the_group_was_closed() -> None:
    """Whoever waits for a callback, as torch's futures do, would otherwise wait for ever."""

    def body(communicator: Communicator) -> list[type[BaseException] | None]:
        over = communicator.submit("over", lambda _: None, 0)
        over.wait()
        release = threading.Event()
        communicator.submit("slow", lambda _: wait_for(release), 0)
        queued = communicator.barrier()
        closing = threading.Thread(target=communicator.close)
        closing.start()
        release.set()
        closing.join(20)
        received: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        for work in (over, queued, communicator.barrier()):
            work.add_done_callback(received.put)
        return [error and type(error) for error in (received.get(timeout=5) for _ in range(3))]

    assert run_communicators(body, 1) == [[None, TransportError, TransportError]]


def test_traces_lie_on_one_time_line() -> None:
    traces: list[OperationTrace] = []
    lock = threading.Lock()

    def keep(trace: OperationTrace) -> None:
        with lock:
            traces.append(trace)

    def body(communicator: Communicator) -> None:
        communicator.all_reduce(torch.ones(1000)).wait()
        communicator.barrier().wait()
        communicator.all_reduce(torch.ones(0)).wait()

    before_s = time.monotonic()
    assert run_communicators(body, 2, channel="tcp", on_trace=keep) == [None, None]
    assert sorted((trace.sequence, trace.operation, trace.size_bytes) for trace in traces) == sorted(
        2 * [(1, "all_reduce", 4000), (2, "barrier", 0), (3, "all_reduce", 0)]
    )
    for trace in traces:
        assert before_s <= trace.enqueued_s <= trace.started_s <= trace.first_byte_s <= trace.done_s <= time.monotonic()
        if trace.sequence == 3:
            assert trace.first_byte_s == trace.done_s


def test_threads_end_with_the_group() -> None:
    def body(communicator: Communicator) -> None:
        work = communicator.all_reduce(torch.ones(10))
        work.add_done_callback(lambda error: None)
        work.wait()

    run_communicators(body, 2)
    deadline_s = time.monotonic() + 20
    while named := [thread.name for thread in threading.enumerate() if " of " in thread.name]:
        assert time.monotonic() < deadline_s, f"still running: {named}"


EXIT = """
import sys, threading, torch
from tests.threads import groups
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES
from transports.execution.communicator import Communicator, Work
opened = [None, None]
def life(group):
    opened[group.rank] = Communicator(COLLECTIVES.parse("ring"), CHANNELS.parse("tcp"), group)
threads = [threading.Thread(target=life, args=(group,)) for group in groups(2, timeout_s=600)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sent = opened[1].send(torch.ones(4), 0)
opened[0].receive(torch.ones(4), 1).wait()
opened[0].receive(torch.ones(4), 1).add_done_callback(print)
opened[0].send(torch.ones(1_000_000), 1)
work = opened[0].all_reduce(torch.ones(4))
work.add_done_callback(print)
print("the end", flush=True)
"""


def test_a_process_ends_with_its_group_open_and_operations_under_way() -> None:
    ended = subprocess.run([sys.executable, "-c", EXIT], check=True, timeout=60, capture_output=True, text=True)
    assert ended.stdout.startswith("the end")
    assert "Traceback" not in ended.stderr


def test_what_a_compressor_keeps_it_keeps_by_shape() -> None:
    """Sums of one shape, over many rounds, come to what was to be summed: each gets back what it left out itself."""
    num_rounds = 40

    def body(communicator: Communicator) -> list[float]:
        shares = []
        totals = {shape: torch.zeros(shape) for shape in ((4, 5), (30,))}
        for _ in range(num_rounds):
            for shape, total in totals.items():
                tensor = torch.arange(1.0, 1.0 + total.numel()).view(shape)
                communicator.all_reduce(tensor).wait()
                total.add_(tensor)
        for total in totals.values():
            exact = 2 * num_rounds * torch.arange(1.0, 1.0 + total.numel()).view(total.shape)
            shares.append(float((total - exact).norm() / exact.norm()))
        return shares

    compression = COMPRESSORS.parse({"kind": "top_k", "ratio": 0.2})
    for shares in run_communicators(body, 2, compression=compression):
        assert max(shares) < 0.2


def test_whoever_waits_at_once_carries_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation is reported on the thread that ran it."""
    monkeypatch.setattr(communicator, "HAND_OVER_S", 20.0)  # however late this thread comes to wait

    def life(group: Group) -> list[bool]:
        ran_here: list[bool] = []
        caller = threading.get_ident()
        tcp = CHANNELS.parse("tcp")

        def on_trace(_: OperationTrace) -> None:
            ran_here.append(threading.get_ident() == caller)

        with closing(Communicator(COLLECTIVES.parse("auto"), tcp, group, on_trace)) as opened:
            values = torch.ones(4)
            opened.all_reduce(values).wait()
            opened.broadcast(values).wait()
            opened.barrier().wait()
            first, second = opened.all_reduce(values), opened.all_reduce(values)
            second.wait()
            first.wait()
            left = opened.all_reduce(values)
            left.add_done_callback(lambda _: None)
            left.wait()
            opened.all_reduce(values).wait(20)
            opened.all_reduce(values, "avg").wait()
            assert values.eq(32.0).all(), values
        return ran_here

    for ran_here in run_threads(life, groups(2)):
        assert ran_here == [True] * 3 + [False] * 5


def test_an_operation_that_nobody_waits_for_is_carried_out() -> None:
    def life(opened: Communicator) -> None:
        values = torch.ones(4)
        work = opened.all_reduce(values)
        deadline_s = time.monotonic() + 20
        while not values.eq(2.0).all():
            assert time.monotonic() < deadline_s
            time.sleep(1e-3)
        while not work.is_over:  # what is received is there a moment before that is said
            assert time.monotonic() < deadline_s
            time.sleep(1e-3)

    assert run_communicators(life, 2, channel="tcp") == [None] * 2


def test_threads_that_wait_side_by_side_keep_the_order() -> None:
    """Each thread starts an operation, and waits, while another has one under way; all ranks start them alike."""
    num_rounds = 200

    def life(opened: Communicator) -> None:
        tensors = [torch.full((number % 7 + 1,), 1.0) for number in range(num_rounds)]
        works: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        failed: list[BaseException] = []

        def wait() -> None:
            while (work := works.get()) is not None:
                try:
                    work.wait(20)
                except BaseException as error:  # noqa: BLE001 - passed on below
                    failed.append(error)

        other = threading.Thread(target=wait)
        other.start()
        for number, tensor in enumerate(tensors):
            work = opened.all_reduce(tensor)
            works.put(work)
            if number % 3:
                work.wait()
        works.put(None)
        other.join()
        assert not failed, failed
        assert all(tensor.eq(3.0).all() for tensor in tensors)

    assert run_communicators(life, 3, channel="tcp") == [None] * 3


@pytest.mark.parametrize("waits", [True, False])
def test_a_tensor_freed_before_its_turn_is_reported_and_ends_the_group(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicator, "HAND_OVER_S", 20.0)  # its turn comes after that, however late it is freed

    def life(opened: Communicator) -> None:
        freed, values = torch.ones(4), torch.ones(4)
        work = opened.all_reduce(freed)
        freed.untyped_storage().resize_(0)
        if not waits:
            work.add_done_callback(lambda _: None)
        with pytest.raises(OptionError, match="its storage was freed"):
            work.wait()
        with pytest.raises((OptionError, TransportError)):
            opened.all_reduce(values).wait(20)
        assert values.eq(1.0).all(), "others may be another operation behind"

    assert run_communicators(life, 2, channel="tcp") == [None] * 2


INTERRUPTED = """
import signal, sys, threading, time, torch
from tests.threads import groups
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES
from transports.errors import TransportError
from transports.execution.communicator import Communicator
first, second = groups(2)
opened = {}
def open(group):
    opened[group.rank] = Communicator(COLLECTIVES.parse("ring"), CHANNELS.parse("tcp"), group)
thread = threading.Thread(target=open, args=(second,))
thread.start(); open(first); thread.join()
class Interrupted(Exception): pass
def handle(*_):
    if sys.argv[1] == "close": opened[0].close()
    elif sys.argv[1] == "wait": opened[0].barrier().wait()
    else: raise Interrupted
signal.signal(signal.SIGALRM, handle)
values, others = torch.ones(4), torch.ones(4)
signal.setitimer(signal.ITIMER_REAL, 0.2)
work = opened[0].all_reduce(values)
try:
    work.wait()
except (Interrupted, TransportError, RuntimeError) as error:
    print(type(error).__name__, error)
if sys.argv[1] == "raise":
    opened[1].all_reduce(others).wait()
    work.wait()
    print(values.tolist())
    done = opened[1].all_reduce(others)
    done.add_done_callback(lambda _: None)
    opened[0].all_reduce(values).wait()
    done.wait()
    print(values.tolist(), others.tolist())
"""


def test_an_interruption_before_memory_has_an_address_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and then the kernel was given address 0, or that of memory that had been given back."""
    monkeypatch.setattr(communicator, "HAND_OVER_S", 20.0)
    interrupting = [KeyboardInterrupt()]

    class Memory(np.ndarray[Any, Any]):
        @property
        def ctypes(self) -> Any:
            if interrupting:
                raise interrupting.pop()
            return super().ctypes

    empty = np.empty
    monkeypatch.setattr(np, "empty", lambda *arguments: empty(*arguments).view(Memory))

    def body(opened: Communicator) -> tuple[float, bool]:
        values, was_interrupted = torch.ones(3000), False
        work = opened.all_reduce(values)
        try:
            work.wait()
        except KeyboardInterrupt:
            was_interrupted = True
            work.wait()
        return float(values.sum()), was_interrupted

    results = run_communicators(body, 2, channel="tcp")
    assert sorted(results, key=str) == [(6000.0, False), (6000.0, True)]


INTERRUPTED_OFTEN = """
import random, signal, sys, threading, torch
from tests.threads import groups
from transports.channels.base import CHANNELS
from transports.collectives.base import COLLECTIVES
from transports.execution.communicator import Communicator
ROUNDS = 300
members, traces, failed = groups(2), [], []
def other():
    opened = Communicator(COLLECTIVES.parse("ring"), CHANNELS.parse("tcp"), members[1])
    values = torch.ones(3000)
    for number in range(ROUNDS):
        values.fill_(number)
        opened.all_reduce(values).wait()
        if not values.eq(number + 1).all(): failed.append(number)
    done.wait()
    opened.close()
done = threading.Event()
thread = threading.Thread(target=other)
thread.start()
opened = Communicator(COLLECTIVES.parse("ring"), CHANNELS.parse("tcp"), members[0], traces.append)
class Interrupted(Exception): pass
waiting, num_interrupted = False, 0
def handle(*_):
    if waiting: raise Interrupted
signal.signal(signal.SIGALRM, handle)
values, generator = torch.ones(3000), random.Random(1)
for number in range(ROUNDS):
    values.fill_(1)
    work = opened.all_reduce(values)
    signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-6, 400e-6))
    while True:
        try:
            try:
                waiting = True
                work.wait()
            finally:
                waiting = False
            break
        except Interrupted:
            num_interrupted += 1
    if not values.eq(number + 1).all(): failed.append(number)
signal.setitimer(signal.ITIMER_REAL, 0)
done.set()
thread.join()
opened.close()
print(failed, len(traces), num_interrupted > ROUNDS / 20)
"""


def run_script(script: str, *arguments: str) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-c", script, *arguments], check=True, timeout=60, capture_output=True, text=True
    )
    assert not ended.stderr, ended.stderr
    return ended.stdout.splitlines()


def interrupted(how: str) -> list[str]:
    return run_script(INTERRUPTED, how)


def test_an_operation_whose_wait_was_interrupted_goes_on() -> None:
    assert interrupted("raise") == ["Interrupted ", "[2.0, 2.0, 2.0, 2.0]", f"{[4.0] * 4} {[4.0] * 4}"]


def test_a_signals_handler_may_close_the_group_that_is_waited_for() -> None:
    assert interrupted("close") == ["TransportError rank 0 closed the group itself"]


def test_wherever_a_wait_is_interrupted_each_operation_is_done_once() -> None:
    assert run_script(INTERRUPTED_OFTEN) == ["[] 300 True"]


def test_a_signals_handler_that_waits_inside_an_operation_is_refused() -> None:
    (line,) = interrupted("wait")
    assert line.startswith("RuntimeError a signal's handler cannot wait for a collective"), line


def test_another_thread_may_close_the_group_that_is_waited_for() -> None:
    is_closed = threading.Event()

    def life(opened: Communicator) -> str:
        if opened.rank == 1:
            wait_for(is_closed)
            return ""
        timer = threading.Timer(0.1, opened.close)
        timer.start()
        with pytest.raises(TransportError) as raised:
            opened.all_reduce(torch.ones(4)).wait()
        timer.join()
        is_closed.set()
        return str(raised.value)

    assert run_communicators(life, 2, channel="tcp") == ["rank 0 closed the group itself", ""]


def test_an_error_that_a_waiter_comes_upon_fails_what_other_threads_have_queued() -> None:
    def life(opened: Communicator) -> list[str]:
        if opened.rank == 1:
            opened.all_reduce(torch.ones(4)).wait(20)
            return []
        opened.all_reduce(torch.ones(4)).wait(20)
        errors: list[str] = []
        begun = threading.Event()

        def queue_another() -> None:
            wait_for(begun)
            time.sleep(0.05)  # the other waits, or has failed: it gets the same error either way
            with pytest.raises(PeerLostError) as raised:
                opened.all_reduce(torch.ones(4)).wait(20)
            errors.append(str(raised.value))

        thread = threading.Thread(target=queue_another)
        thread.start()
        begun.set()
        with pytest.raises(PeerLostError) as raised:
            opened.all_reduce(torch.ones(4)).wait()
        thread.join()
        return [*errors, str(raised.value)]

    found, _ = run_communicators(life, 2, channel="tcp")
    assert len(found) == 2
    assert all(each.startswith("rank 1 is lost") for each in found), found


def test_groups_may_be_waited_for_in_any_order() -> None:
    """Whoever waits in one group carries nothing out in the other, whose operation has to go on all the same."""

    def life(members: tuple[Group, Group]) -> list[float]:
        ring, tcp, values = COLLECTIVES.parse("ring"), CHANNELS.parse("tcp"), torch.ones(2)
        with closing(Communicator(ring, tcp, members[0])) as one, closing(Communicator(ring, tcp, members[1])) as two:
            for _ in range(20):
                works = [one.all_reduce(values[:1]), two.all_reduce(values[1:])]
                for work in works if members[0].rank else works[::-1]:
                    work.wait()
        return values.tolist()

    assert run_threads(life, list(zip(groups(2), groups(2), strict=True))) == [[2.0**20] * 2] * 2


def test_a_work_that_is_over_keeps_no_tensor() -> None:
    def life(opened: Communicator) -> bool:
        values, others = torch.ones(4), torch.ones(4)
        kept = [opened.all_reduce(values), opened.all_reduce(others, "avg")]
        references = [weakref.ref(values), weakref.ref(others)]
        for work in kept:
            work.wait()
        del values, others
        deadline_s = time.monotonic() + 20
        while any(reference() is not None for reference in references):
            assert time.monotonic() < deadline_s
            time.sleep(1e-3)
        return True

    assert run_communicators(life, 2, channel="tcp") == [True] * 2
