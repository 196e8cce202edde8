"""When a stream has followed its link to another rate."""

import math

import numpy as np
import pytest

from testbed.benchmarks.link_changes import HELD_S, WINDOW_S, settling_s

FRAME_BYTES = 65_536


def arrivals(*pieces: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Super-frames at each rate for so many seconds, one piece after the other; a rate of 0 is silence."""
    moments, start_s = [], 0.0
    for rate_bps, duration_s in pieces:
        if rate_bps > 0:
            moments += list(np.arange(start_s, start_s + duration_s, FRAME_BYTES * 8 / rate_bps))
        start_s += duration_s
    return np.asarray(moments), np.full(len(moments), float(FRAME_BYTES))


@pytest.mark.parametrize(("before_bps", "after_bps"), [(100e6, 50e6), (50e6, 100e6)])
def test_a_link_that_turns_at_once_is_seen_within_a_window(before_bps: float, after_bps: float) -> None:
    at_s, sizes = arrivals((before_bps, 1.0), (after_bps, 1.0))
    assert settling_s(at_s, sizes, changed_s=1.0, rate_bps=after_bps) <= WINDOW_S + 0.02


def test_a_link_that_turns_late_is_distinguished_from_one_that_turns_at_once() -> None:
    at_s, sizes = arrivals((100e6, 1.3), (50e6, 1.0))
    assert 0.3 <= settling_s(at_s, sizes, changed_s=1.0, rate_bps=50e6) <= 0.3 + WINDOW_S + 0.02


def test_a_rate_that_is_only_passed_or_never_there_is_not_reached() -> None:
    at_s, sizes = arrivals((100e6, 1.0), (50e6, HELD_S), (25e6, 1.0))
    assert math.isinf(settling_s(at_s, sizes, changed_s=1.0, rate_bps=50e6))
    assert math.isinf(settling_s(at_s, sizes, changed_s=1.0, rate_bps=10e6))


def test_a_stream_that_pauses_has_not_reached_it_yet() -> None:
    at_s, sizes = arrivals((100e6, 1.0), (0, 0.1), (50e6, 1.0))
    assert settling_s(at_s, sizes, changed_s=1.0, rate_bps=50e6) >= 0.1
