"""THC with a table beside its authors' code and tables."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.lockstep import Workers
from transports.compression._rotation import Rotation
from transports.compression.base import COMPRESSORS, AllToAll, Piece
from transports.compression.thc_table import TableHomomorphic, _variance, table
from transports.errors import OptionError


def _compressor(**options: object) -> TableHomomorphic:
    compressor = COMPRESSORS.parse({"kind": "thc_table", **options})
    assert isinstance(compressor, TableHomomorphic)
    return compressor


PUBLISHED = [
    (4, 30, 16, [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30]),
    (4, 30, 128, [0, 4, 6, 8, 10, 12, 13, 14, 16, 17, 18, 20, 22, 24, 26, 30]),
    (3, 16, 128, [0, 3, 5, 7, 9, 11, 13, 16]),
    (3, 16, 1024, [0, 4, 6, 7, 9, 10, 12, 16]),
    (3, 42, 1024, [0, 10, 15, 19, 23, 27, 32, 42]),
]
"""Bits, granularity, one in how many is clipped, and byteps/torch/tables/*_recv_table.txt of github.com/SophiaLi06/
BytePS_THC."""


@pytest.mark.parametrize(("bits", "granularity", "one_in", "published"), PUBLISHED)
def test_the_tables_are_those_that_the_authors_publish(
    bits: int, granularity: int, one_in: int, published: list[int]
) -> None:
    assert table(bits, granularity, 1 / one_in).tolist() == published


@pytest.mark.parametrize("granularity", [3, 4, 7, 12, 15])
@pytest.mark.parametrize("clip", [0.3, 1 / 32, 1e-4])
def test_no_symmetric_table_has_less_variance(granularity: int, clip: float) -> None:
    def variance(entries: tuple[int, ...]) -> float:
        return sum(_variance(*pair, granularity, clip) for pair in pairwise(entries))

    found = tuple(table(2, granularity, clip).tolist())
    every = [(0, one, granularity - one, granularity) for one in range(1, granularity) if one < granularity - one]
    assert variance(found) == pytest.approx(min(map(variance, every)))


def _theirs(rotated: torch.Tensor, norm: float, granularity: int, one_in: int, generator: Any) -> torch.Tensor:
    """NewINCACompressor.rvec_compress and what compress subtracts from the error, before it is rotated back; names
    kept. Their sender's table says for each of `table_size` places which entry lies below, and how probable the one
    above is; here it is made from the receiver's."""
    table_size = 1001
    recv_table = torch.from_numpy(table(4, granularity, 1 / one_in).astype(np.float32))
    t = float(torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(1 - 0.5 / one_in, dtype=torch.float64)))
    delta, inc = 2 * t / (table_size - 1), 2 * t / granularity
    places = torch.linspace(0, granularity, table_size, dtype=torch.float64)
    sender_table_x = (torch.searchsorted(recv_table.double(), places, right=True) - 1).clamp(0, 14)
    sender_table_p = (places - recv_table[sender_table_x]) / (
        recv_table[sender_table_x + 1] - recv_table[sender_table_x]
    )
    scale = np.sqrt(rotated.numel()) / norm
    tensor = (rotated.double() * scale).clamp(-t, t) / delta
    p = tensor - tensor.floor()
    tensor = tensor.floor() + torch.bernoulli(p, generator=generator)
    place = (tensor + (table_size - 1) // 2).long().clamp(0, table_size - 1)
    x = sender_table_x[place] + torch.bernoulli(sender_table_p[place].clamp(0, 1), generator=generator).long()
    return (recv_table[x] - granularity / 2) / scale * inc


@pytest.mark.parametrize("one_in", [16, 32, 128])
def test_what_is_sent_has_the_authors_mean_and_variance(one_in: int) -> None:
    """Of one block, whose norm is the tensor's. They draw twice, first between a thousand places."""
    num_draws = 1000
    values = torch.randn(64, generator=torch.Generator().manual_seed(1))
    workers = Workers({"kind": "thc_table", "clip": 1 / one_in, "error_feedback": False}, 1)
    codec = workers.members[0]._codec
    state = codec.shared.bit_generator.state
    rotated = torch.from_numpy(Rotation(64, codec.shared).forward(values.numpy())[0].copy())
    generator = torch.Generator().manual_seed(2)
    theirs = torch.stack([_theirs(rotated, float(values.norm()), 30, one_in, generator) for _ in range(num_draws)])
    ours = []
    for _ in range(num_draws):
        codec.shared.bit_generator.state = state
        (decoded,) = workers.mean([values])
        codec.shared.bit_generator.state = state
        ours.append(torch.from_numpy(Rotation(64, codec.shared).forward(decoded.numpy())[0].copy()).double())
    found = torch.stack(ours)
    deviation = (found.var(0) + theirs.var(0)).div(num_draws).sqrt()
    assert ((found.mean(0) - theirs.mean(0)).abs() <= 5 * deviation + 2e-3).all()
    assert float(found.var(0).sum()) == pytest.approx(float(theirs.var(0).sum()), rel=0.05)


@pytest.mark.parametrize(("num_workers", "sum_bytes"), [(1, 1), (2, 1), (8, 1), (9, 2), (16, 2)])
def test_four_bits_go_out_and_one_or_two_bytes_come_back(num_workers: int, sum_bytes: int) -> None:
    """Thirty times eight is below 256. Of 65536 elements, of which shards are whole."""
    num_elements = 2**16
    exchanges = _compressor().exchanges([(num_elements,)], num_workers)
    norms, indices, sums = (each.payload_bytes(num_workers) for each in exchanges)
    assert norms == 4 * num_elements // 1024
    assert indices == pytest.approx(num_elements / 2, abs=4 * num_workers)
    assert sums == pytest.approx(sum_bytes * num_elements / num_workers, abs=8 * sum_bytes)


@given(num_workers=st.integers(1, 9), num_elements=st.integers(1, 3000), seed=st.integers(0, 99))
def test_the_sum_of_integers_is_the_sum_of_what_each_decodes(num_workers: int, num_elements: int, seed: int) -> None:
    """Homomorphic: what a worker subtracts from its own gradient is its part of the result, to a rounding."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(num_elements, generator=generator) for _ in range(num_workers)]
    workers = Workers("thc_table", num_workers)
    (result, *_) = workers.mean(values)
    kept = [member._errors.flat(_layout(num_elements)) for member in workers.members]
    sent = sum((value - torch.from_numpy(error) for value, error in zip(values, kept, strict=True)), torch.zeros(1))
    assert torch.allclose(result, sent / num_workers, atol=2e-5)


def _layout(num_elements: int) -> list[Any]:
    return [Piece("parameter", (num_elements,))]


def test_all_workers_largest_entries_do_not_overflow_a_sum() -> None:
    """8 x 30 in a byte, 9 x 30 in two."""
    values = torch.zeros(8)
    values[0] = 1.0  # rotated: equal everywhere, within the range and not clipped
    for num_workers in (8, 9):
        workers = Workers({"kind": "thc_table", "error_feedback": False, "clip": 0.5}, num_workers)
        (result, *_) = workers.mean([values] * num_workers)
        limit = 0.6744898  # beyond which half of the normal numbers lie
        assert torch.allclose(result, limit * values, atol=1e-5)


def test_a_layer_a_million_times_smaller_keeps_its_bits() -> None:
    """Blocks have norms of their own; with one for the bucket it would be noise."""
    values = torch.randn(2, 1024, generator=torch.Generator().manual_seed(1))
    values[1] *= 1e-6
    (decoded,) = Workers({"kind": "thc_table", "error_feedback": False}, 1).mean([values.flatten()])
    assert ((decoded.view_as(values) - values).norm(dim=1) / values.norm(dim=1) < 0.3).all()


def test_padding_of_shards_and_blocks_is_not_added_to_anything() -> None:
    workers = Workers("thc_table", 5)
    workers.mean([torch.ones(1025)] * 5)
    (rows,) = (request.payloads for request in workers.requests if isinstance(request, AllToAll))
    assert rows.shape == (5, 416 // 2)
    assert not rows[4, (2048 - 4 * 416) // 2 :].any()


def test_a_table_must_have_room_and_a_sum_must_fit() -> None:
    with pytest.raises(ValidationError, match="16 entries of 4 bits are of integers up to 15 at least, not 14"):
        _compressor(granularity=14)
    _compressor(granularity=3, bits=2)
    _compressor(granularity=255).check_world(257)
    with pytest.raises(OptionError, match="set it to 254 or less"):
        _compressor(granularity=255).check_world(258)


@pytest.mark.parametrize("size", [1e-44, 1e-41, 1e-38])
def test_what_is_too_small_for_an_inverse_is_sent_as_zero_and_kept(size: float) -> None:
    workers = Workers("thc_table", 2)
    (result, _) = workers.mean([torch.full((8,), size)] * 2)
    assert not result.any()
    assert (workers.errors(_layout(8))[0] == torch.full((8,), size)).all()
