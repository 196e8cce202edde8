"""Deep gradient compression against its paper's algorithm."""

import pytest
import torch

from tests.lockstep import Workers
from transports.compression.base import Piece

LAYOUT = [Piece(0, (50,))]


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum_masking", [False, True])
def test_what_is_sent_is_what_the_authors_send(*, nesterov: bool, momentum_masking: bool) -> None:
    """DGCSGDMemory of github.com/synxlin/deep-gradient-compression, dgc/memory.py, its names kept."""
    workers = Workers(
        {
            "kind": "dgc",
            "ratio": 0.1,
            "momentum": 0.5,
            "nesterov": nesterov,
            "momentum_masking": momentum_masking,
        },
        1,
    )
    mmt, vec = torch.zeros(50), torch.zeros(50)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        grad = torch.randn(50, generator=generator)
        if nesterov:
            mmt.add_(grad).mul_(0.5)
            vec.add_(mmt).add_(grad)
        else:
            mmt.mul_(0.5).add_(grad)
            vec.add_(mmt)
        indices = vec.abs().topk(5).indices
        expected = torch.zeros(50)
        expected[indices] = vec[indices]
        if momentum_masking:
            mmt.index_fill_(0, indices, 0)
        vec.index_fill_(0, indices, 0)
        assert torch.allclose(workers.mean([grad], LAYOUT)[0], expected, atol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_with_nothing_left_out_and_no_masking_it_is_torch_s_momentum(*, nesterov: bool) -> None:
    options = {"kind": "dgc", "ratio": 1.0, "momentum": 0.9, "nesterov": nesterov, "momentum_masking": False}
    workers = Workers(options, 1)
    parameter = torch.zeros(50, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.9, nesterov=nesterov)
    total = torch.zeros(50)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        parameter.grad = torch.randn(50, generator=generator)
        total += workers.mean([parameter.grad], LAYOUT)[0]
        optimizer.step()
        assert torch.allclose(-total, parameter.detach(), atol=1e-4)


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
