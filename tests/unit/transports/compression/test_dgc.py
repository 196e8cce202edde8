"""Deep gradient compression against its paper's algorithm."""

import pytest
import torch

from tests.lockstep import Workers
from transports.compression.base import Piece

LAYOUT = [Piece(0, (50,))]


def test_what_is_sent_follows_the_algorithm() -> None:
    workers = Workers({"kind": "dgc", "ratio": 0.1, "momentum": 0.5}, 1)
    velocity, accumulated = torch.zeros(50), torch.zeros(50)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        gradient = torch.randn(50, generator=generator)
        velocity = 0.5 * velocity + gradient
        accumulated = accumulated + velocity
        chosen = accumulated.abs().topk(5).indices
        expected = torch.zeros(50)
        expected[chosen] = accumulated[chosen]
        velocity[chosen] = accumulated[chosen] = 0
        assert torch.allclose(workers.mean([gradient], LAYOUT)[0], expected, atol=1e-6)


def test_sending_everything_is_momentum() -> None:
    """Momentum correction: with nothing left out, as in the dense optimizer, but for the masking."""
    workers = Workers({"kind": "dgc", "ratio": 1.0, "momentum": 0.0}, 2)
    values = [torch.randn(50, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
    assert torch.allclose(workers.mean(values, LAYOUT)[0], (values[0] + values[1]) / 2)


def test_a_gradient_is_clipped_before_it_is_accumulated() -> None:
    workers = Workers({"kind": "dgc", "ratio": 1.0, "momentum": 0.0, "clip_norm": 1.0}, 4)
    results = workers.mean([torch.full((50,), 100.0) for _ in range(4)], LAYOUT)
    assert abs(float(results[0].norm()) - 0.5) < 1e-5


def test_the_warm_up_sends_a_quarter_then_a_quarter_of_that_down_to_the_ratio() -> None:
    workers = Workers({"kind": "dgc", "ratio": 0.01, "warmup": 2}, 1)
    generator = torch.Generator().manual_seed(1)
    sent = [int((workers.mean([torch.randn(1000, generator=generator)])[0] != 0).sum()) for _ in range(10)]
    assert sent == pytest.approx([250, 250, 63, 63, 16, 16, 10, 10, 10, 10], rel=0.1)  # of a sample's threshold


def test_the_warm_up_goes_on_when_buckets_are_formed_anew() -> None:
    workers = Workers({"kind": "dgc", "ratio": 0.01, "warmup": 1}, 1)
    pieces = [Piece(number, (500,)) for number in range(2)]
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    workers.mean([values], pieces)
    assert int((workers.mean([values], pieces[::-1])[0] != 0).sum()) == pytest.approx(63, rel=0.1)


def test_the_share_of_a_large_bucket_is_about_the_ratio() -> None:
    workers = Workers({"kind": "dgc", "ratio": 0.01}, 1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        (result,) = workers.mean([torch.randn(200_000, generator=generator)])
        assert 0.7 * 2000 <= int((result != 0).sum()) <= 1.3 * 2000


@pytest.mark.parametrize("scale", [1e20, 1e30])
def test_a_norm_whose_square_is_too_large_still_clips(scale: float) -> None:
    workers = Workers({"kind": "dgc", "ratio": 1.0, "momentum": 0.0, "clip_norm": 1.0}, 1)
    assert workers.mean([torch.full((50,), scale)], LAYOUT)[0].norm() == pytest.approx(1.0)
