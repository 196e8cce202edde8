"""Eight-bit integers."""

import pytest
import torch

from tests.lockstep import Workers
from transports.compression.base import Piece


def test_an_element_errs_by_half_a_step_of_its_own_block() -> None:
    values = torch.cat([torch.linspace(-1, 1, 256), 1e-6 * torch.linspace(-1, 1, 256), torch.tensor([5.0])])
    (decoded,) = Workers("int8", 1).mean([values])
    difference = (decoded - values).abs()
    assert difference[:256].max() <= 1.001 / 254
    assert difference[256:512].max() <= 1.001e-6 / 254
    assert difference[512] <= 1e-6


def test_a_subnormal_block_is_zero_and_not_noise() -> None:
    (decoded,) = Workers("int8", 1).mean([torch.tensor([1e-42, -1e-41])])
    assert decoded.abs().max() <= 1e-41


@pytest.mark.parametrize("num_elements", [10, 300, 100_000])
def test_a_layer_a_million_times_smaller_keeps_its_bits(num_elements: int) -> None:
    """Also where both are parts of what would be one block."""
    values = torch.randn(2, num_elements, generator=torch.Generator().manual_seed(1))
    values[1] *= 1e-6
    layout = [Piece("large", (num_elements,)), Piece("small", (num_elements,))]
    (decoded,) = Workers("int8", 1).mean([values.flatten()], layout)
    error = (decoded.view_as(values) - values).norm(dim=1) / values.norm(dim=1)
    assert (error < 0.01).all()
