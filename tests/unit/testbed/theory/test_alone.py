"""What workers do without each other."""

import pytest

from testbed.theory.alone import alone_s


def test_throughputs_add_up() -> None:
    assert alone_s(0.3, [[1, 1, 1, 1]]) == pytest.approx(0.3)
    assert alone_s(0.3, [[1, 1, 1, 2]]) == pytest.approx(4 / (3 / 0.3 + 1 / 0.6))


def test_each_worker_counts_with_its_mean_over_iterations() -> None:
    assert alone_s(1.0, [[1, 3], [3, 1]]) == pytest.approx(2.0)
    assert alone_s(1.0, [[1, 1], [1, 3]]) == pytest.approx(2 / (1 + 1 / 2))


def test_input_that_takes_longer_decides_in_the_iterations_in_which_it_does() -> None:
    factors = [[1.0, 1.0], [3.0, 1.0]]
    # The first worker's mean is (0.2 + 0.3) / 2, the other's 0.2.
    assert alone_s(0.1, factors, input_s=0.2) == pytest.approx(2 / (1 / 0.25 + 1 / 0.2))
    assert alone_s(0.0, factors) == 0.0
