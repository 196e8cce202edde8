"""Numbers as people read them."""

from collections.abc import Callable

import pytest

from testbed.results import wording
from testbed.results.record import Record


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (None, "\u2013"), (0.0, "0 s"), (25e-6, "25 µs"), (0.00512, "5.12 ms"), (0.4123, "412 ms"), (1.0, "1 s"),
        (61.2, "61.2 s"), (1200.0, "20 min"), (-0.002, "-2 ms"), (3e-9, "0.003 µs"),
    ],
)  # fmt: skip
def test_times(time_s: float | None, text: str) -> None:
    assert wording.time_text(time_s) == text


@pytest.mark.parametrize(
    ("rate_bps", "text"),
    [(None, "\u2013"), (95.678e6, "95.68 Mbit/s"), (100e6, "100 Mbit/s"), (1e9, "1 Gbit/s"), (0.0, "0 bit/s")],
)
def test_rates(rate_bps: float | None, text: str) -> None:
    assert wording.rate_text(rate_bps) == text


def test_sizes_and_plain_numbers_have_no_exponent() -> None:
    assert wording.size_text(4_456_448) == "4.46 MB"
    assert wording.size_text(999) == "999 B"
    assert wording.digits(12_345.0) == "12300"
    assert wording.digits(0.0412) == "0.0412"


def test_deviation_never_shows_a_negative_zero(record: Callable[..., Record]) -> None:
    assert wording.deviation_text(-0.00001) == "+0.00 %"
    assert wording.deviation_text(-0.0005) == "-0.05 %"
    link = record(num_iterations=2).summary.links[0]
    assert wording.deviation(link.model_copy(update={"expected_bytes": 0})) is None


def test_the_headline_answers_the_question(record: Callable[..., Record]) -> None:
    summary = record().summary
    assert wording.headline(summary).startswith("4 workers spend 82 % of every iteration on communication")
    without = summary.model_copy(update={"scaling_factor": None})
    assert wording.headline(without).endswith("does not hide.")
    limited_by_cores = summary.model_copy(update={"scaling_factor": 1.09})
    assert "the cores are the limit" in wording.headline(limited_by_cores)
