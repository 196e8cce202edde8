"""Where axes begin and end, and what the legend shows."""

import pytest

from testbed.report.figures import Axis, Boxes, Figure, Line, Marks, Rules, Series, decades, rounded


def figure(*series: Series, x: Axis | None = None, y: Axis | None = None) -> Figure:
    return Figure(title="t", height=100, x=x or Axis(), y=y or Axis(), series=series)


LINE = Line(name="a", color="red", x=[1.0, 2.0, 3.0], y=[5.0, None, 7.0])


def test_an_axis_reaches_over_everything_that_is_drawn_and_no_further() -> None:
    marks = Marks(name="b", color="red", x=[4.0], y=[6.0], low=[4.5], high=[8.0])
    assert figure(LINE, marks).domain("x") == (1.0, 4.0)
    assert figure(LINE, marks).domain("y") == (4.5, 8.0)
    boxes = Boxes(name="c", color="red", left=[0.5], right=[9.0], bottom=[1.0], top=[2.0])
    assert figure(LINE, boxes).domain("x") == (0.5, 9.0)
    assert figure(LINE, boxes).domain("y") == (1.0, 7.0)
    assert figure(LINE, Rules(name="d", color="red", x=[99.0])).domain("x") == (1.0, 3.0)


def test_an_axis_holds_zero_or_its_categories_or_what_was_given() -> None:
    assert figure(LINE, y=Axis(zero=True)).domain("y") == (0.0, 7.0)
    assert figure(LINE, x=Axis(ends=(9.0, -1.0))).domain("x") == (9.0, -1.0)
    assert figure(x=Axis(categories=True, ticks={0.0: "a", 1.0: "b"})).domain("x") == (-0.5, 1.5)


def test_a_logarithmic_axis_begins_at_the_least_number_above_zero() -> None:
    line = Line(name="a", color="red", x=[0.0, 2.0, 3.0], y=[-5.0, 0.0, 7.0])
    assert figure(line, x=Axis(log=True)).domain("x") == (2.0, 3.0)


@pytest.mark.parametrize("log", [False, True])
def test_one_value_or_none_is_not_an_axis_of_no_length(log: bool) -> None:
    one = Line(name="a", color="red", x=[2.0], y=[3.0])
    for axis in (figure(one, y=Axis(log=log)).domain("y"), figure(x=Axis(log=log)).domain("x")):
        assert axis[0] < axis[1]
        assert axis[0] > 0 or not log or axis == (0.0, 1.0)


def test_series_of_one_name_are_one_entry_and_rules_are_none() -> None:
    marks = Marks(name="a", color="red", x=[1.0], y=[1.0])
    shown = figure(LINE, marks, Rules(name="r", color="red", x=[1.0])).legend
    assert shown == [LINE]
    assert LINE.hidden_by == ("a",)


def test_ticks_of_a_logarithmic_axis_are_whole_numbers_beyond_both_ends() -> None:
    ticks = decades(0.3, 40)
    assert list(ticks.values())[:6] == ["0.1", "0.2", "0.5", "1", "2", "5"]
    assert min(ticks) <= 0.3
    assert max(ticks) >= 40
    assert decades(1e3, 2e3)[1000.0] == "1000"


def test_six_digits_are_kept() -> None:
    assert rounded(123456789.0) == 123457000.0
