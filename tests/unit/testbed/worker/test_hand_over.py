"""Buckets are handed over when they are due, and filling one takes none of the next one's time."""

import threading
import time
from collections.abc import Iterable
from functools import partial

import pytest
import torch

from testbed.traces.schedule import ComputeSchedule
from testbed.traces.table import Layer, LayerTable
from testbed.worker.compute_pacer import SchedulePacer, StretchingPacer
from testbed.worker.hand_over import HandOver

TABLE = LayerTable(layers=tuple(Layer(name=name, forward_s=0.02, backward_s=0.05, size_bytes=4) for name in "ab"))


@pytest.fixture
def parameters() -> list[torch.Tensor]:
    return [torch.zeros(1), torch.zeros(1)]


@pytest.fixture
def pacer(parameters: list[torch.Tensor]) -> SchedulePacer:
    made = SchedulePacer(ComputeSchedule.of(TABLE))
    made.bind(parameters)
    return made


def completed(value: float) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(torch.tensor([value]))
    return future


def test_the_next_bucket_is_filled_while_the_first_is_not_yet_due(
    pacer: SchedulePacer, parameters: list[torch.Tensor]
) -> None:
    hand_over, started_s = HandOver(pacer), dict[float, float]()

    def starting(value: float) -> torch.futures.Future[torch.Tensor]:
        started_s[value] = time.monotonic()
        return completed(value)

    begun_s = pacer.begin(1.0)
    back = hand_over.started_when_due(parameters[1:], lambda: starting(2.0))
    time.sleep(
        0.06
    )  # of filling the front layer's, which would be 0.03 s late if it began when the back layer's is due
    front = hand_over.started_when_due(parameters[:1], lambda: starting(1.0))
    assert time.monotonic() < begun_s + 0.09, "nobody has waited"
    assert (back.wait().item(), front.wait().item()) == (2.0, 1.0)
    assert begun_s + 0.09 <= started_s[2.0] <= started_s[1.0]
    assert begun_s + 0.14 <= started_s[1.0]
    assert pacer.overrun_s <= max(started_s[2.0] - begun_s - 0.09, started_s[1.0] - begun_s - 0.14)


def test_a_bucket_that_is_filled_too_late_is_counted(pacer: SchedulePacer, parameters: list[torch.Tensor]) -> None:
    hand_over = HandOver(pacer)
    pacer.begin(1.0)
    time.sleep(0.16)
    hand_over.started_when_due(parameters, lambda: completed(1.0)).wait()
    assert pacer.overrun_s >= 0.02


def _failed() -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_exception(ConnectionError("rank 1 is gone"))  # type: ignore[arg-type]
    return future


def _refused() -> torch.futures.Future[torch.Tensor]:
    raise ConnectionError("rank 1 is gone")


@pytest.mark.parametrize("start", [_failed, _refused])
def test_what_goes_wrong_is_raised_where_the_bucket_is_waited_for_and_others_go_on(
    pacer: SchedulePacer, parameters: list[torch.Tensor], start: "object"
) -> None:
    hand_over = HandOver(pacer)
    pacer.begin(0.01)
    with pytest.raises(RuntimeError, match="rank 1 is gone"):
        hand_over.started_when_due(parameters, start).wait()  # type: ignore[arg-type]
    assert hand_over.started_when_due(parameters, lambda: completed(3.0)).wait().item() == 3.0


def test_whoever_waits_for_it_waits_for_all_and_an_error_stops_no_other(
    pacer: SchedulePacer, parameters: list[torch.Tensor]
) -> None:
    hand_over, called = HandOver(pacer), list[int]()

    def call(number: int) -> None:
        called.append(number)
        if number == 0:
            raise ConnectionError

    pacer.begin(0.1)
    for number in range(3):
        hand_over.call_when_due(parameters, partial(call, number))
    hand_over.wait()
    assert called == [0, 1, 2]


def test_where_nothing_is_due_it_is_handed_over_at_once_by_the_caller(parameters: list[torch.Tensor]) -> None:
    hand_over, called = HandOver(StretchingPacer()), list[str]()
    hand_over.call_when_due(parameters, lambda: called.append(threading.current_thread().name))
    assert called == [threading.current_thread().name]
    assert hand_over.started_when_due(parameters, lambda: completed(1.0)).wait().item() == 1.0
    hand_over.wait()


def test_its_thread_is_there_before_anything_is_handed_over(pacer: SchedulePacer) -> None:
    def names() -> Iterable[str]:
        return [thread.name for thread in threading.enumerate()]

    before = list(names()).count("hand-over")
    HandOver(pacer)
    assert list(names()).count("hand-over") == before + 1
