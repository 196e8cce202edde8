"""Quantities with units, parsed once at the edge into SI base units.

`10gbit` -> bits per second, `50us` -> seconds, `64MiB` -> bytes, `1%` -> a fraction. Decimal prefixes are powers of
1000 (`MB`, `mbit`), binary ones powers of 1024 (`MiB`), as in tc(8). A bare number has no unit and is refused,
except 0 and fractions.
"""

import re
from collections.abc import Mapping
from decimal import Decimal, DecimalException
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_QUANTITY: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([a-zA-Z%/]+)\s*", re.IGNORECASE)
_SCIENTIFIC: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?e[+-]?[0-9]+", re.IGNORECASE)

# Decimal: 50 x 1e-6 in binary is not 5e-05, and a spec must load back to the same numbers.
_Units = Mapping[str, Decimal]
_DOUBLE_DIGITS: Final = 17
_RATE_UNITS: Final[_Units] = {
    "bit": Decimal(1),
    "kbit": Decimal(10**3),
    "mbit": Decimal(10**6),
    "gbit": Decimal(10**9),
    "tbit": Decimal(10**12),
}
_TIME_UNITS: Final[_Units] = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "min": Decimal(60),
    "h": Decimal(3600),
}
_SIZE_UNITS: Final[_Units] = {
    "b": Decimal(1),
    "kb": Decimal(10**3),
    "mb": Decimal(10**6),
    "gb": Decimal(10**9),
    "kib": Decimal(2**10),
    "mib": Decimal(2**20),
    "gib": Decimal(2**30),
}


def _parse(text: object, units: _Units, what: str, example: str) -> float:
    if isinstance(text, (int, float)) and not isinstance(text, bool) and text == 0:
        return 0.0
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a {what}; write a number and a unit, such as {example!r}")
    unit = match.group(2).lower()
    if units is _RATE_UNITS:
        unit = unit.removesuffix("/s")  # not "bps": to tc that is bytes
    if unit not in units:
        raise ValueError(f"{match.group(2)!r} is not a unit of {what}; allowed: {', '.join(units)}")
    try:
        value = float(Decimal(match.group(1)) * units[unit])
    except DecimalException:  # its exponent is beyond what Decimal has, so this is infinite, or 0
        value = float(match.group(1))
    if value == float("inf"):
        raise ValueError(f"{text!r} is too large for a {what}")
    return value


def parse_rate_bps(text: object) -> float:
    """Bits per second from `100mbit`, `2.5gbit`, `10Gbit/s`."""
    return _parse(text, _RATE_UNITS, "rate", "100mbit")


def parse_time_s(text: object) -> float:
    """Seconds from `50us`, `1.5ms`, `2s`, `0`."""
    return _parse(text, _TIME_UNITS, "time", "50us")


def parse_size_bytes(text: object) -> int:
    """Bytes from `64KiB`, `25MB`, `1500B`, `0`."""
    return round(_parse(text, _SIZE_UNITS, "size", "64KiB"))


def parse_fraction(text: object) -> float:
    """A fraction from `1%` or a plain number such as 0.01."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        try:
            return float(text)
        except OverflowError:
            raise ValueError(f"{text!r} is too large for a fraction") from None
    if isinstance(text, str) and _SCIENTIFIC.fullmatch(text):
        return float(text)  # YAML takes `1e-3`, which has no dot, for text
    return _parse(text, {"%": Decimal("0.01")}, "fraction", "1%")


def _shortest(value: float, units: _Units) -> str:
    """The quantity in the largest unit that keeps the number at 1 or more; parses back to the same float."""
    if value == 0:
        return "0" + next(iter(units))
    exact = Decimal(repr(value))
    # A number of hours or minutes may have no end (4000 s); then a smaller unit says it exactly.
    fitting = (unit for unit in sorted(units, key=lambda unit: -units[unit]) if units[unit] <= exact)
    for unit in (*fitting, next(iter(units))):
        number = (exact / units[unit]).normalize()
        if len(number.as_tuple().digits) <= _DOUBLE_DIGITS:
            return f"{number:f}{unit}"
    raise AssertionError(f"{value!r} has more digits than a double")


def format_rate(rate_bps: float) -> str:
    """`100mbit`: what :func:`parse_rate_bps` reads back to the same number."""
    return _shortest(rate_bps, _RATE_UNITS)


def format_time(time_s: float) -> str:
    """`50us`: what :func:`parse_time_s` reads back to the same number."""
    return _shortest(time_s, _TIME_UNITS)


def format_size(size_bytes: int) -> str:
    """`64KiB` or `25MB`, whichever is exact; else plain bytes."""
    for unit, scale in (
        ("GiB", 2**30),
        ("GB", 10**9),
        ("MiB", 2**20),
        ("MB", 10**6),
        ("KiB", 2**10),
        ("kB", 10**3),
    ):
        if size_bytes >= scale and size_bytes % scale == 0:
            return f"{size_bytes // scale}{unit}"
    return f"{size_bytes}B"


def _schema(description: str, example: str, *, plain_number: bool = False) -> WithJsonSchema:
    kinds = ["string", "number"]
    schema = {"type": kinds if plain_number else ["string", "integer"], "description": description}
    return WithJsonSchema({**schema, "examples": [example]})


Rate = Annotated[
    float,
    BeforeValidator(parse_rate_bps),
    PlainSerializer(format_rate),
    _schema("bits per second", "100mbit"),
]
Time = Annotated[float, BeforeValidator(parse_time_s), PlainSerializer(format_time), _schema("seconds", "50us")]
Size = Annotated[int, BeforeValidator(parse_size_bytes), PlainSerializer(format_size), _schema("bytes", "1MiB")]
Fraction = Annotated[float, BeforeValidator(parse_fraction), _schema("a fraction, 0 to 1", "1%", plain_number=True)]
