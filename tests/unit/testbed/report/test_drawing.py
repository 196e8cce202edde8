"""Vega as one script, put together once, and pictures beside a page."""

from pathlib import Path

import pytest

from testbed.errors import MissingRequirementError
from testbed.report import drawing
from testbed.report.figures import Axis, Figure, Line

FIGURE = Figure(
    title="t", height=100, x=Axis(), y=Axis(), series=[Line(name="a", color="#123456", x=[0.0, 1.0], y=[0.0, 1.0])]
)


def test_the_script_is_made_once_and_cannot_end_its_element(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = drawing.script()
    assert "window.vegaEmbed=" in made.replace(" ", "")
    assert "</script" not in made
    assert len(made) < 1_000_000, "half of what a page may have"
    (kept,) = (tmp_path / "ina-testbed").iterdir()
    assert kept.read_text() == made
    kept.write_text("what lies there is taken")
    assert drawing.script() == "what lies there is taken"


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ina-testbed").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingRequirementError, match="XDG_CACHE_HOME"):
        drawing.script()


def test_pictures_lie_beside_their_page_and_old_ones_go(tmp_path: Path) -> None:
    page = tmp_path / "advice.html"
    drawing.write_pictures(page, {"one": FIGURE, "two": FIGURE})
    (tmp_path / "advice-figures" / "mine.txt").write_text("stays")
    written = drawing.write_pictures(page, {"one": FIGURE})
    names = {path.name for path in (tmp_path / "advice-figures").iterdir()}
    assert names == {"one.svg", "one.png", "mine.txt"}
    assert [path.name for path in written] == ["one.svg", "one.png"]
    assert written[1].read_bytes().startswith(b"\x89PNG")
    assert written[0].read_text().startswith("<svg")


def test_a_page_without_figures_has_no_folder(tmp_path: Path) -> None:
    assert drawing.write_pictures(tmp_path / "page.html", {}) == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "page-figures").write_text("not a folder")
    with pytest.raises(MissingRequirementError, match="page-figures"):
        drawing.write_pictures(tmp_path / "page.html", {"one": FIGURE})
