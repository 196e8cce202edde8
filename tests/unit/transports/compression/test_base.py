"""Blocks, ratios, and what options may be combined."""

import numpy as np
import pytest
from pydantic import ValidationError

from transports.compression.base import (
    COMPRESSORS,
    Place,
    blocks_of,
    chunks,
    euclidean_norm,
    limited,
    num_kept,
    require_for_group,
)
from transports.compression.top_k import TopK
from transports.errors import OptionError


def test_chunks_are_whole_blocks_and_cover_everything_once() -> None:
    for num_elements in (0, 1, 511, 512, 513, 200_000):
        borders = list(chunks(num_elements, 512))
        assert [start for start, _ in borders] == [0, *[stop for _, stop in borders[:-1]]][: len(borders)]
        assert sum(stop - start for start, stop in borders) == num_elements
        assert all(start % 512 == 0 for start, _ in borders)


def test_the_last_block_is_filled_with_zeros() -> None:
    values = np.arange(1, 8)
    assert blocks_of(values, 0, 7, 4).tolist() == [[1, 2, 3, 4], [5, 6, 7, 0]]
    assert np.shares_memory(blocks_of(values, 0, 4, 4), values)


def test_a_sparsifier_keeps_at_least_one_and_at_most_all() -> None:
    assert [num_kept(n, 0.01) for n in (0, 1, 100, 101)] == [0, 1, 1, 2]
    assert num_kept(10, 1.0) == 10


def test_a_ratio_counts_as_the_decimal_that_was_written() -> None:
    """100 x 0.07 is 7; in floats it is a little more, and was 8."""
    for hundredths in range(1, 100):
        ratio = TopK.model_validate({"ratio": f"{hundredths}%"}).ratio
        for num_elements in range(1, 101):
            assert num_kept(num_elements, ratio) == -(-num_elements * hundredths // 100)


@pytest.mark.parametrize("ratio", [0, -0.1, 1.01, "200%"])
def test_a_ratio_is_a_share(ratio: object) -> None:
    with pytest.raises(ValidationError, match="above 0 and at most 1"):
        COMPRESSORS.parse({"kind": "top_k", "ratio": ratio})


@pytest.mark.parametrize("kind", ["none", "divide"])
def test_error_feedback_is_refused_where_it_makes_no_sense(kind: str) -> None:
    with pytest.raises(ValidationError, match=f"error_feedback is not for {kind}"):
        COMPRESSORS.parse({"kind": kind, "error_feedback": True})


def test_damping_makes_a_contraction_of_an_unbiased_compressor() -> None:
    random_k = COMPRESSORS.parse({"kind": "random_k", "ratio": 0.1})
    assert random_k.variance(1000) == 9
    assert random_k.damping(1000) == pytest.approx(0.1)
    assert COMPRESSORS.parse("top_k").damping(1000) == 1.0


def test_a_group_takes_only_what_keeps_no_state() -> None:
    require_for_group(COMPRESSORS.parse("fp16"))
    with pytest.raises(OptionError, match=r"compression top_k: .*ddp_hook\.register"):
        require_for_group(COMPRESSORS.parse("top_k"))
    require_for_group(COMPRESSORS.parse({"kind": "top_k", "error_feedback": False}))


@pytest.mark.parametrize("compression", ["signsgd", {"kind": "threshold", "error_feedback": False}], ids=str)
def test_a_group_takes_only_what_scales_with_the_gradients(compression: object) -> None:
    """DistributedDataParallel divides before the group sees them, others after: a vote would be N times too large."""
    with pytest.raises(OptionError, match=r"does not scale with the gradients.*ddp_hook\.register"):
        require_for_group(COMPRESSORS.parse(compression))


def test_a_group_takes_nothing_after_which_ranks_differ() -> None:
    with pytest.raises(OptionError, match="compression divide: it leaves every rank values of its own"):
        require_for_group(COMPRESSORS.parse("divide"))


def test_a_group_takes_signs_that_are_scaled() -> None:
    require_for_group(COMPRESSORS.parse({"kind": "signsgd", "scaled": True}))


def test_a_norm_beyond_the_squares_of_float32() -> None:
    for scale in (1e-30, 1.0, 1e30):
        assert euclidean_norm(np.full(10**6, scale, np.float32)) == pytest.approx(1e3 * scale)


def test_only_finite_values_are_limited() -> None:
    values = np.array([3, -3, 1, np.inf, -np.inf], np.float32)
    assert limited(values, 2.0).tolist() == [2, -2, 1, np.inf, -np.inf]
    assert np.isnan(limited(np.array([np.nan, 3], np.float32), 2.0)[0])
    assert limited(values[:3], 4.0).base is values


def test_shared_draws_agree_and_private_ones_do_not() -> None:
    codecs = [COMPRESSORS.parse("random_k").codec(Place(rank=rank, num_workers=2, seed=3)) for rank in range(2)]
    assert codecs[0].shared.random() == codecs[1].shared.random()
    assert codecs[0].private.random() != codecs[1].private.random()
