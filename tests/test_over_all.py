import inspect

import pytest

from tests.over_all import over_all


def test_every_value_is_tried_and_the_one_that_fails_is_named() -> None:
    seen = []

    @over_all("first", [1, 2, 3])
    @over_all("second", "ab")
    def below_three(third: int, first: int, second: str) -> None:
        seen.append((first, second, third))
        assert first < 3

    assert list(inspect.signature(below_three).parameters) == ["third"]
    with pytest.raises(AssertionError) as raised:
        below_three(third=7)
    assert seen == [(1, "a", 7), (1, "b", 7), (2, "a", 7), (2, "b", 7), (3, "a", 7)]
    assert raised.value.__notes__ == ["second = 'a'", "first = 3"]


def test_a_name_that_the_test_does_not_take_is_refused() -> None:
    with pytest.raises(AssertionError, match="has no argument size"):
        over_all("size", [1])(lambda: None)
