import math

import pytest

from testbed.verdict.dilation import Interval, compare, overall


def runs(*times_s: float) -> dict[str, list[float]]:
    return {"iteration_time_s": list(times_s)}


def test_the_interval_of_a_mean_is_students() -> None:
    # Calculated manually: s = 1, t(0.975, 2) = 4.30, 4.30 / sqrt(3) = 2.48.
    found = Interval.of([9.0, 10.0, 11.0])
    assert (found.mean, found.low, found.high) == (
        10.0,
        pytest.approx(7.517, abs=1e-3),
        pytest.approx(12.483, abs=1e-3),
    )
    assert Interval.of([5.0]) == Interval(mean=5.0, low=-math.inf, high=math.inf)
    many = Interval.of([9.0, 11.0] * 50)
    assert many.high - many.mean == pytest.approx(1.984 * 1.00504 / 10, rel=0.01)


def test_equal_times_agree_and_others_differ() -> None:
    compared = compare({1: runs(0.100, 0.101, 0.102), 2: runs(0.100, 0.101, 0.1021), 4: runs(0.120, 0.121, 0.122)})
    assert [each.agreement for each in compared] == [None, "agrees", "differs"]
    assert compared[2].ratio is not None
    assert compared[2].ratio.mean == pytest.approx(1.198, abs=1e-3)
    assert overall(compared) == "differs"
    assert overall(compared[:2]) == "agrees"


def test_what_a_round_has_in_common_is_no_difference() -> None:
    """Each round on a machine loaded otherwise: times vary by a third, their ratios hardly."""
    compared = compare({1: runs(0.10, 0.13, 0.11, 0.12), 2: runs(0.1005, 0.1302, 0.1103, 0.1201)})
    assert compared[1].agreement == "agrees"


@pytest.mark.parametrize("second", [(0.103,), (0.100,)])
def test_one_run_decides_nothing(second: tuple[float, ...]) -> None:
    assert overall(compare({1: runs(0.100), 2: runs(*second)})) == "undecided"


def test_intervals_across_the_tolerance_are_undecided_until_it_is_wider() -> None:
    measured: dict[float, dict[str, list[float]]] = {1: runs(0.100, 0.100, 0.100), 2: runs(0.100, 0.104, 0.108)}
    assert overall(compare(measured)) == "undecided"
    assert overall(compare(measured, tolerance=0.3)) == "agrees"
