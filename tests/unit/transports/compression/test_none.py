"""Without compression the mean is DistributedDataParallel's, bit for bit."""

import torch

from tests.lockstep import Workers


def test_it_is_the_sum_of_the_scaled_gradients() -> None:
    values = [torch.randn(50, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    expected = sum((each * (1.0 / 3) for each in values[1:]), values[0] * (1.0 / 3))
    for result in Workers("none", 3).mean(values):
        assert torch.equal(result, expected)
