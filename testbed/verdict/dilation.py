"""Is the answer the same however slow time runs? Runs at several dilations, compared. Pure.

What dilation does not keep (the host's own cost of a message, timers of the kernel's that cannot be set) changes with
its factor. So where k, 2k and 4k agree, there is nothing of that to see in the numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final, Literal

FACTORS: Final = (2, 4)
"""By which the spec's dilation is multiplied, beside itself, where nobody says otherwise."""
TOLERANCE: Final = 0.03
MEASURES: Final = ("iteration_time_s", "scaling_factor")
Agreement = Literal["agrees", "differs", "undecided"]
_T_95: Final = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Two-sided 95 % quantiles of Student's t, from one degree of freedom on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A mean, and where it lies with 95 % confidence."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Of repeated measurements, by Student's t; of a single one nothing is known beside."""
        mean = fmean(values)
        if len(values) < 2:
            return cls(mean=mean, low=-math.inf, high=math.inf)
        half = _t_95(len(values) - 1) * stdev(values) / math.sqrt(len(values))
        return cls(mean=mean, low=mean - half, high=mean + half)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One measure at one dilation beside the same at the first."""

    measure: str
    dilation: float
    value: Interval
    ratio: Interval | None
    """To the first dilation's; None: this is the first."""
    agreement: Agreement | None
    """agrees: the ratio's whole interval is within the tolerance of 1; differs: none of it; None: this is the first."""


def compare(
    measured: Mapping[float, Mapping[str, Sequence[float]]], *, tolerance: float = TOLERANCE
) -> list[Comparison]:
    """Of repeated runs, by dilation, then by measure; the first dilation is what others are compared with."""
    first, *_ = measured
    return [
        _compared(measure, dilation, values, None if dilation == first else measured[first][measure], tolerance)
        for dilation, measures in measured.items()
        for measure, values in measures.items()
    ]


def overall(compared: Sequence[Comparison]) -> Agreement:
    """agrees only where all do, and differs where any does."""
    found = {each.agreement for each in compared} - {None}
    return "differs" if "differs" in found else "undecided" if "undecided" in found else "agrees"


def _compared(
    measure: str, dilation: float, values: Sequence[float], reference: Sequence[float] | None, tolerance: float
) -> Comparison:
    value = Interval.of(values)
    if reference is None:
        return Comparison(measure=measure, dilation=dilation, value=value, ratio=None, agreement=None)
    ratio = _ratio(values, reference)
    if 1 - tolerance <= ratio.low and ratio.high <= 1 + tolerance:
        agreement: Agreement = "agrees"
    elif ratio.high < 1 - tolerance or ratio.low > 1 + tolerance:
        agreement = "differs"
    else:
        agreement = "undecided"
    return Comparison(measure=measure, dilation=dilation, value=value, ratio=ratio, agreement=agreement)


def _ratio(values: Sequence[float], reference: Sequence[float]) -> Interval:
    """Of means that were measured one beside the other, round after round: what a round has in common, another
    program's load say, is in both. By the logarithms of each round's ratio."""
    logarithms = Interval.of([math.log(value / beside) for value, beside in zip(values, reference, strict=True)])
    return Interval(
        mean=math.exp(logarithms.mean),
        low=math.exp(logarithms.low),
        high=math.inf if logarithms.high == math.inf else math.exp(logarithms.high),
    )


def _t_95(degrees: int) -> float:
    return _T_95[degrees - 1] if degrees <= len(_T_95) else 1.96 + 2.6 / degrees
