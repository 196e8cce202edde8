"""The page is whole, needs nothing from outside, and says what the summary says."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import polars as pl
import pytest

from testbed.record.number_text import DASH
from testbed.record.reader import Record
from testbed.record.summary import (
    AggregatorSummary,
    CommandExit,
    CommandSummary,
    PrometheusSummary,
    SlotLatency,
    TenantSummary,
)
from testbed.report import wording
from testbed.report.figures import Line
from testbed.report.page import record_figures, write_report
from testbed.theory.predict import RunPrediction
from testbed.theory.reach import Expected, Reach

Make = Callable[..., Record]


class Page(HTMLParser):
    """Visible text, references to other files, and the inlined figures."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.references: list[str] = []
        self.ids: set[str] = set()
        self.figures: dict[str, object] = {}
        self._element = ""
        self.feed(html)
        self.text = re.sub(r"\s+", " ", self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self._element = "figures" if named.get("id") == "figures" else tag
        self.ids.add(named.get("id") or "")
        self.references += [value for name, value in attrs if name in {"src", "href"} and value]

    def handle_endtag(self, tag: str) -> None:
        self._element = ""

    def handle_data(self, data: str) -> None:
        if self._element == "figures":
            self.figures = json.loads(data)["figures"]
        elif self._element not in {"script", "style"}:
            self.text += data


def page(record: Record) -> Page:
    path = write_report(record)
    assert path == record.path / "report.html"
    return Page(path.read_text(encoding="utf-8"))


def test_the_page_is_self_contained_and_every_figure_has_its_place(record: Make) -> None:
    made = page(record())
    assert made.references == []
    assert set(made.figures) == {"utilization", "breakdown", "timeline", "loss"}
    assert set(made.figures) <= made.ids


def test_the_page_says_what_the_summary_says(record: Make) -> None:
    loaded = record(outcome="degraded", reasons=["the <hypervisor> took 3.4 % of the CPU time"])
    made = page(loaded)
    assert loaded.summary.iteration_time_s is not None
    assert f"{1e3 * loaded.summary.iteration_time_s.mean:.0f} ms" in made.text
    assert "the <hypervisor> took 3.4 % of the CPU time" in made.text, "escaped"
    assert "DEGRADED" in made.text
    assert "samples a second of 4 workers over 4 times those of one that computes alone" in made.text
    assert (
        "bytes of 8 of 8 link directions, rates of 8 (0 measured themselves), delays of 8 checked" in made.text.lower()
    )
    for link in loaded.summary.links:
        assert f"{link.from_} → {link.to}" in made.text
        assert f"{link.bytes:,}" in made.text
    assert loaded.spec_yaml.strip().splitlines()[-1] in made.text
    assert '"model": "<any>"' in made.text


def test_a_prediction_has_a_dashed_card_with_its_error_and_its_reach(record: Make) -> None:
    reach = Reach(num_workers=(2, 8), size_bytes=(1, 2), delay_s=(0.0, 1.0), rate_bps=(1.0, 2.0), channels=("tcp",))
    expected = Expected(0.02, "validation", 98, reach)
    made = record(predicted=RunPrediction(0.5, None, expected, ("16 workers (2 to 8)",), None))
    assert made.summary.iteration_time_s is not None
    found = page(made)
    assert 'class="card predicted"' in (made.path / "report.html").read_text(encoding="utf-8")
    assert f"{100 * (0.5 / made.summary.iteration_time_s.mean - 1):+.1f} % off the measured mean" in found.text
    assert "utside what predictions were compared with: 16 workers (2 to 8); no error is known there" in found.text
    breakdown = record_figures(made)["breakdown"]
    (line,) = [series for series in breakdown.series if isinstance(series, Line)]
    assert (line.dash, line.y) == ("dash", [500.0, 500.0])


def test_a_tree_of_switches_that_add_is_a_table(record: Make) -> None:
    loaded = record()
    common = {"dataplane": "ebpf", "duplicates": 0, "stale": 0, "bad": 0, "repeated": 0, "retransmitted": 0}
    tenant = TenantSummary(workers=["x0"], num_slots=32, size_bytes=1 << 18, reductions=290, chunks_sent=74240)
    latency = SlotLatency(
        num_chunks=400, median_s=1.25e-3, p99_s=8e-3, edges_s=[1e-3, 1.25e-3, 7e-3, 8e-3], counts=[300, 0, 100]
    )
    aggregators = [
        AggregatorSummary(
            name="a0", at="s2", chunks=34778, children=["a1", "w2"], tenants=[tenant], lost=None, **common
        )
        .model_copy(update={"wait_median_s": 1e-3, "wait_p99_s": 8e-3, "last": "w2", "last_share": 0.61})
        .model_copy(update={"slot_latency": latency}),
        AggregatorSummary(name="a1", at="s0", chunks=34778, children=["w0"], parent="a0", lost="killed", **common),
    ]
    made = page(replace(loaded, summary=loaded.summary.model_copy(update={"aggregators": aggregators})))
    for words in (
        "a0 at s2 (ebpf)",
        "a1, w2",
        "34,778",
        "lost: killed",
        "for x0 beside it 290 reductions of 256KiB",
        "less than 1 ms for their last part",
        "61 % for that of w2",
        "use took 1.25 ms or less for half of the chunks, 8 ms or less for 99 %",
        "Latency of a slot. From a chunk's first sending",
    ):
        assert words in made.text


def test_what_a_command_s_workers_do_not_count_is_no_zero(record: Make) -> None:
    loaded = record()
    unknown = dict.fromkeys(("repeated", "retransmitted", "partial"))
    switch = AggregatorSummary(
        name="a0", at="s0", dataplane="ebpf", chunks=8, duplicates=3, stale=0, bad=0, lost=None, **unknown
    )
    made = page(replace(loaded, summary=loaded.summary.model_copy(update={"aggregators": [switch]})))
    above = sent_again = for_precision = partial = DASH
    assert f"(ebpf){above}830{sent_again}{for_precision}{partial}" in made.text.replace(" ", "")
    text = wording.aggregator_text(switch)
    assert text == "chunks at s0 (ebpf); 3 contributions came again, 0 too late"


@pytest.mark.parametrize(("outcome", "stands"), [("valid", True), ("degraded", True), ("invalid", False)])
def test_the_verdict_comes_first_with_its_notes_and_no_answer_stands_without_it(
    record: Make, outcome: str, stands: bool
) -> None:
    loaded = record()
    changed = {"outcome": outcome, "reasons": ["w0 was slow"], "notes": ["the loss means nothing"]}
    text = page(replace(loaded, summary=loaded.summary.model_copy(update=changed))).text
    answer = wording.headline(loaded.summary)
    assert answer is not None
    assert (answer in text) == stands
    assert text.index(outcome.upper()) < text.index("w0 was slow") < text.index("note: the loss means nothing")
    assert not stands or text.index(outcome.upper()) < text.index(answer)


def test_a_run_that_failed_early_has_a_page_without_figures(record: Make) -> None:
    loaded = record()
    nothing = dict.fromkeys(
        ["iteration_time_s", "compute_time_s", "data_time_s", "waiting_time_s", "exposed_communication_s",
         "optimizer_time_s", "other_time_s", "compute_only_time_s", "compute_alone_time_s", "compute_contention",
         "samples_per_s", "scaling_factor", "network_efficiency", "loss", "parameters_sha256", "allreduce"]
    )  # fmt: skip
    summary = loaded.summary.model_copy(update={**nothing, "outcome": "failed", "links": [], "num_iterations": 0})
    made = page(replace(loaded, summary=summary, iterations=loaded.iterations.clear()))
    assert "FAILED" in made.text
    assert "No iteration was completed." in made.text
    assert made.figures == {}


def test_a_document_that_would_be_most_of_the_page_is_named_instead(record: Make) -> None:
    loaded = record(num_iterations=2)
    text = page(replace(loaded, plan={"nodes": ["x" * 50] * 3000})).text
    assert re.search(r"Plan1\d\d kB: plan.json beside this page", text)
    assert '"model": "<any>"' in text, "of the environment"


def test_a_name_cannot_break_out_of_the_page(record: Make) -> None:
    made = page(record(name="</script><script>alert(1)</script>", num_iterations=2))
    assert "</script><script>alert(1)</script>" in made.text, "shown as text"
    assert set(made.figures) == {"utilization", "breakdown", "timeline", "loss"}


def test_a_name_inside_a_figure_cannot_end_its_element(record: Make) -> None:
    loaded = record(num_iterations=2)
    evil = "</script><b>"
    links = [link.model_copy(update={"from_": evil}) for link in loaded.summary.links if link.from_ == "w0"]
    renamed = replace(
        loaded,
        summary=loaded.summary.model_copy(update={"links": links}),
        links=loaded.links.with_columns(node=pl.col("node").replace("w0", evil)),
    )
    assert f"{evil} → s0" in json.dumps(page(renamed).figures, ensure_ascii=False)


def test_unknown_schedules_and_measurements_are_dashes(record: Make) -> None:
    loaded = record(num_iterations=2)
    links = [
        link.model_copy(update={"expected_bytes": None, "measured_rate_bps": None}) for link in loaded.summary.links
    ]
    made = page(replace(loaded, summary=loaded.summary.model_copy(update={"links": links})))
    assert "None" not in made.text
    assert "\u2013" in made.text


def test_a_withheld_time_is_a_dash_with_its_reason(record: Make) -> None:
    loaded = record()
    assert loaded.summary.allreduce is not None
    withheld = loaded.summary.allreduce.model_copy(update={"time_s": None, "missing": "too much waiting"})
    links = [link.model_copy(update={"utilization_busy": None}) for link in loaded.summary.links]
    summary = loaded.summary.model_copy(update={"allreduce": withheld, "links": links})
    made = page(replace(loaded, summary=summary))
    assert "Withheld: too much waiting." in made.text
    assert "None" not in made.text


def test_utilization_is_that_of_links_that_have_a_rate(record: Make) -> None:
    loaded = record(num_iterations=2)
    shaped, *others = loaded.summary.links
    links = [shaped, *(link.model_copy(update={"utilization_mean": None, "utilization_busy": None}) for link in others)]
    made = page(replace(loaded, summary=loaded.summary.model_copy(update={"links": links})))
    assert "Over all 1 link directions that have a rate." in made.text
    figure: Any = made.figures["utilization"]
    assert len(figure["readouts"]["lines"]) == 1
    assert "None" not in made.text


def test_compression_has_a_card_of_its_own(record: Make) -> None:
    facts: dict[str, Any] = {"compression": "top_k", "gradient_bytes": 4_456_448, "traffic_ratio": 0.41}
    assert "top_k: 446 kB of 4.46 MB per worker" in page(record(num_iterations=2, **facts)).text
    assert "encoding" not in page(record(num_iterations=2)).text


def test_a_command_has_a_page_of_its_links(record: Make) -> None:
    loaded = record()
    command = CommandSummary(
        argv=["python", "a b.py"],
        backend="testbed",
        redirected=["gloo"],
        launcher=False,
        start_s=2.0,
        time_s=3.0,
        workers=[CommandExit(name="w0", status=0, time_s=2.5), CommandExit(name="w1", status=-9, time_s=3.0)],
    )
    summary = loaded.summary.model_copy(
        update={"command": command, "iteration_time_s": None, "scaling_factor": None, "samples_per_s": None}
    )
    made = page(replace(loaded, summary=summary, iterations=loaded.iterations.clear()))
    assert "4 workers ran the command for 3 s" in made.text
    assert "python 'a b.py'; process groups of gloo made by testbed" in made.text
    assert "w1: signal 9" in made.text
    assert "utilization" in made.figures
    assert "breakdown" not in made.figures


def test_what_prometheus_saw_is_on_the_page_with_the_command_that_opens_it_again(record: Make) -> None:
    loaded = record(num_iterations=3)
    seen = PrometheusSummary(
        data="prometheus/data",
        num_scrapes=12,
        num_series=148,
        compared_s=12.0,
        alerts={"EmulationNotValid": 1},
        differences=["testbed_link_drops_total of w0 on w0-s0 was never scraped"],
    )
    watched = replace(loaded, summary=loaded.summary.model_copy(update={"prometheus": seen}))
    text = Page(write_report(watched).read_text()).text
    assert "its counters are not the record's; alerts fired: EmulationNotValid (1)" in text
    assert f"--storage.tsdb.path={loaded.path}/prometheus/data" in text
    assert "prometheus" not in Page(write_report(loaded).read_text()).text.partition("Spec,")[0].lower()


def test_a_run_leaves_its_page_and_markdown_and_pictures_where_they_are_requested(record: Make) -> None:
    loaded = record(num_iterations=3)
    write_report(loaded)
    assert not (loaded.path / "report-figures").exists()
    assert "](" not in (loaded.path / "report.md").read_text()
    write_report(loaded, pictures=True)
    assert "![timeline](report-figures/timeline.svg)" in (loaded.path / "report.md").read_text()
    assert (loaded.path / "report-figures" / "timeline.png").read_bytes().startswith(b"\x89PNG")
