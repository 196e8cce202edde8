"""What is drawn is what the figure says: Vega's own engine reads every specification and draws it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import vl_convert

from testbed.report import vega
from testbed.report.figures import Axis, Boxes, Figure, Line, Marks, Rules, Series

EVERYTHING: tuple[Series, ...] = (
    Boxes(name="boxes", color="#111111", left=[0, 1], right=[1, 2], bottom=[0, 0], top=[1, 2], hollow=[True, False],
          colors=["#222222", "#333333"], opacity=[0.5, 1], hover=["a, \"b\"\nc", "d"]),
    Line(name="it's a line", color="#444444", x=[0, 1, 2], y=[1, None, 2], dash="dash", step=True),
    Marks(name="marks", color="#555555", x=[0, 1], y=[1, None], low=[0.5, None], high=[1.5, None], hollow=[True, False],
          hover=["first", "second"]),
    Marks(name="ticks", color="#666666", x=[0.5], y=[1], shape="stroke", hollow=True),
    Rules(name="rules", color="#777777", x=[1.5], texts=["w1 ↔ s0: rate 50mbit"], dash="dash"),
)  # fmt: skip


def figure(*series: Series, **changes: Any) -> Figure:
    axes = {"x": Axis(title="across"), "y": Axis(title="up", suffix=" %", zero=True)}
    return Figure(**{"title": "t", "height": 200, "series": series, **axes, **changes})


def drawn(made: Figure) -> str:
    svg: str = vl_convert.vega_to_svg(vega.on_paper(made, width=500))
    return svg


@pytest.fixture(autouse=True)
def _no_complaints(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Vega says what it could not do on its standard error, and goes on."""
    yield
    assert capfd.readouterr().err == ""


def test_every_kind_of_series_is_drawn_in_its_colour() -> None:
    svg = drawn(figure(*EVERYTHING))
    for color in ("#222222", "#333333", "#444444", "#555555", "#666666", "#777777"):
        assert color in svg
    for word in ("boxes", "it&apos;s a line", "marks", "ticks", "w1 ↔ s0: rate 50mbit", "across", "up"):
        assert word in svg or word.replace("&apos;", "'") in svg
    assert "rules" not in svg
    assert 'width="500"' in svg


def test_bars_are_as_high_as_their_values() -> None:
    values = [10.0, 20.0, 40.0]
    boxes = Boxes(
        name="b", color="#123456", in_legend=False, left=[0, 1, 2], right=[1, 2, 3], bottom=[0, 0, 0], top=values
    )
    svg = drawn(figure(boxes))
    bars = [abs(float(height)) for height in re.findall(r'd="M[^"]*?v(-?[\d.]+)h[^"]*" fill="#123456"', svg)]
    assert [round(bar / bars[0], 3) for bar in bars] == [1, 2, 4]


def test_values_outside_an_axis_that_was_given_are_cut() -> None:
    made = figure(Line(name="a", color="#123456", x=[0, 5], y=[0, 1]), x=Axis(ends=(0, 1)))
    assert "clip-path" in drawn(made)


@pytest.mark.parametrize("log", [False, True])
def test_labels_are_those_that_were_given(log: bool) -> None:
    line = Line(name="a", color="#123456", x=[1, 10], y=[1, 10])
    svg = drawn(figure(line, x=Axis(log=log, ticks={1.0: "one\nmbit", 10.0: "ten"}, categories=True)))
    for word in ("one", "mbit", "ten"):
        assert f">{word}<" in svg


def test_what_has_no_place_on_a_logarithmic_axis_is_left_out() -> None:
    line = Line(name="a", color="#123456", x=[1, 10, 100], y=[1, None, 100])
    marks = Marks(name="b", color="#654321", x=[1, 10, 100], y=[1, None, 100], low=[1, None, 90], high=[1, None, 110])
    ends = Marks(name="c", color="#abcdef", x=[1], y=[None], low=[2], high=[5])
    svg = drawn(
        figure(line, marks, ends, x=Axis(log=True, ticks={1: "1"}), y=Axis(log=True, ticks={1: "1", 100: "100"}))
    )
    assert "NaN" not in svg
    assert "Infinity" not in svg
    assert len(re.findall(r"mark-symbol role-mark[^>]*>((?:<path[^>]*>(?:</path>)?)+)", svg)) == 1
    assert svg.count('stroke="#abcdef"') >= 1, "the bar of error is there"


def test_on_a_page_colours_are_the_pages_and_the_width_that_of_its_place() -> None:
    assert vega.PAGE["axis"]["labelColor"] == "var(--ink)"
    made = vega.on_page(figure(*EVERYTHING, zoom=True))
    assert "width" not in made
    assert {signal["name"] for signal in made["signals"]} >= {"width", "brush", "xDomain", "toggled", "swatches"}
    assert "config" not in made
    json.dumps(made, allow_nan=False)


def test_readouts_are_of_lines_whose_values_are_shown() -> None:
    hidden = Line(name="b", color="#1", x=[0], y=[0], readout=False)
    readouts = vega.readouts(figure(EVERYTHING[1], hidden))
    assert readouts is not None
    assert [(line["data"], line["name"]) for line in readouts["lines"]] == [("s0", "it's a line")]
    assert vega.readouts(figure(EVERYTHING[0])) is None
