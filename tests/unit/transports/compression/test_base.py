"""Blocks, ratios, and what options may be combined."""

import numpy as np
import pytest
from pydantic import ValidationError

from transports.compression.base import (
    COMPRESSORS,
    Place,
    blocks_of,
    chunks,
    num_kept,
    require_stateless,
)
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
    require_stateless(COMPRESSORS.parse("fp16"))
    with pytest.raises(OptionError, match=r"compression top_k: .*ddp_hook\.register"):
        require_stateless(COMPRESSORS.parse("top_k"))
    require_stateless(COMPRESSORS.parse({"kind": "top_k", "error_feedback": False}))


def test_shared_draws_agree_and_private_ones_do_not() -> None:
    codecs = [COMPRESSORS.parse("random_k").codec(Place(rank=rank, num_workers=2, seed=3)) for rank in range(2)]
    assert codecs[0].shared.random() == codecs[1].shared.random()
    assert codecs[0].private.random() != codecs[1].private.random()
