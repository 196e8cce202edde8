"""Real computing that is stretched, and computing that a schedule holds."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from testbed.traces.schedule import ComputeSchedule
from testbed.traces.table import Layer, LayerTable
from testbed.worker.compute_pacer import SchedulePacer, StretchingPacer

TABLE = LayerTable(
    layers=(Layer("front", 0.01, 0.02, 4, None, ((1, 1),)), Layer("back", 0.02, 0.03, 4, None, ((1, 1),))),
    update_s=0.005,
)


def busy(time_s: float) -> None:
    deadline_s = time.monotonic() + time_s
    while time.monotonic() < deadline_s:
        pass


@pytest.fixture
def slept_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was to be slept, each time: on a busy machine a sleep lasts longer than that. Threads that a test
    before this one left in the process sleep, too."""
    slept_s: list[float] = []
    sleep, here = time.sleep, threading.get_ident()

    def note(time_s: float) -> None:
        if threading.get_ident() == here:
            slept_s.append(time_s)
        sleep(time_s)

    monkeypatch.setattr(time, "sleep", note)
    return slept_s


def test_stretched_computing_takes_as_many_times_as_long_and_the_waiting_between_is_left_alone(
    slept_s: list[float],
) -> None:
    pacer = StretchingPacer()
    start_s = pacer.begin(3.0)
    busy(0.01)
    computed_s = time.monotonic()
    forward_end_s = pacer.forward_ended()
    assert forward_end_s - start_s >= 3 * (computed_s - start_s)
    pacer.before_waiting(())
    busy(0.05)  # a wait for a gradient
    slept_s.clear()
    resumed_s = time.monotonic()
    pacer.after_waiting(0.05)
    pacer.update(0.0)
    updated_s = pacer.update_ended()
    # Of what has passed since the wait, two thirds at most was the stretching of the other third.
    assert sum(slept_s) <= 2 / 3 * (updated_s - resumed_s), "the wait was stretched"
    assert pacer.pace_s == pacer.overrun_s == 0


def test_computing_without_slowdown_or_pace_is_not_waited_for(slept_s: list[float]) -> None:
    pacer = StretchingPacer()
    pacer.begin(1.0)
    busy(0.02)
    for step in (pacer.forward_ended, pacer.backward_ended, pacer.update_ended):
        step()
    assert sum(slept_s) == 0


@pytest.fixture
def parameters() -> list[torch.Tensor]:
    return [torch.zeros(1), torch.zeros(1)]


@pytest.fixture
def pacer(parameters: list[torch.Tensor]) -> SchedulePacer:
    made = SchedulePacer(ComputeSchedule.of(TABLE))
    made.bind(parameters)
    return made


def moments(expected: float | tuple[float, ...]) -> Any:
    """Within a microsecond: a millionth of the clock, which is what `approx` allows else, is 5 ms after 83 minutes."""
    return pytest.approx(expected, abs=1e-6)


def moment(step: Callable[[], object]) -> float:
    """Seconds of the clock when the step has returned."""
    step()
    return time.monotonic()


@pytest.mark.parametrize("slowdown", [1.0, 2.0])
def test_gradients_are_handed_over_when_they_are_due_and_never_before(
    pacer: SchedulePacer, parameters: list[torch.Tensor], slowdown: float
) -> None:
    front, back = parameters
    begun_s = pacer.begin(slowdown)
    assert pacer.forward_ended() == moments(begun_s + slowdown * 0.03)
    back_s = moment(lambda: pacer.hand_over([back]))
    assert back_s >= begun_s + slowdown * 0.06
    both_s = moment(lambda: pacer.hand_over([front, back]))
    assert both_s >= begun_s + slowdown * 0.08
    late_s = max(back_s - begun_s - slowdown * 0.06, both_s - begun_s - slowdown * 0.08)
    assert 0 <= pacer.overrun_s <= late_s
    assert pacer.pace_s == pytest.approx(slowdown * 0.085)


def test_what_the_host_spends_lies_inside_the_wait(
    pacer: SchedulePacer, parameters: list[torch.Tensor], slept_s: list[float]
) -> None:
    begun_s = pacer.begin(1.0)
    busy(0.02)  # of the forward pass and backward of the back layer
    assert pacer.forward_ended() == moments(begun_s + 0.03)
    pacer.hand_over(parameters[1:])
    assert sum(slept_s) <= 0.06 - 0.02 + 1e-9
    pacer.update(begun_s + 0.1)
    busy(0.01)  # the optimizer, twice as long as the device's
    assert pacer.update_ended() == pacer.end() == moments(begun_s + 0.105)
    assert pacer.begin(1.0) == moments(begun_s + 0.105), "the next one begins when the device's step has ended"


