"""Values that are quantities of one unit, those that are names, and names that tell points apart."""

from typing import Any

import pytest

from testbed.report.comparison.axes import namer, quantities
from tests.compared import compared_point


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


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([("1gbit", None), ("1gbit", {"kind": "top_k"})], ["1gbit", "1gbit top_k"]),
        ([(None, None), (2, None), (None, 2)], ["a=null b=null", "a=2 b=null", "a=null b=2"]),
        ([(["x,y"], 1), (["x", "y"], 1)], ['{"a": ["x,y"], "b": 1}', '{"a": ["x", "y"], "b": 1}']),
    ],
)
def test_unlike_points_have_unlike_names(values: list[tuple[Any, ...]], names: list[str]) -> None:
    points = [compared_point(dict(zip("ab", each, strict=True))) for each in values]
    assert [namer(points, "ab")(point) for point in points] == names
