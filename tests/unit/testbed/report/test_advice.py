"""The page of advice: one file, every change, today's point and the target in the picture."""

import itertools
import json
import re
from pathlib import Path

import pytest

from testbed.errors import SpecError
from testbed.report.advice import scaling_figure, write_advice
from testbed.report.figures import Line, Marks
from testbed.theory.advise import Setting, advise
from testbed.traces.derived import derived_table

TODAY = Setting(table=derived_table("resnet50"), num_workers=32, rate_bps=10e9, efficiency=0.8)
ADVICE = advise(TODAY, 0.9, max_efficiency=0.956)


def test_the_page_is_one_file_with_every_change(tmp_path: Path) -> None:
    write_advice(ADVICE, "resnet<50>", "derived, batch 32; V100", tmp_path / "advice.html")
    html = (tmp_path / "advice.html").read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", re.sub(r"(?s)(?<=<script>).*?(?=</script>)", "", html))
    assert "resnet&lt;50&gt;" in html
    assert "Predicted, not measured" in html
    assert "int8 3.94 x" in html
    assert "Computing: derived, batch 32; V100." in html
    assert html.count('<td class="change">') == 1 + len(ADVICE.changes)
    (figures,) = re.findall(r'id="figures">(.*?)</script>', html, re.DOTALL)
    assert set(json.loads(figures)["figures"]) == {"scaling"}
    assert {path.name for path in (tmp_path / "advice-figures").iterdir()} == {"scaling.svg", "scaling.png"}


def test_what_else_lies_there_is_left_alone(tmp_path: Path) -> None:
    for name in ("mine.svg", "mine.png"):
        (tmp_path / "advice-figures").mkdir(exist_ok=True)
        (tmp_path / "advice-figures" / name).write_text("mine")
    write_advice(ADVICE, "resnet50", "derived", tmp_path / "advice.html")
    kept = {path.name for path in (tmp_path / "advice-figures").iterdir()}
    assert kept == {"scaling.svg", "scaling.png", "mine.svg", "mine.png"}
    with pytest.raises(SpecError, match=r"README\.md: a page's name ends in \.html"):
        write_advice(ADVICE, "resnet50", "derived", tmp_path / "README.md")


def test_curves_are_dashed_for_they_are_predicted_and_pass_through_todays_point() -> None:
    series = scaling_figure(ADVICE).series
    (today,) = [each for each in series if isinstance(each, Marks)]
    assert (today.x, today.y) == ([10.0], [pytest.approx(100 * TODAY.scaling_factor, rel=1e-3)])
    curves = [each for each in series if isinstance(each, Line) and each.dash == "dash"]
    assert len(curves) == 1 + len(ADVICE.changes) - 1  # links go along today's curve
    first = curves[0]
    assert first.y[first.x.index(10.0)] == pytest.approx(today.y[0])
    # On faster links a cycle may have begun that the last gradients have to wait for.
    cycle = 100 * TODAY.fusion.cycle_s / TODAY.compute_s
    assert all(later >= earlier - cycle for earlier, later in itertools.pairwise(first.y))
