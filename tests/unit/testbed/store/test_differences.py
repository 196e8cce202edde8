import math
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.record.reader import load_frame
from testbed.store.differences import RunValues, block_length, difference
from testbed.verdict.parts import per_iteration

NUM_PAIRS = int(os.environ.get("COMPARED_PAIRS", "200"))
RUN_NOISE = 0.005
"""Relative standard deviation of runs' means: the quickstart on two cores, repeated, has 0.2 to 0.4 %."""


def runs(*means: float, start: int = 0, step: int = 2) -> list[RunValues]:
    return [RunValues(f"2026-01-01T00:{start + step * index:02d}:00", [mean]) for index, mean in enumerate(means)]


def test_pairs_made_in_turns_lose_their_drift() -> None:
    drift = [1.0, 1.2, 1.4, 1.6, 1.8]
    first = runs(*drift, start=0)
    second = runs(*(1.03 * each * (1 + 0.001 * (-1) ** index) for index, each in enumerate(drift)), start=1)
    found = difference(first, second)
    assert (found.basis, found.num_first, found.num_second) == ("pairs", 5, 5)
    assert found.distinguishable
    assert found.low is not None
    assert found.high is not None
    assert 1.028 < found.low < found.ratio < found.high < 1.032
    apart = difference(first, runs(*(run.mean for run in second), start=20, step=2))
    assert apart.basis == "runs"
    assert not apart.distinguishable, "one after the other, drift is noise"


def test_two_runs_of_each_need_a_large_difference() -> None:
    small = difference(runs(1.0, 1.02), runs(1.05, 1.06, start=1))
    assert small.basis == "pairs"
    assert not small.distinguishable, "t of one degree of freedom is 12.7"
    assert difference(runs(1.0, 1.02), runs(3.0, 3.05, start=1)).distinguishable


def test_of_one_run_only_the_noise_within_it_is_known() -> None:
    random = np.random.default_rng(1)
    first = RunValues("2026-01-01", list(1 + 0.01 * random.standard_normal(40)))
    second = RunValues("2026-01-02", list(2 + 0.01 * random.standard_normal(40)))
    found = difference([first], [second])
    assert found.basis == "one run"
    assert found.low is not None
    assert found.high is not None
    assert 1.98 < found.low < 2 < found.high < 2.02
    assert not found.distinguishable, "runs may differ by more than iterations do"
    short = difference([first], [RunValues("2026-01-02", [1.0, 1.1])])
    assert (short.low, short.high) == (None, None)


def test_the_same_numbers_are_the_same() -> None:
    found = difference(runs(1.0, 1.0, 1.0), runs(1.0, 1.0, 1.0, start=1))
    assert (found.ratio, found.low, found.high, found.distinguishable) == (1.0, 1.0, 1.0, False)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_has_no_ratio_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        difference(runs(1.0, 1.0), runs(1.0, value, start=1))
    with pytest.raises(ValueError, match="without a run"):
        difference([], runs(1.0))


def test_a_long_series_needs_no_more_memory_than_a_short_one() -> None:
    """100 kB an iteration would be 20 GB."""
    random = np.random.default_rng(1)
    first, second = (list(1 + 0.01 * random.standard_normal(200_000)) for _ in range(2))
    tracemalloc.start()
    found = difference([RunValues("2026-01-01T00:00:00", first)], [RunValues("2026-01-01T00:01:00", second)])
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.low is not None
    assert found.high is not None
    assert 0.9998 < found.low < found.ratio < found.high < 1.0002
    assert peak_bytes < 100e6


def test_a_block_is_as_long_as_neighbours_are_alike() -> None:
    random = np.random.default_rng(2)
    white = random.standard_normal(400)
    smooth = np.convolve(random.standard_normal(420), np.ones(20), "valid")
    assert block_length(white) <= 10
    assert 12 <= block_length(smooth) <= 60
    assert block_length(np.ones(30)) == 3


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=6), st.lists(st.floats(0.1, 10), min_size=2, max_size=6))
@example([1.25, 1.09765625], [2.859375, 5.0625, 9.9375])
def test_an_interval_has_its_ratio_in_it_and_turns_with_it(first: list[float], second: list[float]) -> None:
    there, back = difference(runs(*first), runs(*second, start=1)), difference(runs(*second, start=1), runs(*first))
    assert there.low is not None
    assert there.high is not None
    assert back.high is not None
    assert there.low <= there.ratio * (1 + 1e-9)
    assert there.ratio <= there.high * (1 + 1e-9)
    assert there.ratio * back.ratio == pytest.approx(1)
    assert there.distinguishable == back.distinguishable


def test_five_repetitions_find_three_percent_and_seldom_find_nothing() -> None:
    """Pairs of settings with the noise of a real record: its iterations, in blocks, times what runs differ by."""
    frame = load_frame(Path("tests/records/version_3"), "iterations")
    times_s = per_iteration(frame, num_workers=4, dilation=1.0)["time_s"].to_numpy()
    random = np.random.default_rng(3)

    def run(at: int, mean: float) -> RunValues:
        begin = random.integers(0, len(times_s))
        values = mean * np.exp(RUN_NOISE * random.standard_normal()) * np.roll(times_s, begin)
        return RunValues(f"2026-01-01T{at:04d}", list(values))

    found = {1.0: 0, 1.03: 0}
    for _ in range(NUM_PAIRS // 2):
        for factor in found:
            first = [run(2 * index, 1.0) for index in range(5)]
            second = [run(2 * index + 1, factor) for index in range(5)]
            found[factor] += difference(first, second).distinguishable
    assert found[1.0] <= 0.05 * NUM_PAIRS / 2 + 2 * math.sqrt(0.05 * 0.95 * NUM_PAIRS / 2), "false alarms"
    assert found[1.03] >= 0.8 * NUM_PAIRS / 2
