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
from transports.compression import onebit
from transports.compression._native import onebit as native
from transports.compression.base import Array, Bytes


def _native() -> Any:
    library = native.library()
    assert library is not None, "these tests need a C compiler"
    return library


def _encoded(values: Array, block: int, *, in_c: bool) -> tuple[Bytes, Bytes]:
    means = np.zeros(8 * -(-len(values) // block) + 1, np.uint8)[1:]  # at an address that a float may not have
    signs = np.zeros(-(-len(values) // 8), np.uint8)
    with np.errstate(all="ignore"):
        if in_c:
            native.encode(_native(), values, block, means, signs)
        else:
            onebit.encode(values, block, means, signs)
    return means, signs


def _decoded(payload: tuple[Bytes, Bytes], block: int, weight: float, onto: Array, *, in_c: bool) -> Array:
    total = onto.copy()
    with np.errstate(all="ignore"):
        if in_c:
            native.add_decoded(_native(), *payload, block, weight, total)
        else:
            onebit.add_decoded(*payload, block, weight, total)
    return total


def _same(first: Array, second: Array) -> bool:
    """Bit for bit, but for what is no number."""
    numbers = ~np.isnan(first)
    return bool(
        (numbers == ~np.isnan(second)).all()
        and (first.view(np.uint32)[numbers] == second.view(np.uint32)[numbers]).all()
    )


@given(
    num_elements=st.integers(0, 1500),
    block=st.sampled_from([8, 16, 24, 512, 2**16]),
    exponents=st.tuples(st.integers(-149, 127), st.integers(-149, 127)).map(sorted),
    spoiled=st.sampled_from([None, None, None, np.nan, -np.nan, np.inf, -np.inf, -0.0]),
    weight=st.sampled_from([1.0, -1.0, 0.125, 1 / 3, 1e-30]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_float_is_coded_and_decoded_to_the_same_bits(
    num_elements: int, block: int, exponents: list[int], spoiled: float | None, weight: float, seed: int
) -> None:
    """Subnormal numbers, zeros of both signs, infinity and what is no number included; wherever a payload begins."""
    generator = np.random.default_rng(seed)
    values = np.exp2(generator.uniform(exponents[0], exponents[1], num_elements)) * generator.choice(
        [-1, 0, 1], num_elements
    )
    values = np.clip(values, -3.4e38, 3.4e38).astype(np.float32)
    if spoiled is not None and num_elements:
        values[generator.integers(num_elements)] = spoiled
    before = values.copy()
    ours, theirs = (_encoded(values, block, in_c=in_c) for in_c in (True, False))
    assert _same(values, before)
    assert _same(ours[0].copy().view(np.float32), theirs[0].copy().view(np.float32))
    assert (ours[1] == theirs[1]).all()
    onto = generator.standard_normal(num_elements, dtype=np.float32)
    found, expected = (_decoded(ours, block, weight, onto, in_c=in_c) for in_c in (True, False))
    assert _same(found, expected)
    finite = np.isfinite(values)
    assert not np.isfinite(found[~finite]).any(), "what is not finite shows where it was"
    assert np.isfinite(found).all() == finite.all()


@contextmanager
def _without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(source: Path, form: str) -> Path:
        raise UnsupportedError(f"no cc or gcc to build {source.name} as {form} with")

    native.library.cache_clear()
    with monkeypatch.context() as context:
        context.setattr(native, "build", refuse)
        yield
    native.library.cache_clear()


@pytest.mark.parametrize("exchange", ["gather", "two_phase"])
def test_without_a_compiler_results_are_the_same_and_the_log_says_why_they_take_longer(
    exchange: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(1000, generator=generator) for _ in range(3)]
    compression = {"kind": "onebit", "exchange": exchange, "error_feedback": True}
    expected = Workers(compression, 3).mean(values)
    with caplog.at_level(logging.WARNING), _without_a_compiler(monkeypatch):
        found = Workers(compression, 3).mean(values)
    assert "no cc or gcc to build onebit.c" in caplog.text
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_what_is_not_one_run_of_memory_is_not_read() -> None:
    means, signs = np.zeros(8, np.uint8), np.zeros(1, np.uint8)
    with pytest.raises(AssertionError, match="one run"):
        native.encode(_native(), np.zeros(16, np.float32)[::2], 8, means, signs)
