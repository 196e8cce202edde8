"""Random Hadamard rotations."""

import numpy as np
import pytest
import torch

from transports.compression._rotation import Rotation, filled, hadamard, rotate


@pytest.mark.parametrize("block", [1, 2, 8, 1024])
def test_the_rotation_is_its_own_inverse_and_keeps_lengths(block: int) -> None:
    values = torch.randn(3, block, generator=torch.Generator().manual_seed(1)).numpy()
    rotated = rotate(values)
    assert torch.allclose(torch.from_numpy(rotate(rotated)), torch.from_numpy(values), atol=1e-5)
    assert torch.allclose(torch.from_numpy(rotated).norm(), torch.from_numpy(values).norm(), atol=1e-4)
    assert torch.allclose(torch.from_numpy(rotated), torch.from_numpy(values @ hadamard(block) / block**0.5), atol=1e-4)


@pytest.mark.parametrize("num_elements", [1, 2, 3, 1000, 1024, 1025, 70_000])
def test_what_is_turned_is_turned_back_by_block(num_elements: int) -> None:
    values = np.random.default_rng(1).standard_normal(num_elements, dtype=np.float32)
    rotation = Rotation(num_elements, np.random.default_rng(2))
    rotated = rotation.forward(values)
    assert rotated.size == filled(num_elements)
    scales = np.arange(1, len(rotated) + 1, dtype=np.float32)[:, None]
    back = rotation.back(rotated, scales)
    assert np.allclose(back, values * np.repeat(scales, rotated.shape[1])[:num_elements], rtol=1e-4, atol=1e-3)


def test_one_large_element_is_spread_over_its_block() -> None:
    values = np.zeros(2000, np.float32)
    values[3] = 32.0
    rotated = Rotation(2000, np.random.default_rng(2)).forward(values)
    assert np.allclose(np.abs(rotated[0]), 1.0)
    assert not rotated[1].any()
