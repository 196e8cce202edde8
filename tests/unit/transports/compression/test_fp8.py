"""Eight-bit floating point."""

import pytest
import torch

from tests.lockstep import Workers
from transports.compression.base import Piece


def test_powers_of_two_below_the_largest_stay() -> None:
    values = torch.tensor([448.0, -256.0, 1.0, 0.0, 2.0**-6]) * 3
    assert torch.equal(Workers("fp8", 1).mean([values])[0], values)


def test_a_subnormal_gradient_stays_finite() -> None:
    values = torch.tensor([1e-44, -3e-45, 0.0])
    assert torch.isfinite(Workers("fp8", 1).mean([values])[0]).all()


@pytest.mark.parametrize("num_elements", [10, 300, 100_000])
def test_a_layer_a_million_times_smaller_keeps_its_bits(num_elements: int) -> None:
    """Also where both are parts of what would be one block."""
    values = torch.randn(2, num_elements, generator=torch.Generator().manual_seed(1))
    values[1] *= 1e-6
    layout = [Piece("large", (num_elements,)), Piece("small", (num_elements,))]
    (decoded,) = Workers("fp8", 1).mean([values.flatten()], layout)
    error = (decoded.view_as(values) - values).norm(dim=1) / values.norm(dim=1)
    assert (error < 0.03).all()