def test_a_host_that_is_too_slow_is_counted(pacer: SchedulePacer, parameters: list[torch.Tensor]) -> None:
    pacer.begin(1.0)
    busy(0.1)
    pacer.hand_over(parameters)
    assert pacer.overrun_s >= 0.02
    pacer.update(time.monotonic())
    pacer.restart()
    pacer.begin(1.0)
    assert pacer.overrun_s == 0


def test_waiting_for_a_gradient_in_the_forward_pass_puts_everything_off(
    pacer: SchedulePacer, parameters: list[torch.Tensor]
) -> None:
    begun_s = pacer.begin(1.0)
    assert moment(lambda: pacer.before_waiting(parameters[1:])) >= begun_s + 0.01
    pacer.after_waiting(0.5)
    assert pacer.forward_ended() == moments(begun_s + 0.53)


def test_after_a_barrier_nothing_follows_the_iteration_before(pacer: SchedulePacer) -> None:
    pacer.begin(1.0)
    pacer.update(time.monotonic())
    step_end_s = pacer.end()
    assert moment(pacer.restart) >= step_end_s
    before_s = time.monotonic()
    assert before_s <= pacer.begin(1.0) <= time.monotonic()


def test_an_iteration_waits_for_its_input(parameters: list[torch.Tensor]) -> None:
    table = replace(TABLE, input_s=0.15, host_to_device_s=0.05)
    pacer = SchedulePacer(ComputeSchedule.of(table))
    pacer.bind(parameters)
    begun_s = pacer.begin(1.0)
    # Computing takes 0.085 s with its step, so loading the next batch goes on for 0.065 s after it.
    assert pacer.data_loaded(None) == moments((begun_s + 0.065, begun_s + 0.115))
    pacer.update(begun_s + 0.195)
    assert pacer.begin(1.0) == moments(begun_s + 0.2)
    assert pacer.data_loaded(None) == moments((begun_s + 0.265, begun_s + 0.315))
    assert pacer.forward_ended() == moments(begun_s + 0.345)


def test_input_that_is_waited_for_decides_how_long_every_iteration_takes(parameters: list[torch.Tensor]) -> None:
    """The first after a barrier too, else the mean of few iterations is below what loading needs."""
    table = replace(TABLE, input_s=0.15, host_to_device_s=0.05)
    pacer = SchedulePacer(ComputeSchedule.of(table))
    pacer.bind(parameters)
    for phase in range(2):
        if phase:
            pacer.restart()
        begun_s, ends_s = pacer.begin(1.0), []
        for _ in range(2):
            pacer.data_loaded(None)
            pacer.update(pacer.forward_ended() + 0.05)
            ends_s.append(pacer.begin(1.0))
        assert [end_s - begun_s for end_s in ends_s] == pytest.approx([0.2, 0.4])


def test_input_that_computing_hides_is_waited_for_in_no_iteration(parameters: list[torch.Tensor]) -> None:
    """Neither after a barrier: the host has had the batch for longer than its copy takes."""
    pacer = SchedulePacer(ComputeSchedule.of(replace(TABLE, input_s=0.02, host_to_device_s=0.05)))
    pacer.bind(parameters)
    for phase in range(2):
        if phase:
            pacer.restart()
        for _ in range(2):
            begun_s = pacer.begin(1.0)
            assert pacer.data_loaded(None) == pytest.approx((begun_s, begun_s))
            pacer.update(pacer.forward_ended() + 0.05)


@pytest.mark.parametrize(
    ("read_s", "moments"),
    [
        (-0.2, (0.0, 0.0)),  # read and copied before the iteration began
        (-0.02, (0.0, 0.03)),  # read before, copied within
        (0.04, (0.04, 0.09)),
    ],
)
def test_what_is_read_from_storage_is_copied_behind_it(
    parameters: list[torch.Tensor], read_s: float, moments: tuple[float, float]
) -> None:
    pacer = SchedulePacer(ComputeSchedule.of(LayerTable(layers=TABLE.layers, host_to_device_s=0.05)))
    pacer.bind(parameters)
    begun_s = pacer.begin(1.0)
    assert pacer.data_loaded(begun_s + read_s) == pytest.approx([begun_s + each for each in moments])


def test_reading_is_not_stretched(slept_s: list[float]) -> None:
    pacer = StretchingPacer()
    pacer.begin(3.0)
    time.sleep(0.05)
    there = pacer.data_loaded(time.monotonic())
    slept_s.clear()
    # Of what has passed since it was read, two thirds at most was the stretching of the other third.
    assert pacer.forward_ended() - there.copied_s >= 3 / 2 * sum(slept_s), "reading was stretched"


def test_a_model_with_other_tensors_than_the_schedule_is_refused(pacer: SchedulePacer) -> None:
    with pytest.raises(ValueError, match="zip"):
        pacer.bind([torch.zeros(1)])
