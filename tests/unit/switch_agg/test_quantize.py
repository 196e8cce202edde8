import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from switch_agg.native.worker import NativeCodec
from switch_agg.payload import PAYLOAD_NAMES, PAYLOADS, PayloadName
from switch_agg.quantize import (
    NumpyCodec,
    Quantizer,
    Round,
    blocks,
    dequantize,
    error_bound,
    exponents_of,
    predicted,
    quantize,
)
from switch_agg.wire import EXPONENT_NOT_FINITE, EXPONENT_ZERO, HEADER

LIMIT = 2.0**124  # nine of them are still a float32
floats = st.floats(min_value=-LIMIT, max_value=LIMIT, width=32)


def integers(quantizer: Quantizer, attempt: Round) -> np.ndarray:
    form = quantizer._form
    rows = np.zeros((len(attempt.which), HEADER.size + 4 * quantizer._num_values // form.lanes), np.uint8)
    quantizer.stage(attempt, rows)
    return form.integers(np.ascontiguousarray(rows[:, HEADER.size :]).view(">i4").astype(np.int32))


def add(name: str, quantizers: list[Quantizer], values: list[np.ndarray]) -> int:
    """What workers and a switch do; returns the number of rounds."""
    rounds = [quantizer.begin(name, value) for quantizer, value in zip(quantizers, values, strict=True)]
    for number in range(1, 4):
        sums = np.sum([integers(q, each) for q, each in zip(quantizers, rounds, strict=True)], axis=0)
        assert np.abs(sums).max(initial=0) <= 2**31 - 1, "the switch's registers would overflow"
        form = quantizers[0]._form
        words = form.words(form.rounded(sums, len(quantizers)))
        highest = np.max([each.actual for each in rounds], axis=0)
        following = [
            quantizer.proceed(each, words, highest) for quantizer, each in zip(quantizers, rounds, strict=True)
        ]
        if following[0] is None:
            assert following == [None] * len(quantizers)
            return number
        rounds = [each for each in following if each is not None]
        assert len(rounds) == len(quantizers)
    raise AssertionError("a block was done more than twice")


@pytest.mark.parametrize("payload", PAYLOAD_NAMES)
@pytest.mark.parametrize("codec", [NumpyCodec, NativeCodec])
@given(
    stn.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(0, 70)), elements=floats), st.integers(-150, 150)
)
def test_sums_are_within_the_stated_bound(payload: PayloadName, codec: type, values: np.ndarray, scale: int) -> None:
    with np.errstate(over="ignore", under="ignore"):
        values = np.clip(np.ldexp(values, scale), np.float32(-LIMIT), np.float32(LIMIT)).astype(np.float32)
    form = PAYLOADS[payload]
    quantizers = [Quantizer(len(values), 32 // form.lanes, codec(), form) for _ in values]
    add("b", quantizers, list(values))
    exact = values.astype(np.float64).sum(axis=0)
    bound = np.repeat(error_bound(quantizers[0].used, len(values), form), 32)[: values.shape[1]]
    for quantizer in quantizers:
        np.testing.assert_array_equal(quantizer.result, quantizers[0].result)
        error = np.abs(quantizer.result.astype(np.float64) - exact)
        assert (error <= bound + np.abs(exact) * 2.0**-23 + 2.0**-149).all()


@given(st.integers(1, 32), stn.arrays(np.float32, (2, 32), elements=floats))
def test_one_worker_s_error_is_half_a_unit(num_workers: int, values: np.ndarray) -> None:
    exponents = exponents_of(values)
    back = dequantize(quantize(values, exponents, num_workers), exponents, num_workers)
    units = np.ldexp(1.0, exponents.astype(int) - 30 + math.ceil(math.log2(num_workers)))
    assert (np.abs(back.astype(np.float64) - values) <= units[:, None] / 2 + np.abs(values) * 2.0**-24).all()


def test_a_second_reduction_of_a_name_takes_one_round() -> None:
    rng = np.random.default_rng(1)
    quantizers = [Quantizer(3, 64) for _ in range(3)]
    gradients = [rng.normal(size=1000).astype(np.float32) for _ in range(3)]
    assert add("bucket", quantizers, gradients) == 2
    for _ in range(5):
        gradients = [(g * rng.uniform(0.7, 1.2)).astype(np.float32) for g in gradients]
        assert add("bucket", quantizers, gradients) == 1
    assert quantizers[0].num_repeated == math.ceil(1000 / 64)
    assert add("bucket", quantizers, [g * 64 for g in gradients]) == 2
    # A new name is predicted from the last reduction of as many blocks.
    assert add("another", quantizers, gradients) == 1
    assert add("shorter", quantizers, [g[:500] for g in gradients]) == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**126, 3.4e38])
