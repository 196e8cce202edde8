"""What is compared is one thing with a saving and without; how much it brings is measured by `testbed bench hosts`."""

import numpy as np
import pytest

from transports.bench.savings import Compared, additions, kept_programs
from transports.channels.tcp import summation


def test_both_add_the_same() -> None:
    first, second = np.random.default_rng(1).random((2, 1001), np.float32)
    sums = []
    for vectors in (True, False):
        total = first.copy()
        summation(vectors=vectors)(total, second)
        sums.append(total)
    assert sums[0].tobytes() == sums[1].tobytes() == (first + second).tobytes()


def test_single_elements_are_not_faster_than_vectors() -> None:
    found = additions(1 << 14, num_samples=200)
    assert found.with_s > 0
    assert found.ratio > 1


def test_what_is_kept_need_not_be_worked_out_again() -> None:
    assert kept_programs(4096, num_samples=30).ratio > 1


def test_a_ratio_is_how_many_times_as_long_it_takes_without() -> None:
    assert Compared(with_s=2.0, without_s=3.0).ratio == pytest.approx(1.5)
