"""The page of compared settings needs nothing from outside but the reports that it links."""

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from testbed.errors import SpecError
from testbed.report.differences.page import write_compared
from testbed.store.compare import compare
from tests.compared_runs import modelled_runs

SETTINGS = (("ring", 100e6), ("tree", 92e6), ("<halving>", 100e6))


def test_the_page_is_one_file_with_every_setting_and_links_to_the_reports(tmp_path: Path) -> None:
    compared = compare(modelled_runs(tmp_path / "runs #1", SETTINGS, repeat=2))
    for setting in compared.settings:
        for run in setting.summaries:
            (Path(run.record) / "report.html").write_text("")
    page = write_compared(compared, tmp_path / "pages" / "compared.html")
    html = page.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", re.sub(r"(?s)(?<=<script>).*?(?=</script>)", "", html))
    links = re.findall(r'<a href="([^"]+)"', html)
    records = [run.record for setting in compared.settings for run in setting.summaries]
    assert [(page.parent / unquote(link)).resolve() for link in links] == [
        (Path(record) / "report.html").resolve() for record in records
    ]
    assert "&lt;halving&gt;" in html
    assert "<halving>" not in html
    assert "not distinguishable from noise" in html
    (figures,) = re.findall(r'id="figures">(.*?)</script>', html, re.DOTALL)
    drawn = set(json.loads(figures)["figures"])
    assert drawn == {"differences", "runs", "parts", "iterations-1", "iterations-2", "iterations-3"}
    assert all(f'id="{name}"' in html for name in drawn)
    assert {path.name for path in page.parent.iterdir()} == {"compared.html", "compared.md", "compared-figures"}
    pictures = {path.name for path in (page.parent / "compared-figures").iterdir()}
    assert pictures == {f"{name}.{kind}" for name in drawn for kind in ("svg", "png")}


def test_a_page_of_runs_that_do_not_stand_says_so(tmp_path: Path) -> None:
    records = modelled_runs(tmp_path, SETTINGS[:2], repeat=1, outcome="invalid", reasons=["the links were slower"])
    page = write_compared(compare(records, force=True), tmp_path / "compared.html")
    for text in (page.read_text(encoding="utf-8"), page.with_suffix(".md").read_text(encoding="utf-8")):
        assert "invalid, so its numbers do not stand: the links were slower" in text
        assert "one run of a setting: how much runs differ from each other is unknown" in text


def test_what_is_not_of_such_a_page_stays(tmp_path: Path) -> None:
    compared = compare(modelled_runs(tmp_path / "runs", SETTINGS[:2], repeat=1))
    folder = tmp_path / "paper-figures"
    folder.mkdir()
    for name in ("own.svg", "iterations-9.svg"):
        (folder / name).write_text("")
    (tmp_path / "paper.md").write_text("# A paper\n")
    with pytest.raises(SpecError, match=r"paper\.md exists, and is not of such a page"):
        write_compared(compared, tmp_path / "paper.html")
    (tmp_path / "paper.md").unlink()
    for _ in range(2):  # its own Markdown is written again
        write_compared(compared, tmp_path / "paper.html")
    assert (folder / "own.svg").exists()
    assert not (folder / "iterations-9.svg").exists(), "of a page that was there before"
    assert "href=" not in re.sub(r"(?s)<script>.*?</script>", "", (tmp_path / "paper.html").read_text()), "no reports"


def test_a_page_is_not_written_over_by_its_markdown(tmp_path: Path) -> None:
    compared = compare(modelled_runs(tmp_path, SETTINGS[:2], repeat=1))
    with pytest.raises(SpecError, match=r"--page .*: a page's name ends in \.html"):
        write_compared(compared, tmp_path / "compared.md")
