from fractions import Fraction

import numpy as np
import pytest

from testbed.theory.simulation.fair_sharing import Paths, fair_rates
from tests.over_all import over_all

NUM_NETWORKS = 200


def brute_force(rows: list[list[int]], capacities: list[int]) -> list[Fraction]:
    """Progressive filling as the textbook has it: one link after the other, exactly."""
    rates: dict[int, Fraction] = {}
    left = [Fraction(each) for each in capacities]
    while len(rates) < len(rows):
        waiting = [flow for flow in range(len(rows)) if flow not in rates]
        shares = {}
        for link in range(len(left)):
            crossing = sum(rows[flow].count(link) for flow in waiting)
            if crossing:
                shares[link] = left[link] / crossing
        fullest = min(shares, key=lambda link: shares[link])
        for flow in [flow for flow in waiting if fullest in rows[flow]]:
            rates[flow] = shares[fullest]
            for link in rows[flow]:
                left[link] -= shares[fullest]
    return [rates[flow] for flow in range(len(rows))]


@over_all("seed", range(NUM_NETWORKS))
def test_rates_are_those_of_exact_filling(seed: int) -> None:
    random = np.random.default_rng(seed)
    num_links = int(random.integers(1, 12))
    capacities = [int(each) for each in random.choice([1, 2, 3, 5, 10, 40, 100], num_links)]
    rows = [
        [int(link) for link in random.choice(num_links, int(random.integers(1, min(5, num_links) + 1)), replace=False)]
        for _ in range(int(random.integers(1, 30)))
    ]
    found = fair_rates(Paths.of(rows), np.array(capacities, np.float64))
    assert found == pytest.approx([float(rate) for rate in brute_force(rows, capacities)], rel=1e-9)


def test_tolerant_rates_are_near_and_fill_no_link_too_much() -> None:
    random = np.random.default_rng(1)
    rows = [list(map(int, random.choice(64, 4, replace=False))) for _ in range(2000)]
    paths, capacities = Paths.of(rows), np.full(64, 1e9)
    exact, near = (fair_rates(paths, capacities, tolerance=tolerance) for tolerance in (1e-9, 1e-2))
    assert near == pytest.approx(exact, rel=0.05)
    assert near.sum() == pytest.approx(exact.sum(), rel=1e-3)
    loads = np.bincount(paths.links, np.repeat(near, paths.lengths))
    assert (loads <= capacities * (1 + 1e-9)).all()


def test_rows_are_the_chosen_flows() -> None:
    paths = Paths.of([[0, 1], [2], [3, 4, 5]])
    chosen = paths.rows(np.array([2, 0]))
    assert chosen.links.tolist() == [3, 4, 5, 0, 1]
    assert chosen.lengths.tolist() == [3, 2]
    assert paths.rows(np.array([1])).links.tolist() == [2]
