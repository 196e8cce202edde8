"""Numbers of a claim, and what it expects of them, in its unit, and what a number is in words."""

from collections.abc import Mapping
from typing import Final

from testbed.experiment.claims import Claim
from testbed.record import number_text

FORMULAS_IN_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "W": ("workers", ""),
    "P": ("parameter servers", ""),
    "S": ("gradients", "bytes"),
    "R": ("rate of a link", "bit/s"),
    "R / 1e6": ("rate of a link", "Mbit/s"),
    "R / 1e9": ("rate of a link", "Gbit/s"),
    "c": ("compression ratio", ""),
    "a": ("one-way latency", "s"),
    "log2(W)": ("log2 of the number of workers", ""),
    "log2(S)": ("log2 of the gradients' bytes", ""),
    "iteration_time_s.median": ("time of an iteration", "s"),
    "iteration_time_s.median / compute_only_time_s": ("time of an iteration over that of computing", ""),
    "allreduce.time_s": ("time of an all-reduce", "s"),
    "scaling_factor": ("scaling factor", ""),
    "sent_bytes": ("sent by a worker in an iteration", "bytes"),
    "received_bytes": ("received by a worker in an iteration", "bytes"),
    "link_share": ("utilization of workers' links", ""),
    "link_busy_share": ("utilization of workers' links while buckets are under way", ""),
    "server_busy": ("utilization of a server's link", ""),
    "stages.time_to_start_s": ("time to the first iteration", "s"),
    "stages.wall_s": ("time of the whole run", "s"),
    "loss.end": ("loss at the end", ""),
    "abs(prediction.iteration_error)": ("error of the predicted iteration", ""),
}
"""What formulas stand for, and the unit of their values; nothing for a ratio, which may be written in percent."""


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


def formula_text(formula: str, unit: str = "") -> str:
    """What a formula stands for, as an axis says it, in the unit that its values are drawn in or in their own: `rate of
    a link, Gbit/s`. Of arithmetic the formula itself."""
    words, own_unit = FORMULAS_IN_WORDS.get(formula, (formula, ""))
    return f"{words}, {unit or own_unit}" if unit or own_unit else words


def formula_unit(claim: Claim) -> str:
    """Of the values of a claim's points, which need not be that of its number: of a slope in s/worker they are s."""
    _, own_unit = FORMULAS_IN_WORDS.get(claim.of, ("", ""))
    return own_unit or ("" if claim.take.in_units_of_over else claim.unit)
