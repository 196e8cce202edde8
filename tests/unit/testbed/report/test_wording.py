"""Numbers as people read them."""

from collections.abc import Callable

import pytest

from testbed.record import number_text
from testbed.record.reader import Record
from testbed.record.summary import BacklogSummary, DelayLine, LinkSummary
from testbed.report import wording


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


def test_the_headline_answers_the_question(record: Callable[..., Record]) -> None:
    summary = record().summary
    assert wording.headline(summary).startswith("4 workers spend 81 % of every iteration on communication")
    assert "of 4 times the speed of one alone" in wording.headline(summary)
    contended = summary.model_copy(update={"scaling_factor": None})
    assert wording.headline(contended).endswith("of the speed they would have without a network, on these cores.")
    without = contended.model_copy(update={"network_efficiency": None})
    assert wording.headline(without).endswith("does not hide.")
    limited_by_cores = contended.model_copy(update={"network_efficiency": 1.09})
    assert "the cores are the limit" in wording.headline(limited_by_cores)


def test_what_links_held_is_said_only_where_it_is_known_well(record: Callable[..., Record]) -> None:
    link = record(num_iterations=3).summary.links[0]

    def probed(chance: float) -> LinkSummary:
        told = {"num_probes": 9, "watched_s": 1.0, "due_bytes": 1e6, "sent_bytes": 990_000, "held_share": 1.0}
        return link.model_copy(update={"backlog": BacklogSummary(**told, chance=chance)})

    assert wording.rate_held(link) is None
    assert wording.rate_held(probed(0.2)) is None
    assert wording.rate_held(probed(0.01)) == pytest.approx(0.99)
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
    assert "p99 90 µs, at most 1 ms" in text


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
