"""The search for the largest, against the definition."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from transports.compression._sparse import largest, pack, unpack


@given(
    values=npst.arrays(np.float32, st.integers(1, 60), elements=st.floats(-3, 3, width=16)),
    data=st.data(),
)
@settings(max_examples=200)
def test_largest_are_distinct_in_order_and_not_below_the_rest(values: np.ndarray, data: st.DataObject) -> None:
    num_kept = data.draw(st.integers(1, len(values)))
    indices = largest(values, num_kept)
    assert len(indices) == num_kept
    assert (np.diff(indices) > 0).all()
    rest = np.delete(np.abs(values), indices)
    assert not len(rest) or np.abs(values[indices]).min() >= rest.max()


def test_what_is_not_a_number_counts_as_largest() -> None:
    values = np.array([1, np.nan, 5, np.nan, -7, np.inf], np.float32)
    assert set(largest(values, 2)) == {1, 3}
    assert set(largest(values, 3)) == {1, 3, 5}
    assert set(largest(values, 1)) <= {1, 3}


def test_a_payload_is_indices_and_values() -> None:
    values = np.array([0.5, -2, 3], np.float32)
    payload = pack(np.array([1, 2]), values)
    assert payload.tobytes() == np.array([1, 2], "<u4").tobytes() + np.array([-2, 3], "<f4").tobytes()
    indices, sent = unpack(payload)
    assert indices.tolist() == [1, 2]
    assert sent.tolist() == [-2, 3]
