"""Numbers with their units, as people read them."""

import math
from collections.abc import Iterable
from decimal import ROUND_CEILING, Context
from typing import Final

from testbed.experiment.link import UNSHAPED_BPS

DASH: Final = "\u2013"
"""Stands where a number is not known."""
_MAX_DECIMALS: Final = 6
"""Of a percent."""
_TIME_UNITS: Final = ((600.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (0.0, 1e-6, "µs"))
_RATE_UNITS: Final = ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (0.0, "bit/s"))
_SIZE_UNITS: Final = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (0.0, "B"))


def digits(value: float, num_digits: int = 3) -> str:
    """Significant digits without an exponent: `0.0412`, `4.12`, `412`, `4120`."""
    text = f"{value:.{num_digits}g}"
    return f"{float(text):.0f}" if "e" in text and abs(value) >= 1 else text


def rounded_up(value: float, num_digits: int = 3) -> float:
    """To so many significant digits: of what is a least, so that what is printed is enough."""
    return float(Context(prec=num_digits, rounding=ROUND_CEILING).create_decimal(repr(float(value))))


def number_text(value: float | None) -> str:
    """Three significant digits; a dash for None."""
    return DASH if value is None else digits(value)


def time_text(time_s: float | None) -> str:
    """`412 ms`; a dash for None."""
    if time_s is None:
        return DASH
    if time_s == 0:
        return "0 s"
    scale, unit = next((scale, unit) for least, scale, unit in _TIME_UNITS if abs(time_s) >= least)
    return f"{digits(time_s / scale)} {unit}"


def rate_text(rate_bps: float | None) -> str:
    """`95.68 Mbit/s`, four digits because links are held to 0.1 %; a dash for None."""
    if rate_bps == UNSHAPED_BPS:
        return "unshaped"
    return DASH if rate_bps is None else _scaled(rate_bps, _RATE_UNITS, num_digits=4)


def size_text(size_bytes: float | None) -> str:
    """`4.19 MB` (powers of 1000, as link rates use); a dash for None."""
    return DASH if size_bytes is None else _scaled(size_bytes, _SIZE_UNITS)


def percent_text(share: float | None, num_decimals: int = 1) -> str:
    """`94.6 %`; a dash for None. What is not quite nothing, or not quite all, has as many decimals more as say so."""
    if share is None:
        return DASH
    apart = round(100 * min(abs(share), abs(1 - share)), _MAX_DECIMALS)
    if 0 < apart < 0.5 * 10**-num_decimals:
        num_decimals = math.ceil(-math.log10(apart))
    return f"{100 * share:.{num_decimals}f} %"


def decimals_apart(target: float, shares: Iterable[float]) -> int:
    """How many decimals percents need, for the target to read as it is, and every share to be below it in print where
    it is."""
    shares = list(shares)
    for num_decimals in range(1, _MAX_DECIMALS):
        printed = round(100 * target, num_decimals)
        distinct = all((round(100 * share, num_decimals) < printed) == (share < target) for share in shares)
        if distinct and printed == round(100 * target, _MAX_DECIMALS):
            return num_decimals
    return _MAX_DECIMALS


def _scaled(value: float, units: tuple[tuple[float, str], ...], *, num_digits: int = 3) -> str:
    scale, unit = next((least or 1.0, unit) for least, unit in units if abs(value) >= least)
    return f"{digits(value / scale, num_digits)} {unit}"
