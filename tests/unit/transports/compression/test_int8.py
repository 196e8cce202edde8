"""Eight-bit integers."""

import torch

from tests.lockstep import Workers


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
