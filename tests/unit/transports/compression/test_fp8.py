"""Eight-bit floating point."""

import torch

from tests.lockstep import Workers


def test_powers_of_two_below_the_largest_stay() -> None:
    values = torch.tensor([448.0, -256.0, 1.0, 0.0, 2.0**-6]) * 3
    assert torch.equal(Workers("fp8", 1).mean([values])[0], values)


def test_a_subnormal_gradient_stays_finite() -> None:
    values = torch.tensor([1e-44, -3e-45, 0.0])
    assert torch.isfinite(Workers("fp8", 1).mean([values])[0]).all()