def test_a_block_that_is_not_finite_is_nan_on_every_worker_and_spoils_no_other(bad: float) -> None:
    values = [np.ones(64, np.float32), np.ones(64, np.float32)]
    values[1][40] = bad
    quantizers = [Quantizer(2, 32) for _ in values]
    for _ in range(2):
        add("b", quantizers, values)
        for quantizer in quantizers:
            assert (quantizer.result[:32] == 2.0).all()
            assert np.isnan(quantizer.result[32:]).all()
    values[1][40] = 1.0
    add("b", quantizers, values)
    assert (quantizers[0].result == 2.0).all()


def test_zeros_and_denormals() -> None:
    values = np.zeros((3, 32), np.float32)
    values[1, 3] = 1e-45
    values[2, 0] = -1e-40
    exponents = exponents_of(values)
    assert exponents.tolist() == [EXPONENT_ZERO, -127, -127]
    back = dequantize(quantize(values, exponents, 4), exponents, 4)
    assert (back[0] == 0).all()
    assert back[1, 3] == np.float32(1e-45)
    assert back[2, 0] == np.float32(-1e-40)


def test_exponents_at_the_edges() -> None:
    values = np.zeros((6, 32), np.float32)
    values[:, 0] = [1.0, 0.999, -2.0, 2.0**125, 2.0**126, np.nan]
    assert exponents_of(values).tolist() == [1, 0, 2, 126, EXPONENT_NOT_FINITE, EXPONENT_NOT_FINITE]
    history = np.array([EXPONENT_ZERO, EXPONENT_NOT_FINITE, 126, -127, 3], np.int8)
    assert predicted(history).tolist() == [EXPONENT_ZERO, EXPONENT_ZERO, 126, -123, 7]


def test_a_sum_beyond_float32_is_infinite() -> None:
    quantizers = [Quantizer(8, 32) for _ in range(8)]
    add("b", quantizers, [np.full(32, 2.0**125, np.float32)] * 8)
    assert np.isposinf(quantizers[0].result).all()


def test_blocks_fill_up_the_last_chunk() -> None:
    assert blocks(np.ones(70, np.float32), 32).sum(axis=1).tolist() == [32, 32, 6]
    assert blocks(np.ones(0, np.float32), 32).shape == (0, 32)


def test_results_take_turns_in_two_memories_and_never_lie_in_the_values() -> None:
    quantizer, values = Quantizer(1, 32), np.arange(64, dtype=np.float32)
    found = []
    for _ in range(4):
        add("b", [quantizer], [values])
        found.append(quantizer.result)
    assert not np.shares_memory(found[2], found[3]), "the last one stays while the next comes"
    assert np.shares_memory(found[0], found[2]), "kept: the kernel clears every page that it gives out anew"
    assert np.shares_memory(found[1], found[3])
    expected = found[2].copy()
    add("b", [quantizer], [found[2]])
    assert not np.shares_memory(quantizer.result, found[2])
    np.testing.assert_array_equal(quantizer.result, expected)
