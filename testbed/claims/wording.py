"""Numbers of a claim, and what it expects of them, in its unit."""

from testbed.experiment.claims import Claim
from testbed.record import number_text


def value_text(value: float | None, unit: str) -> str:
    """`412 ms/worker`, `9.14`; a dash for None."""
    if value is None:
        return number_text.DASH
    if is_time(unit):
        return number_text.time_text(value) + unit[1:]
    if unit == "%":
        return number_text.percent_text(value)
    return f"{number_text.digits(value)} {unit}".rstrip()


def expected_text(claim: Claim) -> str:
    """`within 10 % of the model, at least 0.99`; of shares in percent `within 5 points of the model`."""
    expect, unit = claim.expect, claim.unit
    parts = [f"within {100 * expect.within:g} % of the model"] if expect.within is not None else []
    if expect.difference is not None:
        off = f"{100 * expect.difference:g} points" if unit == "%" else _bound_text(expect.difference, unit)
        parts.append(f"within {off} of the model")
    parts += [f"at least {_bound_text(expect.at_least, unit)}"] if expect.at_least is not None else []
    parts += [f"at most {_bound_text(expect.at_most, unit)}"] if expect.at_most is not None else []
    return ", ".join(parts)


def _bound_text(value: float, unit: str) -> str:
    """As it was written, where :func:`value_text` would round it."""
    if is_time(unit):
        return value_text(value, unit)
    return f"{100 * value:g} %" if unit == "%" else f"{value:g} {unit}".rstrip()


def is_time(unit: str) -> bool:
    """Whether values are seconds, by themselves or of something: `s`, `s/sample`; `samples/s` is a rate."""
    return unit == "s" or unit.startswith("s/")
