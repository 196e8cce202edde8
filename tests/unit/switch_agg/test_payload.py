from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from switch_agg.payload import INT32, PAYLOAD_NAMES, PAYLOADS, Payload, PayloadName
from switch_agg.wire import Kind
from tests.over_all import over_all

NARROW = [PAYLOADS["fp16"], PAYLOADS["int8"]]


@pytest.mark.parametrize("payload", PAYLOAD_NAMES)
@given(st.data())
def test_integers_come_back_from_the_words_that_carry_them(payload: PayloadName, data: st.DataObject) -> None:
    form = PAYLOADS[payload]
    half = 2 ** (form.bits - 1)
    integers = data.draw(stn.arrays(np.int64, (3, 4 * form.lanes), elements=st.integers(-half, half - 1)))
    words = form.words(integers)
    assert (words.dtype, words.shape) == (np.dtype(np.int32), (3, 4))
    np.testing.assert_array_equal(form.integers(words), integers)


def test_words_are_big_endian_and_in_order() -> None:
    wide, narrow = (form.words(np.array([1, -1, 2, -2], np.int64)) for form in NARROW)
    assert wide.tolist() == [0x0001FFFF, 0x0002FFFE]
    assert narrow.tolist() == [0x01FF02FE]


@pytest.mark.parametrize("form", NARROW)
@given(st.integers(1, 32), st.lists(st.integers(-(2**20), 2**20), min_size=1))
def test_a_sum_is_divided_and_rounded_half_to_even(form: Payload, num_workers: int, sums: list[int]) -> None:
    divisor = 1 << form.rounding(num_workers)
    assert divisor // 2 < num_workers <= divisor
    found = form.rounded(np.array(sums, np.int64), num_workers)
    assert found.tolist() == [round(Fraction(each, divisor)) for each in sums]


@pytest.mark.parametrize("form", [INT32, *NARROW])
@over_all("num_workers", range(1, 33))
def test_what_everybody_s_largest_contributions_add_up_to_fits(form: Payload, num_workers: int) -> None:
    most = np.array([num_workers, -num_workers], np.int64) * form.limit(num_workers)
    assert np.abs(most).max() < 2**31
    assert np.abs(form.rounded(most, num_workers)).max() < 2 ** (form.bits - 1)


def test_a_datagram_s_kind_says_which_integers_it_has() -> None:
    kinds = {name: [kind for kind in Kind if form.carries(kind)] for name, form in PAYLOADS.items()}
    assert kinds == {"int32": [Kind.SATURATED, Kind.DATA_32], "fp16": [Kind.DATA_16], "int8": [Kind.DATA_8]}
