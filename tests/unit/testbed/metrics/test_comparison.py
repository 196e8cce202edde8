"""Scraped counters beside the record's samples: the same within one scrape, and exactly so at the end."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.metrics.comparison import COUNTERS, differences

ORIGIN_S = 1.7e9
NAME, COLUMN = "testbed_link_transmit_bytes_total", "class_bytes"
Scrapes = dict[tuple[str, str], list[tuple[float, float]]]


def samples(counted: list[int], interval_s: float = 0.1) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "at_s": [interval_s * index for index in range(len(counted))],
            "link": ["w0-s0"] * len(counted),
            "node": ["w0"] * len(counted),
            COLUMN: counted,
        }
    )


def found(scraped: Scrapes, counted: list[int]) -> list[str]:
    return differences(NAME, COLUMN, scraped, samples(counted), origin_s=ORIGIN_S, slack_s=1.0)


def scrapes(*of: tuple[float, float]) -> Scrapes:
    return {("w0-s0", "w0"): [(ORIGIN_S + at_s, value) for at_s, value in of]}


@given(
    st.lists(st.integers(0, 10_000), min_size=1, max_size=60),
    st.lists(st.floats(0, 6), max_size=5),
    st.floats(0, 0.9),
)
def test_scrapes_of_what_was_sampled_last_are_never_called_different(
    steps: list[int], at_s: list[float], late_s: float
) -> None:
    """However the counter grew, and if the page was late by less than a scrape."""
    counted = [sum(steps[: index + 1]) for index in range(len(steps))]
    page = [(moment, counted[min(int(max(moment - late_s, 0) / 0.1), len(counted) - 1)]) for moment in sorted(at_s)]
    assert found(scrapes(*page, (7.0, counted[-1])), counted) == []


def test_a_counter_that_ends_otherwise_is_reported_with_both_numbers() -> None:
    (line,) = found(scrapes((0.0, 0), (1.1, 190)), [0, 100, 200])
    assert line == f"{NAME} of w0 on w0-s0 ended as 190, the record as 200"


@pytest.mark.parametrize("value", [90, 5000])
def test_a_scrape_that_is_off_by_more_than_one_interval_is_reported(value: int) -> None:
    counted = [100 * index for index in range(50)]
    (line,) = found(scrapes((3.0, value), (6.0, counted[-1])), counted)
    assert f"was scraped as {value:,} when the record has 2,000 to 4,000" in line


def test_a_direction_that_was_never_scraped_is_reported() -> None:
    assert found({}, [1, 2]) == [f"{NAME} of w0 on w0-s0 was never scraped"]


def test_every_counter_of_links_is_compared() -> None:
    assert {family.name for family in COUNTERS} == {
        "testbed_link_transmit_bytes_total",
        "testbed_link_transmit_packets_total",
        "testbed_link_drops_total",
    }
