import time

import pytest

from testbed.worker.compute_pacer import ComputePacer


def compute(time_s: float) -> None:
    end_s = time.monotonic() + time_s
    while time.monotonic() < end_s:
        pass


def test_computing_takes_so_many_times_as_long_and_what_lies_between_does_not() -> None:
    pacer = ComputePacer()
    pacer.factor = 3.0
    begun_s, cpu_s = time.monotonic(), time.thread_time()
    pacer.begin()
    compute(0.02)
    pacer.stretch()
    compute(0.01)
    pacer.stretch()
    stretched_s = time.monotonic() - begun_s
    assert stretched_s >= 3 * 0.03
    assert time.thread_time() - cpu_s < 0.5 * stretched_s, "waiting uses no core"
    time.sleep(0.05)
    again_s = time.monotonic()
    pacer.begin()
    pacer.stretch()
    assert time.monotonic() - again_s < 0.05, "what lies between is not stretched"


@pytest.mark.parametrize("factor", [1.0])
def test_no_slowdown_waits_for_nothing(factor: float) -> None:
    pacer = ComputePacer()
    pacer.factor = factor
    assert pacer.factor == 1
    pacer.begin()
    time.sleep(0.1)
    begun_s = time.monotonic()
    pacer.stretch()
    assert time.monotonic() - begun_s < 0.05
