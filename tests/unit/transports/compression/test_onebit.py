"""Signs and means."""

import torch

from tests.lockstep import Workers


def test_each_side_of_zero_becomes_its_mean() -> None:
    values = torch.tensor([-1.0, -3, 2, 4])
    assert Workers("onebit", 1).mean([values])[0].tolist() == [-2, -2, 3, 3]


def test_the_last_block_counts_its_own_elements_only() -> None:
    values = torch.tensor([1.0] * 8 + [4.0, -2.0])
    assert Workers({"kind": "onebit", "block": 8}, 1).mean([values])[0].tolist() == values.tolist()


def test_sums_and_differences_that_float32_has_no_room_for() -> None:
    values = torch.tensor([3e38, -3e38] * 300)
    assert torch.allclose(Workers("onebit", 1).mean([values])[0], values)
