"""Quantities survive being written and read; what is not a quantity is refused with what is allowed."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports import units

POSITIVE = st.floats(min_value=1e-12, max_value=1e18, allow_nan=False)


@given(POSITIVE)
def test_rates_read_back_to_the_same_number(rate_bps: float) -> None:
    assert units.parse_rate_bps(units.format_rate(rate_bps)) == rate_bps


@given(POSITIVE)
def test_times_read_back_to_the_same_number(time_s: float) -> None:
    assert units.parse_time_s(units.format_time(time_s)) == time_s


@given(st.integers(min_value=0, max_value=2**50))
def test_sizes_read_back_to_the_same_number(size_bytes: int) -> None:
    assert units.parse_size_bytes(units.format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_rate_bps, "100mbit", 100e6),
        (units.parse_rate_bps, "2.5 Gbit/s", 2.5e9),
        (units.parse_rate_bps, "1e3bit", 1e3),
        (units.parse_time_s, "50us", 50e-6),
        (units.parse_time_s, "1.5ms", 1.5e-3),
        (units.parse_time_s, 0, 0.0),
        (units.parse_time_s, "2h", 7200.0),
        (units.parse_time_s, "1e-9999999999999999999s", 0.0),
        (units.parse_size_bytes, "64KiB", 65536),
        (units.parse_size_bytes, "25MB", 25_000_000),
        (units.parse_size_bytes, "0B", 0),
        (units.parse_fraction, "1%", 0.01),
        (units.parse_fraction, 0.25, 0.25),
        (units.parse_fraction, "1e-3", 0.001),
    ],
)
def test_a_quantity_becomes_si_base_units(parse: Callable[[object], float], text: object, value: float) -> None:
    assert parse(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (units.parse_rate_bps, "100", "write a number and a unit, such as '100mbit'"),
        (units.parse_rate_bps, 100, "write a number and a unit"),
        (units.parse_rate_bps, "100ms", "not a unit of rate; allowed: bit, kbit, mbit, gbit, tbit"),
        (units.parse_rate_bps, "10gbps", "'gbps' is not a unit of rate"),
        (units.parse_time_s, "5 parsecs", "not a unit of time; allowed: ns, us, ms, s, min, h"),
        (units.parse_time_s, True, "is not a time"),
        (units.parse_time_s, None, "is not a time"),
        (units.parse_time_s, "-1s", "is not a time"),
        (units.parse_time_s, "nans", "is not a time"),
        (units.parse_size_bytes, "1e400GiB", "too large for a size"),
        (units.parse_rate_bps, "1e999999999gbit", "too large for a rate"),
        (units.parse_rate_bps, "1e9999999999999999999gbit", "too large for a rate"),
        (units.parse_size_bytes, "12 furlongs", "not a unit of size; allowed: b, kb, mb, gb, kib, mib, gib"),
        (units.parse_fraction, "1", "is not a fraction"),
        (units.parse_fraction, 10**400, "too large for a fraction"),
    ],
)
def test_what_is_not_a_quantity_is_refused(parse: Callable[[object], float], text: object, message: str) -> None:
    with pytest.raises(ValueError, match=r"not a|too large") as raised:
        parse(text)
    assert message in str(raised.value)


def test_quantities_are_written_in_the_largest_unit_that_is_exact() -> None:
    assert units.format_time(50e-6) == "50us"
    assert units.format_time(7200.0) == "2h"
    assert units.format_time(4000.0) == "4000s"
    assert units.format_rate(2.5e9) == "2.5gbit"
    assert units.format_size(65536) == "64KiB"
