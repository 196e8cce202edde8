"""Chunked top-k in two bits beside its authors' formulas."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.lockstep import Workers
from transports.compression.base import COMPRESSORS, Piece
from transports.compression.sparseloco import quantised

SHAPE = (16, 24)
LAYOUT = [Piece(0, SHAPE)]


def _theirs(val: torch.Tensor, n_bins: int, range_in_sigmas: float = 6) -> torch.Tensor:
    """TopKCompressor._quantize and _dequantize of github.com/tplr-ai/CCLoco, their names kept."""
    offset = n_bins // 2
    shift = val.mean()
    centered_val = val - shift
    std_unbiased = centered_val.norm() / math.sqrt(centered_val.numel() - 1)
    scale = range_in_sigmas * std_unbiased / n_bins
    quantized = (centered_val / scale + offset).round().clamp(0, n_bins - 1).long().flatten()
    sums = torch.zeros(n_bins, dtype=val.dtype).scatter_add_(0, quantized, centered_val.flatten())
    counts = torch.zeros(n_bins, dtype=val.dtype).scatter_add_(0, quantized, torch.ones_like(centered_val).flatten())
    lookup = torch.where(counts > 0, sums / counts, 0.0)
    return (lookup[quantized] + shift).view_as(val)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_what_is_sent_is_what_the_authors_send(bits: int) -> None:
    """CCLoco.step: the error buffer decays, takes the gradient, and loses what is sent of each tile."""
    side, kept, decay = 8, 5, 0.9
    workers = Workers({"kind": "sparseloco", "side": side, "kept": kept, "bits": bits, "decay": decay}, 2)
    buffers = torch.zeros(2, *SHAPE, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        gradients = [torch.randn(SHAPE, generator=generator) for _ in range(2)]
        sent = []
        for buffer, gradient in zip(buffers, gradients, strict=True):
            buffer.mul_(decay).add_(gradient)
            x = buffer.view(2, side, 3, side).transpose(1, 2).reshape(6, side * side)
            idx = x.abs().topk(kept, dim=-1).indices
            val = _theirs(x.gather(-1, idx), 2**bits)
            tiles = torch.zeros_like(x).scatter_(-1, idx, val)
            sent.append(tiles.view(2, 3, side, side).transpose(1, 2).reshape(SHAPE))
            buffer.sub_(sent[-1])
        results = workers.mean([gradient.flatten() for gradient in gradients], LAYOUT)
        assert torch.equal(results[0], results[1])
        assert torch.allclose(results[0].double(), (sum(sent) / 2).flatten(), atol=1e-5)


def test_the_bytes_are_those_of_two_bits_and_twelve_bits_of_index() -> None:
    """24 x 64 x 64 elements, 32 of each 4096: 14 bits each, and 4 float32 for the parameter."""
    compressor = COMPRESSORS.parse("sparseloco")
    assert compressor.payload_bytes([(4 * 64, 6 * 64)], 4) == 24 * 32 * 14 // 8 + 16


@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=200),
    bits=st.sampled_from([2, 4, 8]),
)
def test_a_quantised_value_is_the_mean_of_its_bin_so_that_the_error_is_no_longer_than_what_was_sent(
    values: list[float], bits: int
) -> None:
    exact = np.array(values, np.float32)
    table, bins = quantised(exact, bits)  # type: ignore[arg-type]
    assert np.isfinite(table).all()
    assert bins.max() < 2**bits
    wide = exact.astype(np.float64)
    assert np.linalg.norm(wide - table[bins]) <= 1.0001 * np.linalg.norm(wide) + 1e-37


def test_the_error_stays_below_the_sum_of_a_geometric_series() -> None:
    """|e| <= decay |e| + |gradient|: at most the longest gradient over 1 - decay, whatever is sent."""
    decay = 0.8
    workers = Workers({"kind": "sparseloco", "side": 8, "kept": 1, "decay": decay}, 1)
    generator = torch.Generator().manual_seed(1)
    error, longest = torch.zeros(384), 0.0
    for _ in range(50):
        gradient = torch.randn(384, generator=generator)
        (result,) = workers.mean([gradient], LAYOUT)
        error = decay * error + gradient - result
        longest = max(longest, float(gradient.norm()))
        assert float(error.norm()) <= longest / (1 - decay)


def test_without_quantisation_to_speak_of_each_tile_s_error_shrinks_by_the_share_that_is_kept() -> None:
    workers = Workers({"kind": "sparseloco", "side": 8, "kept": 16, "bits": 8, "decay": 0}, 1)
    gradient = torch.randn(384, generator=torch.Generator().manual_seed(1))
    (result,) = workers.mean([gradient], LAYOUT)
    assert float((gradient - result).square().sum()) <= (1 - 16 / 64) * float(gradient.square().sum())
