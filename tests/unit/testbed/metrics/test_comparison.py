"""Scraped counters beside the record's samples: those of the moment at which they were read, exactly."""

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


def found(scraped: Scrapes, counted: list[int], read_s: dict[float, float]) -> list[str]:
    return differences(NAME, COLUMN, scraped, read_s, samples(counted), origin_s=ORIGIN_S)


def scrapes(*of: tuple[float, float, float]) -> tuple[Scrapes, dict[float, float]]:
    """Of scrapes: when, when what it found had been read, and what that was."""
    values = [(ORIGIN_S + at_s, value) for at_s, _, value in of]
    return {("w0-s0", "w0"): values}, {ORIGIN_S + at_s: ORIGIN_S + read_s for at_s, read_s, _ in of}


def compared(counted: list[int], *of: tuple[float, float, float]) -> list[str]:
    scraped, read_s = scrapes(*of)
    return found(scraped, counted, read_s)


@given(
    st.lists(st.integers(0, 10_000), min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(0, 6000), st.floats(0, 30)), max_size=5, unique_by=lambda each: each[0]),
)
def test_scrapes_of_what_was_sampled_last_are_never_called_different(
    steps: list[int], moments: list[tuple[int, float]]
) -> None:
    """However the counter grew, and however late the page was: a machine may stop everything for seconds."""
    counted = [sum(steps[: index + 1]) for index in range(len(steps))]
    last = len(counted) - 1
    read = [(at_ms / 1e3, min(int(max(at_ms / 1e3 - late_s, 0) / 0.1), last)) for at_ms, late_s in sorted(moments)]
    page = [(at_s, 0.1 * index, counted[index]) for at_s, index in read]
    assert compared(counted, *page, (7.0, 0.1 * last, counted[-1])) == []


def test_a_counter_that_ends_otherwise_is_reported_with_both_numbers() -> None:
    (line,) = compared([0, 100, 200], (0.0, 0.0, 0), (1.1, 0.1, 100))
    assert line == f"{NAME} of w0 on w0-s0 ended as 100, the record as 200"


@pytest.mark.parametrize("value", [1999, 2001, 1900, 2100])
def test_a_scrape_that_is_off_by_a_byte_or_by_one_reading_is_reported(value: int) -> None:
    counted = [100 * index for index in range(50)]
    assert compared(counted, (2.0, 2.0, 2000), (6.0, 4.9, counted[-1])) == []
    (line,) = compared(counted, (2.0, 2.0, value), (6.0, 4.9, counted[-1]))
    assert line == f"{NAME} of w0 on w0-s0 was scraped as {value:,} when the record has 2,000"


def test_a_scrape_before_the_first_reading_is_reported() -> None:
    (line,) = compared([0, 100], (-1.0, -1.0, 0), (1.0, 0.1, 100))
    assert line == f"{NAME} of w0 on w0-s0 was scraped as 0 when the record has nothing yet"


def test_a_scrape_that_does_not_say_when_it_was_read_is_reported() -> None:
    scraped, _ = scrapes((0.5, 0.1, 100))
    assert found(scraped, [0, 100], {}) == [
        f"{NAME} of w0 on w0-s0 was scraped without the moment at which it was read"
    ]


def test_a_direction_that_was_never_scraped_is_reported() -> None:
    assert found({}, [1, 2], {}) == [f"{NAME} of w0 on w0-s0 was never scraped"]


def test_every_counter_of_links_is_compared() -> None:
    assert {family.name for family in COUNTERS} == {
        "testbed_link_transmit_bytes_total",
        "testbed_link_transmit_packets_total",
        "testbed_link_drops_total",
    }
