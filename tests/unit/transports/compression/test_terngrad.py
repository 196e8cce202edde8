"""Three levels."""

import pytest
import torch

from tests.lockstep import Workers
from transports.compression.base import Piece


def test_every_parameter_has_a_scale_of_its_own() -> None:
    values = torch.tensor([1.0, -1, 1, 1e-3, -1e-3, 0])
    layout = [Piece("large", (3,)), Piece("small", (3,))]
    assert torch.allclose(Workers({"kind": "terngrad", "clip": None}, 1).mean([values], layout)[0], values)


@pytest.mark.parametrize("values", [[0.3], [-2e-20], [1e25] * 5, [-0.1] * 1000], ids=lambda values: str(values[:2]))
def test_what_is_alike_is_sent_as_it_is(values: list[float]) -> None:
    """Its standard deviation from the mean is zero: clipped at that, the bias of a Linear(1, 1) never learned."""
    assert torch.allclose(Workers("terngrad", 1).mean([torch.tensor(values)])[0], torch.tensor(values), rtol=1e-6)


def test_a_gradient_far_from_zero_is_not_clipped_to_its_spread() -> None:
    values = 1 + 1e-3 * torch.randn(1000, generator=torch.Generator().manual_seed(1))
    workers = Workers("terngrad", 1)
    mean = torch.stack([workers.mean([values])[0] for _ in range(50)]).mean(0)
    assert torch.allclose(mean, values, rtol=1e-1)


def test_clipping_limits_the_scale() -> None:
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    values[0] = 100.0
    (decoded,) = Workers("terngrad", 1).mean([values])
    assert decoded.abs().max() <= 2.5001 * values.square().mean().sqrt()
