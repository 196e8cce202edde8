"""Three levels."""

import torch

from tests.lockstep import Workers
from transports.compression.base import Piece


def test_every_parameter_has_a_scale_of_its_own() -> None:
    values = torch.tensor([1.0, -1, 1, 1e-3, -1e-3, 0])
    layout = [Piece("large", (3,)), Piece("small", (3,))]
    assert torch.allclose(Workers({"kind": "terngrad", "clip": None}, 1).mean([values], layout)[0], values)


def test_clipping_limits_the_scale() -> None:
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    values[0] = 100.0
    (decoded,) = Workers("terngrad", 1).mean([values])
    assert decoded.abs().max() <= 2.5001 * values.std(correction=0)
