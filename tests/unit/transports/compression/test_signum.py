"""Signs of momentums."""

import pytest
import torch

from tests.lockstep import Workers
from transports.compression.base import COMPRESSORS, Piece

LAYOUT = [Piece(0, (40,)), Piece(1, (7, 9))]
NUM_ELEMENTS = 103


def _gradients(num_workers: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(NUM_ELEMENTS, generator=generator) for _ in range(num_workers)]


@pytest.mark.parametrize("exchange", ["gather", "two_phase"])
@pytest.mark.parametrize("num_workers", [1, 2, 3, 5])
def test_the_vote_is_that_of_the_authors_optimizer(num_workers: int, exchange: str) -> None:
    """github.com/jxbz/signSGD, signum.py: `buf.mul_(momentum).add_((1 - momentum) * grad)`, of which the sign is
    taken, and with several workers the sign of the sum of signs."""
    momentum = 0.9
    workers = Workers({"kind": "signum", "momentum": momentum, "exchange": exchange}, num_workers)
    buffers = [torch.zeros(NUM_ELEMENTS) for _ in range(num_workers)]
    for round_ in range(10):
        gradients = _gradients(num_workers, round_)
        for buffer, gradient in zip(buffers, gradients, strict=True):
            buffer.mul_(momentum).add_((1 - momentum) * gradient)
        expected = torch.stack([torch.where(buffer < 0, -1.0, 1.0) for buffer in buffers]).sum(0).sign()
        assert all(torch.equal(found, expected) for found in workers.mean(gradients, LAYOUT))


def test_without_momentum_it_is_the_sign_of_the_gradient() -> None:
    signum, sign = Workers({"kind": "signum", "momentum": 0}, 3), Workers("signsgd", 3)
    for round_ in range(3):
        gradients = _gradients(3, round_)
        assert torch.equal(signum.mean(gradients, LAYOUT)[0], sign.mean(gradients, LAYOUT)[0])


def test_a_parameter_keeps_its_momentum_when_buckets_are_formed_anew() -> None:
    workers, same = (Workers("signum", 1) for _ in range(2))
    first, second = _gradients(2, 0)
    workers.mean([first], LAYOUT)
    same.mean([first], LAYOUT)
    turned = torch.cat([-0.05 * second[40:], -0.05 * second[:40]])
    found = workers.mean([turned], LAYOUT[::-1])[0]
    assert torch.equal(torch.cat([found[63:], found[:63]]), same.mean([-0.05 * second], LAYOUT)[0])


def test_a_scaled_sign_has_the_mean_size_of_the_momentum() -> None:
    workers = Workers({"kind": "signum", "scaled": True, "momentum": 0.5}, 1)
    (gradient,) = _gradients(1, 1)
    assert torch.allclose(workers.mean([gradient], LAYOUT)[0].abs(), 0.5 * gradient.abs().mean())


def test_error_feedback_is_refused() -> None:
    with pytest.raises(ValueError, match="stays in it"):
        COMPRESSORS.parse({"kind": "signum", "scaled": True, "error_feedback": True})
