"""The C code and its Python twins do the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from switch_agg.native.worker import NativeCodec
from switch_agg.payload import PAYLOAD_NAMES, PAYLOADS, PayloadName
from switch_agg.quantize import NumpyCodec, exponents_of
from switch_agg.wire import HEADER

anything = st.floats(width=32, allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize("payload", PAYLOAD_NAMES)
@given(stn.arrays(np.float32, st.integers(0, 200), elements=anything), st.integers(1, 32), st.integers(-127, 126))
def test_floats_become_the_same_integers(
    payload: PayloadName, values: np.ndarray, num_workers: int, exponent: int
) -> None:
    form = PAYLOADS[payload]
    native, python = NativeCodec(), NumpyCodec()
    actual = python.exponents_of(values, 32)
    np.testing.assert_array_equal(native.exponents_of(values, 32), actual)
    which = np.arange(len(actual), dtype=np.int64)[::-1].copy()
    # Quantised by their own exponent, and by one that may be too small or too large.
    for exponents in (actual[which], np.where(actual[which] == 127, 127, exponent).astype(np.int8)):
        rows = [np.zeros((len(which), HEADER.size + 32 * 4 // form.lanes), np.uint8) for _ in range(2)]
        native.stage(values, which, exponents, num_workers, rows[0], 32, form)
        python.stage(values, which, exponents, num_workers, rows[1], 32, form)
        np.testing.assert_array_equal(rows[0], rows[1])


@pytest.mark.parametrize("payload", PAYLOAD_NAMES)
@given(
    stn.arrays(np.int32, st.tuples(st.integers(1, 5), st.just(32)), elements=st.integers(-(2**31), 2**31 - 1)),
    st.integers(0, 31),
    st.integers(1, 32),
    stn.arrays(np.int8, 5, elements=st.integers(-128, 127)),
)
def test_integers_become_the_same_floats(
    payload: PayloadName, sums: np.ndarray, short: int, num_workers: int, exponents: np.ndarray
) -> None:
    form = PAYLOADS[payload]
    count = sums.size - short
    which = np.arange(len(sums), dtype=np.int64)
    found = [np.zeros(count, np.float32) for _ in range(2)]
    NativeCodec().unstage(sums, which, exponents[: len(sums)].copy(), num_workers, found[0], form)
    NumpyCodec().unstage(sums, which, exponents[: len(sums)].copy(), num_workers, found[1], form)
    np.testing.assert_array_equal(found[0], found[1])


def test_a_tail_shorter_than_a_vector_is_staged_too() -> None:
    values = np.arange(1, 36, dtype=np.float32)
    exponents = exponents_of(np.concatenate([values, np.zeros(29, np.float32)]).reshape(2, 32))
    rows = np.full((2, HEADER.size + 128), 255, np.uint8)
    NativeCodec().stage(values, np.arange(2, dtype=np.int64), exponents, 2, rows, 32)
    back = np.zeros(35, np.float32)
    sums = np.ascontiguousarray(rows[:, HEADER.size :]).view(">i4").astype(np.int32)
    NativeCodec().unstage(sums, np.arange(2, dtype=np.int64), exponents, 2, back)
    np.testing.assert_array_equal(back, values)
