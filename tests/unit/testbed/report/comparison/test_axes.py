"""Values that are quantities of one unit, and those that are names."""

from typing import Any

import pytest

from testbed.report.comparison.axes import quantities


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        (["10mbit", "1gbit"], [1e7, 1e9]),
        (["1ms", "0s"], [1e-3, 0.0]),
        (["64KiB", "1MB"], [65536.0, 1e6]),
        ([1, "1%"], [1.0, 0.01]),
        ([2, 4, 8], [2.0, 4.0, 8.0]),
        (["ring", "tree"], None),
        (["1ms", "1mbit"], None),
        ([True, False], None),
        ([None, 1], None),
        ([4], None),
    ],
)
def test_quantities_are_of_one_unit(values: list[Any], numbers: list[float] | None) -> None:
    found = quantities(values)
    assert found == (None if numbers is None else pytest.approx(numbers))
