"""Every kind of page in a real browser: it draws itself without a request or an error, in light and dark, on paper and
on a telephone; hovering, the legend and zooming do what they are there for. Half a minute, most of it a browser's: what
is drawn is only known once somebody has drawn it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request

from switch_agg.slot_latency import begin_s
from testbed.claims.judge import Judgement, PointValue
from testbed.experiment.claims import Claim
from testbed.record.frames import CHANGE_SCHEMA
from testbed.record.reader import Record, load
from testbed.record.summary import AggregatorSummary, SlotLatency, Summary
from testbed.report.advice import write_advice
from testbed.report.claims.page import write_claims
from testbed.report.comparison.page import write_sweep
from testbed.report.comparison.points import Comparison
from testbed.report.differences.page import write_compared
from testbed.report.figures import Line
from testbed.report.page import record_figures, write_report
from testbed.store.compare import compare
from testbed.theory.advise import Setting, advise
from testbed.traces.derived import derived_table
from tests.cheap_runs import blank_pictures
from tests.compared import compared_point
from tests.compared_runs import modelled_runs
from tests.unit.testbed.conftest import Scenario, make_record

pytestmark = pytest.mark.browser
MOST_BYTES = 2_000_000
KINDS = (
    "run",
    "large run",
    "long run",
    "quantities",
    "names",
    "aggregated",
    "compared",
    "many compared",
    "claims",
    "advice",
)
LIGHT_INK, DARK_INK = "rgb(27, 31, 36)", "rgb(230, 233, 237)"


CUT = """svg => {
  const outer = svg.getBoundingClientRect();
  const seen = text => text.textContent && getComputedStyle(text).opacity > 0;
  return [...svg.querySelectorAll('text')].filter(seen).filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < outer.left - 1 || box.right > outer.right + 1
      || box.top < outer.top - 1 || box.bottom > outer.bottom + 1;
  }).map(text => text.textContent);
}"""
"""Words that reach beyond their figure."""


def changed(directory: Path) -> Record:
    rows = [
        {"at_s": at_s, "link": "w1-s0", "node": node, "to": to, "setting": "rate", "source": "schedule"}
        | {"before": "100mbit", "after": "50mbit", "rate_bps": 50e6}
        for at_s in (20.0, 26.0)
        for node, to in (("w1", "s0"), ("s0", "w1"))
    ]
    return make_record(directory, Scenario(num_iterations=60), changes=pl.DataFrame(rows, schema=CHANGE_SCHEMA))


def aggregated(directory: Path) -> Record:
    """A run whose slots were taken for half a millisecond to four."""
    edges_s = [begin_s(number) for number in range(36, 49)]
    latency = SlotLatency(
        num_chunks=1300, median_s=edges_s[4], p99_s=edges_s[11], edges_s=edges_s, counts=[5, 9, 90, 600, 400, *[28] * 7]
    )
    switch = AggregatorSummary(
        name="a0", at="s0", dataplane="ebpf", chunks=1300, duplicates=0, stale=0, bad=0, repeated=0, retransmitted=0,
        lost=None, slot_latency=latency,
    )  # fmt: skip
    made = make_record(directory, Scenario(num_iterations=10))
    return replace(made, summary=made.summary.model_copy(update={"aggregators": [switch]}))


def comparison(settings: list[dict[str, Any]], summary: Summary, directory: Path) -> Comparison:
    degraded = summary.model_copy(update={"outcome": "degraded", "reasons": ["because"]})
    points = tuple(compared_point(each, degraded if number == 1 else summary) for number, each in enumerate(settings))
    paths = tuple((path,) for path in settings[0])
    return Comparison(name="compared", axes=paths, points=points, directory=directory)


def judgements() -> list[Judgement]:
    claims = [
        Claim.model_validate(
            {
                "name": name, "of": "scaling_factor", "model": "what_if.scaling_factor", "why": "because",
                "take": {"kind": "farthest", "over": "R / 1e9"}, "expect": {"difference": 0.05},
                "paper": {"says": "72 %", "evidence": "figure", "points": [[10, 0.475]], "points_are": "measured"},
            }
        )
        for name in ("A: <much>", "B: more")
    ]  # fmt: skip
    points = (PointValue("100", 100.0, 0.98, 0.99), PointValue("1", 1.0, 0.08, 0.1))
    return [
        Judgement(claim=claim, state="holds", measured=0.98, model=0.99, reason="", points=points) for claim in claims
    ]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind, without what is drawn beside it for papers."""
    with blank_pictures():
        return written(tmp_path_factory.mktemp("pages"))


