"""Works without a group: what is waited for, and what is read from a future, well or badly."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _register_work

from transports.errors import PeerLostError, TransportError
from transports.execution.callbacks import CallbackThreads
from transports.execution.communicator import Work
from transports.torch_backend.works import Operation, Receipt

LOST = PeerLostError(3, "it closed the connection")


@pytest.fixture
def ours() -> Any:
    pool = CallbackThreads(4, "callback")
    yield Work(pool)
    pool.shutdown(wait=True)


def after(seconds: float, what: Any) -> None:
    threading.Timer(seconds, what).start()


def test_it_is_done_with_its_future_and_value(ours: Work) -> None:
    value = [torch.ones(2)]
    operation = Operation([ours], value)
    assert not operation.is_completed()
    after(0.05, lambda: ours.finish(None))
    assert operation.wait() is True
    future = operation.get_future()
    assert future.done()
    assert future.value() is value
    assert operation.result() is value
    assert operation.is_completed()


def test_what_is_left_to_do_is_done_before_anybody_hears_of_the_end(ours: Work) -> None:
    value: list[int] = []
    operation = Operation([ours], value, lambda: value.append(1))
    future = operation.get_future()
    ours.finish(None)
    assert future.wait() == [1]


def test_several_are_done_when_the_last_is_and_the_first_error_counts() -> None:
    pool = CallbackThreads(2, "callback")
    works = [Work(pool) for _ in range(3)]
    operation = Operation(works, None)
    works[1].finish(LOST)
    works[0].finish(TransportError("later"))
    assert not operation.is_completed()
    works[2].finish(None)
    with pytest.raises(dist.DistBackendError, match="rank 3 is lost"):
        operation.wait()
    pool.shutdown(wait=True)


@pytest.mark.parametrize("early", [True, False])
def test_a_failure_is_readable_wherever_it_is_read_and_however_often(ours: Work, early: bool) -> None:
    operation = Operation([ours], None)
    future = operation.get_future() if early else None
    ours.finish(LOST)
    for look in (operation.wait, operation.result):
        with pytest.raises(dist.DistBackendError, match=r"^rank 3 is lost: it closed the connection$") as raised:
            look()
        assert raised.value.__cause__ is LOST
    future = future or operation.get_future()
    for look in (future.wait, future.value, future.value):
        with pytest.raises(RuntimeError) as read:
            look()
        assert str(read.value).splitlines() == [
            "Unable to cast Python instance of type 'none', for the operation failed.",
            "PeerLostError: rank 3 is lost: it closed the connection",
        ]
    with pytest.raises(RuntimeError, match="rank 3 is lost: it closed the connection"):
        future.then(lambda done: done.value()).wait()


def test_no_text_of_an_error_harms_the_process(ours: Work) -> None:
    """A zero byte ends a string of C++; half of a surrogate pair is none at all."""
    future = Operation([ours], None).get_future()
    ours.finish(TransportError("before\0after \ud800 end"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"TransportError: before after \\ud800 end$"):
            future.wait()


def test_cpp_that_waits_alone_hears_of_a_failure(ours: Work) -> None:
    tensor = torch.ones(2)
    _register_work(tensor, Operation([ours], None))
    after(0.05, lambda: ours.finish(LOST))
    with pytest.raises(RuntimeError, match="rank 3 is lost: it closed the connection"):
        torch.ops._c10d_functional.wait_tensor(tensor)


def test_waiting_has_a_limit_that_harms_nothing(ours: Work) -> None:
    operation = Operation([ours], [])
    begun_s = time.monotonic()
    with pytest.raises(dist.DistBackendError, match=r"timed out: it is not done after 0:00:00\.1"):
        operation.wait(timedelta(seconds=0.1))
    assert 0.1 <= time.monotonic() - begun_s < 5
    ours.finish(None)
    assert operation.wait()


def test_a_receipt_says_who_sent(ours: Work) -> None:
    receipt = Receipt(ours, [])
    ours.source = 2
    ours.finish(None)
    assert receipt.wait()
    assert receipt._source_rank() == 2
