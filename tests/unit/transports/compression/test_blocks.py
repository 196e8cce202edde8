"""Blocks that end where their parameter does."""

import numpy as np
import pytest

from transports.compression._blocks import Run, num_blocks, runs, scales_of
from transports.compression.base import CHUNK, Piece


def test_runs_cover_everything_once_and_no_block_is_of_two_parameters() -> None:
    layout = [Piece("a", (3, 3)), Piece("b", ()), Piece("c", (0,)), Piece("d", (8,))]
    assert list(runs(layout, 4)) == [Run(0, 0, 9), Run(3, 9, 10), Run(4, 10, 18)]
    assert num_blocks([piece.shape for piece in layout], 4) == 6


def test_long_parameters_come_in_whole_blocks_that_fit_the_cache() -> None:
    found = list(runs([Piece("a", (5,)), Piece("b", (CHUNK + 300,))], 256))
    assert found == [Run(0, 0, 5), Run(1, 5, 5 + CHUNK), Run(1 + CHUNK // 256, 5 + CHUNK, 5 + CHUNK + 300)]


@pytest.mark.parametrize("peak", [1e-36, 1e-30, 1.0, 1e30, 3.4e38])
def test_a_scale_and_its_inverse_are_finite_and_fit_each_other(peak: float) -> None:
    blocks = np.array([[peak, -peak / 2, 0]], np.float32)
    with np.errstate(over="ignore"):
        scales, inverses = scales_of(blocks, 127.0)
        codes = blocks * inverses[:, None]
        decoded = codes * scales[:, None]
    assert np.isfinite(decoded).all()
    if peak > 1e-35:
        assert codes[0, 0] == pytest.approx(127)
        assert decoded[0] == pytest.approx(blocks[0], rel=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_shows(value: float) -> None:
    with np.errstate(invalid="ignore"):
        scales, _ = scales_of(np.array([[value, 1.0], [1.0, 2.0]], np.float32), 127.0)
    assert np.isfinite(scales).tolist() == [False, True]
