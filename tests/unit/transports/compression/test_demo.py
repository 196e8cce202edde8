"""Decoupled momentum beside its authors' formulas."""

import numpy as np
import pytest
import torch

from tests.lockstep import Workers
from transports.compression._tiles import tiles_of
from transports.compression.base import COMPRESSORS, Piece
from transports.compression.demo import cosines, transformed, transformed_back

SHAPE = (16, 24)
LAYOUT = [Piece(0, SHAPE), Piece(1, (30,))]
NUM_ELEMENTS = 16 * 24 + 30


def _dct(x: torch.Tensor) -> torch.Tensor:
    """The transform of github.com/bloc97/DeMo, demo.py (`dct` with norm `ortho`): by a Fourier transform, over the last
    dimension."""
    n = x.shape[-1]
    v = torch.cat([x[..., ::2], x[..., 1::2].flip([-1])], dim=-1)
    k = -torch.arange(n, dtype=x.dtype) * torch.pi / (2 * n)
    fourier = torch.fft.fft(v, dim=-1)
    found = fourier.real * torch.cos(k) - fourier.imag * torch.sin(k)
    found[..., 0] /= n**0.5 * 2
    found[..., 1:] /= (n / 2) ** 0.5 * 2
    return 2 * found


@pytest.mark.parametrize("length", [1, 2, 5, 30, 64])
def test_the_transform_is_the_authors_and_orthonormal(length: int) -> None:
    matrix = torch.from_numpy(cosines(length)).double()
    assert torch.allclose(matrix.T, _dct(torch.eye(length, dtype=torch.float64)), atol=1e-6)
    assert torch.allclose(matrix @ matrix.T, torch.eye(length, dtype=torch.float64), atol=1e-5)


def test_both_directions_are_transformed_and_back() -> None:
    tiles = tiles_of(SHAPE, 8)
    values = np.random.default_rng(1).standard_normal((tiles.num_tiles, 64)).astype(np.float32)
    components = transformed(values, tiles)
    expected = _dct(_dct(torch.from_numpy(values).view(-1, 8, 8).double()).transpose(1, 2)).transpose(1, 2)
    assert np.allclose(components, expected.reshape(-1, 64).numpy(), atol=1e-5)
    assert np.allclose(transformed_back(components, tiles), values, atol=1e-5)


def _sent(momentum: torch.Tensor, kept: int) -> torch.Tensor:
    """Of a matrix in tiles of 8 x 8, or a vector in runs of 6: the largest components, transformed back."""
    if momentum.dim() == 1:
        basis = _dct(torch.eye(6, dtype=torch.float64))
        x = momentum.view(5, 6) @ basis
    else:
        basis = _dct(torch.eye(8, dtype=torch.float64))
        x = torch.einsum("yhxw,hb,wd->yxbd", momentum.view(2, 8, 3, 8), basis, basis).reshape(6, 64)
    idx = x.abs().topk(min(kept, x.shape[-1]), dim=-1).indices
    x = torch.zeros_like(x).scatter_(-1, idx, x.gather(-1, idx))
    if momentum.dim() == 1:
        return (x @ basis.T).flatten()
    return torch.einsum("yxbd,hb,wd->yhxw", x.view(2, 3, 8, 8), basis, basis).reshape(SHAPE)


@pytest.mark.parametrize("sign", [False, True])
def test_what_is_sent_is_what_the_authors_send(*, sign: bool) -> None:
    """DeMo.step: the delta decays, takes the gradient, and loses what is sent."""
    kept, decay = 3, 0.9
    workers = Workers({"kind": "demo", "side": 8, "kept": kept, "decay": decay, "sign": sign}, 2)
    deltas = torch.zeros(2, NUM_ELEMENTS, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        gradients = [torch.randn(NUM_ELEMENTS, generator=generator) for _ in range(2)]
        total = torch.zeros(NUM_ELEMENTS, dtype=torch.float64)
        for delta, gradient in zip(deltas, gradients, strict=True):
            delta.mul_(decay).add_(gradient)
            sent = torch.cat([_sent(delta[:384].view(SHAPE), kept).flatten(), _sent(delta[384:], kept)])
            delta.sub_(sent)
            total += sent / 2
        results = workers.mean(gradients, LAYOUT)
        assert torch.equal(results[0], results[1])
        if sign:
            clear = total.abs() > 1e-4
            assert torch.equal(results[0][clear].double(), total[clear].sign())
        else:
            assert torch.allclose(results[0].double(), total, atol=1e-4)


def test_what_stays_shrinks_by_the_share_of_components_that_is_sent() -> None:
    """The transform is orthonormal, and the largest k of n components hold at least k/n of the square."""
    workers = Workers({"kind": "demo", "side": 8, "kept": 16, "sign": False}, 1)
    gradient = torch.randn(384, generator=torch.Generator().manual_seed(1))
    (result,) = workers.mean([gradient], LAYOUT[:1])
    assert float((gradient - result).square().sum()) <= (1 - 16 / 64) * float(gradient.square().sum())


def test_a_smooth_gradient_is_reported_by_a_few_components() -> None:
    workers = Workers({"kind": "demo", "side": 8, "kept": 1, "sign": False}, 1)
    smooth = torch.ones(384)
    assert torch.allclose(workers.mean([smooth], LAYOUT[:1])[0], smooth, atol=1e-5)


def test_sending_all_components_is_the_mean() -> None:
    workers = Workers({"kind": "demo", "side": 8, "kept": 64, "sign": False}, 3)
    gradients = [torch.randn(NUM_ELEMENTS, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    for _ in range(2):
        assert torch.allclose(workers.mean(gradients, LAYOUT)[0], sum(gradients) / 3, atol=1e-4)  # type: ignore[arg-type]


def test_the_bytes_are_those_of_components_and_twelve_bits_of_index() -> None:
    assert COMPRESSORS.parse("demo").payload_bytes([(4 * 64, 6 * 64)], 4) == 24 * 32 * (12 + 32) // 8


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_does_not_hide_behind_a_sign(value: float) -> None:
    gradient = torch.ones(NUM_ELEMENTS)
    gradient[5] = value
    workers = Workers("demo", 1)
    assert not torch.isfinite(workers.mean([gradient], LAYOUT)[0]).all()
    assert torch.isfinite(workers.mean([torch.ones(NUM_ELEMENTS)], LAYOUT)[0]).all()