def written(folder: Path) -> dict[str, Path]:
    summary = make_record(folder / "plain", Scenario(num_iterations=10)).summary
    assert summary.outcome == "valid"
    large = make_record(folder / "large", Scenario(num_workers=64, bucket_bytes=(1 << 18,) * 80, num_iterations=12))
    document = {"nodes": ["x" * 50] * 10_000}
    long = make_record(folder / "long", Scenario(num_iterations=600, bucket_bytes=(1 << 20,) * 2))
    rates = [{"link.rate": rate, "compression": kind} for rate in ("10mbit", "100mbit", "1gbit") for kind in ("a", "b")]
    names = [{"collective": f"a_collective_with_a_long_name_{number}"} for number in range(6)]
    write_advice(
        advise(
            Setting(table=derived_table("resnet50"), num_workers=32, rate_bps=10e9, efficiency=0.8),
            0.9,
            max_efficiency=0.956,
        ),
        "resnet50",
        "derived, batch 32; V100",
        folder / "advice.html",
    )
    rates_bps = [("ring", 100e6), ("tree", 92e6), ("halving_doubling", 99.9e6)]
    many = [(f"a_collective_with_a_long_name_{number}", 2.0**number * 1e6) for number in range(14)]
    return {
        "compared": write_compared(
            compare(modelled_runs(folder / "compared", rates_bps, repeat=3)), folder / "compared.html"
        ),
        "many compared": write_compared(
            compare(modelled_runs(folder / "many", many, repeat=1)), folder / "many_compared.html"
        ),
        "aggregated": write_report(aggregated(folder / "aggregated")),
        "run": write_report(changed(folder / "run")),
        "large run": write_report(replace(large, plan=document, environment=document, calibration=document)),
        "long run": write_report(long),
        "quantities": write_sweep(comparison(rates, summary, folder / "rates-sweep")),
        "names": write_sweep(comparison(names, summary, folder / "names-sweep")),
        "claims": write_claims(
            "paper", None, judgements(), quick=False, folder=folder / "claims", sweeps=[], command="again"
        ),
        "advice": folder / "advice.html",
    }


@dataclass
class Opened:
    """A page and whatever it did that it should not."""

    page: Page
    url: str
    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def fill(self, selector: str = ".plot .role-axis-label text") -> str:
        return str(self.page.locator(selector).first.evaluate("each => getComputedStyle(each).fill"))


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Page:
    """One for all tests: a new one, with a process of its own, costs the browser a second."""
    return browser.new_page()


@pytest.fixture
def opened(tab: Page, pages: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Opened]:
    kind, scheme, width = request.param
    tab.goto("about:blank")
    tab.mouse.move(0, 0)
    tab.emulate_media(media="screen", color_scheme=scheme)
    tab.set_viewport_size({"width": width, "height": 900})
    found = Opened(tab, pages[kind].as_uri())

    def requested(each: Request) -> None:
        found.requests.append(each.url)

    def said(message: ConsoleMessage) -> None:
        if message.type != "log":
            found.faults.append(message.text)

    def failed(error: Error) -> None:
        found.faults.append(str(error))

    tab.on("request", requested)
    tab.on("console", said)
    tab.on("pageerror", failed)
    tab.goto(found.url)
    tab.wait_for_function(
        "[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('svg .role-mark path'))"
    )
    yield found
    tab.remove_listener("request", requested)
    tab.remove_listener("console", said)
    tab.remove_listener("pageerror", failed)


def opening(*kinds: str, scheme: str = "light", width: int = 1280) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("opened", [(kind, scheme, width) for kind in kinds], indirect=True, ids=kinds)


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_at_most_two_megabytes(pages: dict[str, Path], kind: str) -> None:
    assert pages[kind].stat().st_size <= MOST_BYTES


@opening(*KINDS)
def test_every_figure_is_drawn_without_an_error_or_a_request(opened: Opened) -> None:
    assert opened.faults == []
    assert opened.requests == [opened.url]
    places = opened.page.locator(".plot")
    assert places.count() > 0
    for place in places.all():
        assert place.locator("svg").count() == 1
        box = place.locator("svg").bounding_box()
        outer = place.bounding_box()
        assert box is not None
        assert outer is not None
        assert outer["width"] - 2 <= box["width"] <= outer["width"] + 1, "as wide as its place"
        assert place.locator("svg").evaluate(CUT) == []


@opening(*KINDS, scheme="dark")
def test_a_page_in_the_dark_has_light_words_and_on_paper_dark_ones(opened: Opened) -> None:
    assert opened.fill() == DARK_INK
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert opened.fill() == LIGHT_INK
    assert (
        opened.page.locator("body").evaluate("each => getComputedStyle(each).backgroundColor") == "rgb(255, 255, 255)"
    )
    assert opened.page.pdf().startswith(b"%PDF")
    opened.page.emulate_media(media="screen", color_scheme="light")
    assert opened.fill() == LIGHT_INK
    assert opened.faults == []


