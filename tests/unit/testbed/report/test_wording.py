"""Numbers as people read them."""

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from testbed.live.outcome import ending
from testbed.record import number_text
from testbed.record.reader import Record
from testbed.record.summary import BacklogSummary, DelayLine, LinkSummary, Quantiles, Summary
from testbed.report import wording
from testbed.report.comparison.comparison import columns
from testbed.report.comparison.points import ComparedPoint
from testbed.report.page import write_report
from testbed.report.terminal.summary import render_summary


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (None, "\u2013"), (0.0, "0 s"), (25e-6, "25 µs"), (0.00512, "5.12 ms"), (0.4123, "412 ms"), (1.0, "1 s"),
        (61.2, "61.2 s"), (1200.0, "20 min"), (-0.002, "-2 ms"), (3e-9, "0.003 µs"),
    ],
)  # fmt: skip
def test_times(time_s: float | None, text: str) -> None:
    assert number_text.time_text(time_s) == text


@pytest.mark.parametrize(
    ("share", "num_decimals", "text"),
    [
        (None, 1, "\u2013"), (0.0, 1, "0.0 %"), (1.0, 1, "100.0 %"), (0.9456, 1, "94.6 %"), (0.0004, 1, "0.04 %"),
        (0.9997, 1, "99.97 %"), (1.0001, 1, "100.01 %"), (0.0005, 1, "0.1 %"), (0.2, 0, "20 %"), (0.001, 0, "0.1 %"),
        (1e-12, 1, "0.0 %"), (0.00123456, 3, "0.123 %"),
    ],
)  # fmt: skip
def test_percents_read_neither_nothing_nor_all_where_it_is_not(
    share: float | None, num_decimals: int, text: str
) -> None:
    assert number_text.percent_text(share, num_decimals) == text


@pytest.mark.parametrize(
    ("rate_bps", "text"),
    [(None, "\u2013"), (95.678e6, "95.68 Mbit/s"), (100e6, "100 Mbit/s"), (1e9, "1 Gbit/s"), (0.0, "0 bit/s")],
)
def test_rates(rate_bps: float | None, text: str) -> None:
    assert number_text.rate_text(rate_bps) == text


def test_sizes_and_plain_numbers_have_no_exponent() -> None:
    assert number_text.size_text(4_456_448) == "4.46 MB"
    assert number_text.size_text(999) == "999 B"
    assert number_text.digits(12_345.0) == "12300"
    assert number_text.digits(0.0412) == "0.0412"


def test_deviation_never_shows_a_negative_zero(record: Callable[..., Record]) -> None:
    assert wording.deviation_text(-0.00001) == "+0.00 %"
    assert wording.deviation_text(-0.0005) == "-0.05 %"
    link = record(num_iterations=2).summary.links[0]
    assert wording.deviation(link.model_copy(update={"expected_bytes": 0})) is None


def test_a_rate_that_was_not_measured_itself_or_not_now_has_a_mark_that_says_so(record: Callable[..., Record]) -> None:
    link = record(num_iterations=2).summary.links[0]
    name = f"{link.from_} -> {link.to}"
    own = link.model_copy(update={"rate_measured_on": name})
    of_class = link.model_copy(update={"rate_measured_on": "w9 -> s0"})
    cached = own.model_copy(update={"rate_from_cache": True})
    assert wording.measured_on(own) == ""
    assert wording.measured_on(of_class) == "of its class, measured on w9 -> s0"
    assert wording.measured_on(cached) == f"of its class, measured on {name} in an earlier run"
    assert wording.marked_rates([own]) == ""
    assert wording.marked_rates([own, of_class]) == "measured on another of its class"
    assert wording.marked_rates([cached]) == "measured before this run"
    assert wording.marked_rates([of_class, cached]) == "measured on another of its class or measured before this run"


def test_cached_rates_are_marked_in_the_terminal_and_on_the_page(record: Callable[..., Record]) -> None:
    loaded = record(num_iterations=2)
    links = [
        link.model_copy(update={"rate_measured_on": f"{link.from_} -> {link.to}", "rate_from_cache": True})
        for link in loaded.summary.links
    ]
    cached = replace(loaded, summary=loaded.summary.model_copy(update={"links": links}))
    text = io.StringIO()
    render_summary(cached.summary, Console(file=text, width=200))
    rate = number_text.rate_text(links[0].measured_rate_bps)
    assert f"~{rate}" in text.getvalue()
    assert "; ~: measured before this run." in " ".join(text.getvalue().split())
    page = write_report(cached).read_text(encoding="utf-8")
    assert f"~{rate}" in page
    assert "~ marks a rate that was measured before this run." in " ".join(page.split())


def test_the_headline_answers_the_question(record: Callable[..., Record]) -> None:
    summary = record().summary
    assert _headline(summary).startswith("4 workers spend 81 % of every iteration on communication")
    assert "of 4 times the speed of one alone" in _headline(summary)
    contended = summary.model_copy(update={"scaling_factor": None})
    assert _headline(contended).endswith("of the speed they would have without a network, on these cores.")
    without = contended.model_copy(update={"network_efficiency": None})
    assert _headline(without).endswith("does not hide.")
    limited_by_cores = contended.model_copy(update={"network_efficiency": 1.09})
    assert "the cores are the limit" in _headline(limited_by_cores)


@pytest.mark.parametrize(("outcome", "stands"), [("degraded", True), ("invalid", False), ("failed", False)])
def test_there_is_no_headline_of_numbers_that_do_not_stand(
    record: Callable[..., Record], outcome: str, stands: bool
) -> None:
    """Neither on the terminal and the live page nor anywhere else."""
    loaded = record()
    sentence = _headline(loaded.summary)
    changed = loaded.summary.model_copy(update={"outcome": outcome, "reasons": ["w0 was slow"]})
    assert wording.headline(changed) == (sentence if stands else None)
    text = io.StringIO()
    render_summary(changed, Console(file=text, width=200))
    assert (sentence in " ".join(text.getvalue().split())) == stands
    assert (ending(changed).headline is not None) == stands


