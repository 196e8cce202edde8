"""Integers that add up."""

import pytest
import torch

from tests.lockstep import Workers
from transports.compression.thc import TensorHomomorphic
from transports.errors import OptionError


@pytest.mark.parametrize("num_workers", [1, 4, 127])
def test_no_sum_leaves_its_register(num_workers: int) -> None:
    """All workers send the largest level of the same sign."""
    workers = Workers("thc", num_workers)
    values = torch.zeros(8)
    values[0] = 1.0  # rotated: equal everywhere
    (result, *_) = workers.mean([values] * num_workers)
    assert torch.allclose(result, values, atol=1e-5)


def test_more_workers_than_levels_are_refused() -> None:
    TensorHomomorphic(register_bits=16).check_world(128)
    with pytest.raises(OptionError, match="set it to 16"):
        TensorHomomorphic().check_world(128)


@pytest.mark.parametrize("size", [1e-44, 1e-41, 1e-38])
def test_what_is_too_small_for_an_inverse_is_sent_as_zero(size: float) -> None:
    values = torch.tensor([size, 0, 0, 0, 0, 0, 0, 0])
    (result, _) = Workers("thc", 2).mean([torch.full((8,), size)] * 2)
    assert not result.any()
    assert not Workers("thc", 2).mean([values, -values])[0].any()
