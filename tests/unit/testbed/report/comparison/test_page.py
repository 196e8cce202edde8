"""The page of a sweep needs nothing from outside but the reports that it links."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from testbed.record.reader import Record
from testbed.report.comparison.page import write_sweep
from testbed.report.comparison.points import Comparison
from tests.compared import compared_point


def test_the_page_is_one_file_with_every_point_and_links_to_the_reports(
    record: Callable[..., Record], tmp_path: Path
) -> None:
    made = record()
    (made.path / "report.html").touch()
    summary = made.summary.model_copy(update={"outcome": "degraded", "reasons": ["the <cores> were busy"]})
    points = tuple(
        compared_point({"link.rate": rate}, *runs) for rate, runs in (("100mbit", (summary,)), ("1gbit", ()))
    )
    page = write_sweep(Comparison(name="x", axes=(("link.rate",),), points=points, directory=tmp_path / "x-sweep-1"))
    html = page.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", re.sub(r"(?s)(?<=<script>).*?(?=</script>)", "", html))
    (link,) = re.findall(r'<td><a href="([^"]+)"', html)
    assert (page.parent / link).resolve() == (made.path / "report.html").resolve()
    for words in (
        "100mbit",
        "1gbit",
        "not run",
        "degraded",
        "1 of them degraded: drawn hollow",
        "the &lt;cores&gt; were busy",
        "link<wbr>.rate",
    ):
        assert words in html
    (figures,) = re.findall(r'id="figures">(.*?)</script>', html, re.DOTALL)
    drawn = set(json.loads(figures)["figures"])
    assert drawn == {"iteration", "allreduce", "scaling", "breakdown"}
    assert all(f'id="{name}"' in html for name in drawn)
    assert {path.name for path in page.parent.iterdir()} == {
        "sweep.json", "sweep.csv", "sweep.html", "sweep.md", "sweep-figures",
    }  # fmt: skip
    pictures = {path.name for path in (page.parent / "sweep-figures").iterdir()}
    assert pictures == {f"{name}.{kind}" for name in drawn for kind in ("svg", "png")}


def test_a_run_without_a_report_has_no_link_to_one(record: Callable[..., Record], tmp_path: Path) -> None:
    summary = record().summary.model_copy(update={"outcome": "failed", "reasons": ["w0 ended"]})
    points = (compared_point({"link.rate": "1gbit"}, summary),)
    page = write_sweep(Comparison(name="x", axes=(("link.rate",),), points=points, directory=tmp_path / "x-sweep-1"))
    html = page.read_text(encoding="utf-8")
    assert "report.html" not in html
    assert '<a title="w0 ended">' in html


def test_the_page_says_what_all_runs_have_in_common(record: Callable[..., Record], tmp_path: Path) -> None:
    made = record().summary
    points = tuple(
        compared_point({"link.rate": rate}, made.model_copy(update={"setup": f"star · {rate} · ring over tcp"}))
        for rate in ("100mbit", "1gbit")
    )
    page = write_sweep(Comparison(name="x", axes=(("link.rate",),), points=points, directory=tmp_path / "x-sweep-1"))
    assert f"<p>{made.num_workers} workers · star · ring over tcp</p>" in page.read_text(encoding="utf-8")


def test_without_pictures_none_are_left_of_an_earlier_time(record: Callable[..., Record], tmp_path: Path) -> None:
    summary = record().summary
    points = tuple(compared_point({"link.rate": rate}, summary) for rate in ("100mbit", "1gbit"))
    made = Comparison(name="x", axes=(("link.rate",),), points=points, directory=tmp_path / "x-sweep-1")
    page = write_sweep(made)
    pictures = page.with_name("sweep-figures")
    assert list(pictures.glob("*.png"))
    write_sweep(made, pictures=False)
    assert not list(pictures.iterdir())
    assert "sweep-figures" not in page.with_suffix(".md").read_text()
