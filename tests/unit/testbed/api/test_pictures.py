"""A figure shows itself, and its verdict is in the picture wherever that goes."""

import re
from pathlib import Path

import pytest

from testbed.api.pictures import Picture
from testbed.errors import MissingRequirementError, SpecError
from testbed.report.figures import Axis, Figure, Line

LINE = Line(name="a", color="#123456", x=[0.0, 1.0], y=[0.0, 1.0])
FIGURE = Figure(title="A line", height=100, x=Axis(), y=Axis(), series=[LINE])


def words(svg: str) -> list[str]:
    """Each line that is written."""
    return re.findall(r"<(?:text|tspan)[^>]*>([^<]+)<", svg)


def test_the_caption_is_drawn_and_a_long_one_is_cut() -> None:
    picture = Picture("line", FIGURE, "quickstart, run x: INVALID: " + "because of this and of that, " * 20)
    shown = picture._repr_mimebundle_()
    assert set(shown) == {"image/svg+xml", "text/plain"}
    first, second = (text for text in words(shown["image/svg+xml"]) if "because" in text)
    assert first.startswith("quickstart, run x: INVALID: because")
    assert second.endswith(" ...")
    assert "A line" in shown["text/plain"]
    assert "INVALID" in repr(picture)


def test_it_is_saved_by_the_files_name(tmp_path: Path) -> None:
    picture = Picture("line", FIGURE, "valid")
    assert words(picture.save(tmp_path / "a.svg").read_text()) == words(picture.svg())
    assert picture.save(str(tmp_path / "a.png")).read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SpecError, match=r"\.svg or \.png"):
        picture.save(tmp_path / "a.pdf")
    with pytest.raises(MissingRequirementError, match="cannot write"):
        picture.save(tmp_path / "nowhere" / "a.svg")
