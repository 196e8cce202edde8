"""Seeds of those that draw."""

from itertools import product

from testbed.experiment.seeds import own_seed


def test_runs_of_neighbouring_seeds_share_no_seed() -> None:
    assert len({own_seed(seed, index) for seed, index in product(range(5), range(100))}) == 500
    assert own_seed(0, 3) == 3