@opening(*KINDS, width=390)
def test_a_page_fits_a_telephone(opened: Opened) -> None:
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    for place in opened.page.locator(".plot svg").all():
        box = place.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        assert place.evaluate(CUT) == []
    plot = opened.page.locator(".plot svg .mark-group.role-frame > g > path.background").first
    box = plot.bounding_box()
    assert box is not None
    assert box["width"] >= 120, "room is left for what is drawn"


@opening("run")
def test_hovering_over_lines_shows_every_ones_value_at_that_time(opened: Opened, pages: dict[str, Path]) -> None:
    place = opened.page.locator("#utilization svg")
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    assert box is not None
    opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    note = opened.page.locator(".note")
    text = note.inner_text().splitlines()
    (number,) = re.findall(r"^seconds ([\d.]+)$", text[0])
    figure = record_figures(load(pages["run"].parent))["utilization"]
    for line in figure.series:
        if not isinstance(line, Line):
            continue
        at = min(range(len(line.x)), key=lambda index: abs(line.x[index] - float(number)))
        assert f"{line.name}: {float(f'{line.y[at]:.4g}'):g} %" in text
    opened.page.mouse.move(1, 1)
    assert note.is_hidden()


@opening("run")
def test_hovering_over_a_box_says_what_it_is(opened: Opened) -> None:
    opened.page.locator("#timeline .mark-rect path").first.hover(force=True)
    assert re.search(r"^w0 \w+ [\d.]+ ms, from [\d.]+ ms$", opened.page.locator(".note").inner_text())


@opening("run")
def test_the_legend_hides_and_shows(opened: Opened) -> None:
    def drawn() -> int:
        return opened.page.locator("#breakdown .mark-rect path").count()

    before = drawn()
    entry = opened.page.locator("#breakdown .role-legend-label text", has_text="exposed communication")
    entry.click()
    opened.page.wait_for_function(f"document.querySelectorAll('#breakdown .mark-rect path').length < {before}")
    assert drawn() == before - 60, "one of the parts of sixty iterations"
    entry.click()
    opened.page.wait_for_function(f"document.querySelectorAll('#breakdown .mark-rect path').length == {before}")


@opening("quantities")
def test_the_legend_hides_a_group_and_a_way_of_drawing(opened: Opened) -> None:
    def lines() -> int:
        return opened.page.locator("#allreduce .mark-line path").evaluate_all(
            "lines => lines.filter(line => line.getAttribute('d')).length"
        )

    assert lines() == 6, "measured, predicted and bound of two"
    opened.page.locator("#allreduce .role-legend-label text", has_text=re.compile("^bound$")).click()
    opened.page.wait_for_timeout(50)
    assert lines() == 4
    opened.page.locator("#allreduce .role-legend-label text", has_text=re.compile("^b$")).click()
    opened.page.wait_for_timeout(50)
    assert lines() == 2


@opening("compared")
def test_hovering_over_a_difference_says_what_it_is(opened: Opened) -> None:
    opened.page.locator("#differences .mark-symbol path[fill='#e4572e']").first.hover(force=True)
    note = opened.page.locator(".note").inner_text()
    assert re.search(r"^collective=tree\n\+[\d.]+ %\n\+[\d.]+ % to \+[\d.]+ %\nworse$", note)


@opening("compared")
def test_panels_of_one_scale_lie_side_by_side(opened: Opened) -> None:
    boxes = [opened.page.locator(f"#iterations-{number} svg").bounding_box() for number in (1, 2, 3)]
    assert all(box is not None for box in boxes)
    assert len({round(box["y"]) for box in boxes if box is not None}) == 1
    labels = [
        opened.page.locator(f"#iterations-{number} .role-axis-label text").all_text_contents()[-3:]
        for number in (1, 2, 3)
    ]
    assert labels[0] == labels[1] == labels[2]


@opening("run")
def test_dragging_zooms_and_a_double_click_shows_all_again(opened: Opened) -> None:
    labels = "#timeline .role-axis-label text"
    before = opened.page.locator(labels).all_text_contents()
    place = opened.page.locator("#timeline svg")
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    opened.page.mouse.move(box["x"] + 0.3 * box["width"], middle)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + 0.4 * box["width"], middle, steps=4)
    opened.page.mouse.up()
    opened.page.wait_for_timeout(100)
    zoomed = opened.page.locator(labels).all_text_contents()
    assert zoomed != before
    assert opened.page.locator("#timeline .mark-rect path").count() > 0
    opened.page.mouse.dblclick(box["x"] + 0.5 * box["width"], middle)
    opened.page.wait_for_timeout(100)
    assert sorted(opened.page.locator(labels).all_text_contents()) == sorted(before)
    assert opened.faults == []


@opening("run")
def test_a_narrower_window_draws_narrower_figures(opened: Opened) -> None:
    opened.page.set_viewport_size({"width": 600, "height": 900})
    opened.page.wait_for_timeout(100)
    box = opened.page.locator("#utilization svg").bounding_box()
    assert box is not None
    assert box["width"] <= 600
