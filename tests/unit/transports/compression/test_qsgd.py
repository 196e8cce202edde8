"""Levels of the norm."""

import math

import pytest
import torch

from tests.lockstep import Workers


def test_what_is_decoded_are_levels_of_the_norm() -> None:
    values = torch.randn(100, generator=torch.Generator().manual_seed(1))
    for compression, norm in (
        ("qsgd", values.abs().max()),
        ({"kind": "qsgd", "norm": "euclidean"}, values.norm()),
    ):
        (decoded,) = Workers(compression, 1).mean([values])
        levels = decoded / norm * 7
        assert torch.allclose(levels, levels.round(), atol=1e-4)
        assert (levels - values / norm * 7).abs().max() <= 1.0001


def test_one_element_alone_is_exact() -> None:
    values = torch.zeros(600)
    values[3] = -math.pi
    assert torch.allclose(Workers("qsgd", 1).mean([values])[0], values)


def test_the_largest_value_as_the_norm_errs_less() -> None:
    values = torch.randn(5000, generator=torch.Generator().manual_seed(1))
    errors = [
        float((Workers({"kind": "qsgd", "norm": norm}, 1).mean([values])[0] - values).norm())
        for norm in ("max", "euclidean")
    ]
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e20, 1e30])
@pytest.mark.parametrize("norm", ["max", "euclidean"])
def test_the_norm_is_one_where_squares_are_none(scale: float, norm: str) -> None:
    values = scale * torch.randn(512, generator=torch.Generator().manual_seed(1)).double()
    (decoded,) = Workers({"kind": "qsgd", "norm": norm, "bits": 8}, 1).mean([values.float()])
    assert (decoded - values).norm() < 0.2 * values.norm()
