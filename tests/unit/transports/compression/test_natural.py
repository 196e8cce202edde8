"""Powers of two."""

import torch

from tests.lockstep import Workers


def test_powers_of_two_stay_and_others_become_a_neighbour() -> None:
    values = torch.tensor([1.0, -0.5, 2.0**-126, 2.0**100, 0.0, 3.0, -5.0])
    (decoded,) = Workers("natural", 1).mean([values])
    assert torch.equal(decoded[:5], values[:5])
    assert decoded[5].item() in {2.0, 4.0}
    assert decoded[6].item() in {-4.0, -8.0}


def test_what_is_not_a_number_keeps_away_from_its_neighbours() -> None:
    values = torch.tensor([float("nan"), 1.0, float("-inf")])
    (decoded,) = Workers("natural", 1).mean([values])
    assert not torch.isfinite(decoded[0])
    assert decoded[1:].tolist() == [1.0, float("-inf")]


def test_what_has_no_next_power_is_sent_as_the_last_one() -> None:
    workers = Workers("natural", 2)
    for _ in range(20):
        assert workers.mean([torch.full((8,), -3e38)] * 2)[0].tolist() == [-(2.0**127)] * 8