def test_what_links_held_is_said_only_where_it_is_known_well(record: Callable[..., Record]) -> None:
    link = record(num_iterations=3).summary.links[0]

    def probed(chance: float) -> LinkSummary:
        reported = {"num_probes": 9, "watched_s": 1.0, "due_bytes": 1e6, "sent_bytes": 990_000, "held_share": 1.0}
        return link.model_copy(update={"backlog": BacklogSummary(**reported, chance=chance)})

    assert wording.shaping_accuracy(link) is None
    assert wording.shaping_accuracy(probed(0.2)) is None
    assert wording.shaping_accuracy(probed(0.01)) == pytest.approx(0.99)
    assert wording.backlog_text([link]) is None
    assert wording.backlog_text([probed(0.2)]) is None
    assert wording.backlog_text([probed(0.06), probed(0.06), link]) == (
        "99.0 %",
        "of rate x time was sent while packets waited (18 probes)",
    )


def test_lateness_is_that_of_the_worst_link(record: Callable[..., Record]) -> None:
    link = record(num_iterations=3).summary.links[0]
    assert wording.lateness_text([link]) is None
    lines = [
        DelayLine(num_packets=9, num_lost=0, num_dropped=0, late_median_s=m, late_p99_s=p, late_max_s=1e-3)
        for m, p in ((20e-6, 90e-6), (30e-6, 70e-6))
    ]
    number, text = wording.lateness_text([link.model_copy(update={"delay_line": line}) for line in lines]) or ("", "")
    assert number == "+30 µs"
    assert "p99 90 µs, max. 1 ms" in text


def test_marks_are_counted_over_all_links_and_the_most_marked_is_named(record: Callable[..., Record]) -> None:
    link = record(num_iterations=3).summary.links[0]
    assert wording.marks_text([link]) is None
    lines = [
        DelayLine(
            num_packets=2000, num_lost=0, num_dropped=0, num_marked=number, late_median_s=0, late_p99_s=0, late_max_s=0
        )
        for number in (5, 1200, 0)
    ]
    number, text = wording.marks_text([link.model_copy(update={"delay_line": line}) for line in lines]) or ("", "")
    assert (number, text) == ("1,205", f"packets by ECN; most by {link.from_} → {link.to}: 1,200 of 2,000")


@given(st.lists(st.floats(0, 10), min_size=6, max_size=6).filter(lambda parts: sum(parts) > 1e-6))
def test_shares_of_an_iteration_add_up_to_a_hundred(parts_s: list[float]) -> None:
    numbers = dict(zip((field for _, field, *_ in wording.PARTS), parts_s, strict=True))
    shares = wording.shares(numbers)
    assert sum(round(10 * share) for share in shares) == 1000
    assert all(
        abs(share - 100 * part_s / sum(parts_s)) < 0.1 + 1e-9 for share, part_s in zip(shares, parts_s, strict=True)
    )


def test_the_terminal_the_report_and_a_sweep_show_parts_that_add_up(record: Callable[..., Record]) -> None:
    loaded = record()
    summary, names = loaded.summary, [name for name, *_ in wording.PARTS]
    assert summary.iteration_time_s is not None
    assert sum(part_s for _, part_s in wording.parts(summary)) == pytest.approx(summary.iteration_time_s.mean)
    stream = io.StringIO()
    render_summary(summary, Console(file=stream, width=100))
    shown = [line for line in stream.getvalue().splitlines() if line.strip().startswith(tuple(names))]
    assert _tenths(shown) == 1000
    page = write_report(loaded).read_text()
    legend = re.findall(rf"(?:{'|'.join(names)})\s+([\d.]+) %<b>", page)
    assert (len(legend), _tenths(f"{share} %" for share in legend)) == (6, 1000)
    point = ComparedPoint(
        settings={}, spec_sha256="ab", bound_s=1.0, schedule_bound_s=1.0, predicted_s=1.0, num_requested=2,
        runs=(summary, summary.model_copy(update={"compute_time_s": 1.0, "iteration_time_s": _with(summary, 1.0)})),
    )  # fmt: skip
    row = point.row()
    assert sum(part_s for _, part_s in wording.parts(row)) == pytest.approx(row["iteration_time_s"])
    cells = [text(row) for _, text, _ in columns([row]) if text(row).endswith(" %")]
    assert _tenths(cells[: len(names)]) == 1000


def _tenths(texts: Iterable[str]) -> int:
    found = [re.search(r"([\d.]+) %", text) for text in texts]
    return sum(round(10 * float(each.group(1))) for each in found if each)


def _headline(summary: Summary) -> str:
    sentence = wording.headline(summary)
    assert sentence is not None
    return sentence


def _with(summary: Summary, compute_s: float) -> Quantiles:
    """The iteration with another computing time."""
    assert summary.iteration_time_s is not None
    assert summary.compute_time_s is not None
    mean = summary.iteration_time_s.mean + compute_s - summary.compute_time_s
    return summary.iteration_time_s.model_copy(update={"mean": mean})


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.0, "0 %"), (0.004, "less than 1 %"), (0.5, "50 %"), (0.997, "more than 99 %"), (1.0, "100 %")],
)
def test_a_little_is_not_nothing_and_nearly_all_is_not_all(
    record: Callable[..., Record], share: float, shown: str
) -> None:
    summary = record().summary.model_copy(update={"scaling_factor": share})
    assert f"train at {shown} of" in _headline(summary)
