"""Without compression the mean is DistributedDataParallel's, bit for bit."""

import pytest
import torch

from tests.lockstep import Workers


def test_it_is_the_sum_of_the_scaled_gradients() -> None:
    values = [torch.randn(50, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    expected = sum((each * (1.0 / 3) for each in values[1:]), values[0] * (1.0 / 3))
    for result in Workers("none", 3).mean(values):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_elements_travel_in_their_own_type(dtype: torch.dtype) -> None:
    workers = Workers("none", 2)
    values = [torch.full((10,), 1 + 3 * torch.finfo(dtype).eps, dtype=dtype) for _ in range(2)]
    assert torch.equal(workers.mean(values)[0], values[0])
    assert workers.payload_bytes() == 10 * dtype.itemsize
