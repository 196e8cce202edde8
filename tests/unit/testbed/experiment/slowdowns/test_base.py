"""Every value on the axis draws factors that are slowdowns, with the mean it says, the same from the same seed."""

from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.experiment.slowdowns.base import MAX_FACTOR, SLOWDOWNS, describe, iteration_random, parse_slowdown
from transports.errors import OptionError

MEANS = {"constant": 2.0, "uniform": 1.5, "exponential": 1.5, "lognormal": 1.5, "bernoulli": 1.4}


@pytest.mark.parametrize("kind", SLOWDOWNS.kinds())
def test_factors_slow_down_and_are_the_same_from_the_same_seed(kind: str) -> None:
    drawn = []
    for _ in range(2):
        random = Random(1)
        drawn.append([SLOWDOWNS.parse(kind).draw(random) for _ in range(2000)])
    assert drawn[0] == drawn[1]
    assert min(drawn[0]) >= 1
    assert max(drawn[0]) <= MAX_FACTOR
    assert describe(SLOWDOWNS.parse(kind)).startswith(kind)


@pytest.mark.parametrize("kind", MEANS)
def test_the_factors_have_their_mean(kind: str) -> None:
    random = Random(1)
    factors = [SLOWDOWNS.parse(kind).draw(random) for _ in range(20_000)]
    assert fmean(factors) == pytest.approx(MEANS[kind], rel=0.03)


def test_a_lognormal_factor_has_its_deviation() -> None:
    random = Random(1)
    slowdown = SLOWDOWNS.parse({"kind": "lognormal", "mean": 2, "deviation": 0.5})
    assert pstdev([slowdown.draw(random) for _ in range(20_000)]) == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("kind", ["lognormal", "exponential"])
def test_a_mean_of_one_is_no_slowdown(kind: str) -> None:
    assert SLOWDOWNS.parse({"kind": kind, "mean": 1}).draw(Random(1)) == 1


def test_bounds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ValueError, match="low"):
        SLOWDOWNS.parse({"kind": "uniform", "low": 3, "high": 2})


@given(st.integers(0, 2**32 - 1), st.integers(0, 63), st.integers(0, 100))
def test_an_iteration_draws_the_same_whatever_came_before(seed: int, rank: int, index: int) -> None:
    def draw(phase: str, number: int) -> float:
        return iteration_random(seed=seed, rank=rank, phase=phase, index=number).random()

    assert draw("measured", index) == draw("measured", index)
    assert draw("measured", index) != draw("measured", index + 1)
    assert draw("measured", index) != draw("warmup", index)


def test_a_bare_number_is_a_constant_factor() -> None:
    slowdown = parse_slowdown(2.5)
    assert slowdown == SLOWDOWNS.parse({"kind": "constant", "factor": 2.5})
    assert describe(SLOWDOWNS.parse({"kind": "constant", "factor": 2.5})) == "constant (factor 2.5)"
    with pytest.raises(OptionError, match="allowed: bernoulli, constant"):
        parse_slowdown("gauss")
