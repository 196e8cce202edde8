"""What is written in C does what its twin in numpy does, to the last bit."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from switch_agg.errors import UnsupportedError
from tests.lockstep import Workers
from transports.compression import _blocks
from transports.compression._blocks import Blocked, num_blocks
from transports.compression._native import blocks as native
from transports.compression.base import COMPRESSORS, Array, Bytes, Piece

KINDS = ("int8", "fp8")


def _native() -> Any:
    library = native.library()
    assert library is not None, "these tests need a C compiler"
    return library


def _compressor(kind: str) -> Blocked:
    compressor = COMPRESSORS.parse(kind)
    assert isinstance(compressor, Blocked)
    return compressor


def _encoded(kind: str, values: Array, lengths: list[int], block: int, *, in_c: bool) -> tuple[Bytes, Bytes]:
    layout = [Piece(number, (length,)) for number, length in enumerate(lengths)]
    scales = np.zeros(4 * num_blocks([piece.shape for piece in layout], block), np.uint8)
    codes = np.zeros(len(values), np.uint8)
    code = _compressor(kind).code
    with np.errstate(all="ignore"):
        if in_c:
            native.encode(_native(), code.name, values, lengths, block, scales, codes)
        else:
            _blocks.encode(code, values, layout, block, scales, codes)
    return scales, codes


def _decoded(
    kind: str, payload: tuple[Bytes, Bytes], lengths: list[int], block: int, weight: float, onto: Array, *, in_c: bool
) -> Array:
    layout = [Piece(number, (length,)) for number, length in enumerate(lengths)]
    code, total = _compressor(kind).code, onto.copy()
    with np.errstate(all="ignore"):
        if in_c:
            native.decode(_native(), code.name, *payload, lengths, block, weight, total, fresh=False)
        else:
            _blocks.add_decoded(code, *payload, layout, block, weight, total)
    return total


def _same(first: Array, second: Array) -> bool:
    """Bit for bit, but for what is no number."""
    numbers = ~np.isnan(first)
    return bool(
        (numbers == ~np.isnan(second)).all()
        and (first.view(np.uint32)[numbers] == second.view(np.uint32)[numbers]).all()
    )


@pytest.mark.parametrize("kind", KINDS)
@given(
    lengths=st.lists(st.integers(0, 700), min_size=1, max_size=6),
    block=st.sampled_from([1, 3, 8, 32, 256, 300]),
    exponents=st.tuples(st.integers(-149, 127), st.integers(-149, 127)).map(sorted),
    spoiled=st.sampled_from([None, None, None, np.nan, -np.nan, np.inf, -np.inf]),
    weight=st.sampled_from([1.0, -1.0, 0.125, 1 / 3, 1e-30]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_float_is_coded_and_decoded_to_the_same_bits(
    kind: str,
    lengths: list[int],
    block: int,
    exponents: list[int],
    spoiled: float | None,
    weight: float,
    seed: int,
) -> None:
    """Subnormal numbers, zeros of both signs, infinity and what is no number included; wherever a payload begins."""
    generator = np.random.default_rng(seed)
    num_elements = sum(lengths)
    values = np.exp2(generator.uniform(exponents[0], exponents[1], num_elements)) * generator.choice(
        [-1, 0, 1], num_elements
    )
    values = np.minimum(values, 3.4e38).astype(np.float32)
    if spoiled is not None and num_elements:
        values[generator.integers(num_elements)] = spoiled
    before = values.copy()
    ours, theirs = (_encoded(kind, values, lengths, block, in_c=in_c) for in_c in (True, False))
    assert _same(values, before)
    assert _same(ours[0].view(np.float32), theirs[0].view(np.float32))
    finite = np.isfinite(np.concatenate([np.repeat(*_scales_by_element(theirs[0], lengths, block))]))
    assert (ours[1] == theirs[1])[finite].all()
    shifted = np.zeros(len(ours[0]) + 1, np.uint8)[1:]
    shifted[:] = ours[0]
    onto = generator.standard_normal(num_elements, dtype=np.float32)
    found = _decoded(kind, (shifted, ours[1]), lengths, block, weight, onto, in_c=True)
    expected = _decoded(kind, ours, lengths, block, weight, onto, in_c=False)
    assert _same(found, expected)
    assert np.isfinite(found[finite]).all()


def _scales_by_element(scales: Bytes, lengths: list[int], block: int) -> tuple[Array, list[int]]:
    """Scales, and of how many elements each is."""
    counts = [min(block, length - start) for length in lengths for start in range(0, length, block)]
    return scales.view(np.float32), counts


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_is_decoded_to_the_same_bits(kind: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    scales = np.array([0.75], np.float32).view(np.uint8)
    found, expected = (
        _decoded(kind, (scales, codes), [256], 256, 1.0, np.zeros(256, np.float32), in_c=in_c) for in_c in (True, False)
    )
    assert _same(found, expected)
    assert np.isnan(found).sum() == (2 if kind == "fp8" else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_total_does_not_depend_on_what_was_there(kind: str) -> None:
    scales, codes = np.array([0.75], np.float32).view(np.uint8), np.arange(100, dtype=np.uint8)
    expected = _decoded(kind, (scales, codes), [100], 256, 0.5, np.zeros(100, np.float32), in_c=False)
    found = np.full(100, np.nan, np.float32)
    native.decode(_native(), _compressor(kind).code.name, scales, codes, [100], 256, 0.5, found, fresh=True)
    assert _same(found, expected)


def test_every_float_between_two_codes_is_rounded_as_torch_rounds_it() -> None:
    """Those next to each tie, and the ties; a block of 448 has the scale 1."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    ties = (codes[1:] + codes[:-1]) / 2
    near = np.concatenate([codes, ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(500))])
    values = np.concatenate([near, -near]).astype(np.float32)
    _, found = _encoded("fp8", values, [len(values)], len(values), in_c=True)
    expected = torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert (found == expected).all()


@contextmanager
def _without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(source: Path, form: str) -> Path:
        raise UnsupportedError(f"no cc or gcc to build {source.name} as {form} with")

    native.library.cache_clear()
    with monkeypatch.context() as context:
        context.setattr(native, "build", refuse)
        yield
    native.library.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exchange", ["gather", "two_phase"])
def test_without_a_compiler_results_are_the_same_and_the_log_says_why_they_take_longer(
    kind: str, exchange: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(1000, generator=generator) for _ in range(3)]
    compression = {"kind": kind, "exchange": exchange, "error_feedback": True}
    expected = Workers(compression, 3).mean(values)
    with caplog.at_level(logging.WARNING), _without_a_compiler(monkeypatch):
        found = Workers(compression, 3).mean(values)
    assert "no cc or gcc to build blocks.c" in caplog.text
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_what_is_not_one_run_of_memory_is_not_read() -> None:
    scales, codes = np.zeros(4, np.uint8), np.zeros(4, np.uint8)
    with pytest.raises(AssertionError, match="one run"):
        native.encode(_native(), "int8", np.zeros(8, np.float32)[::2], [4], 4, scales, codes)
