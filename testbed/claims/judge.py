"""Whether a claim holds, of what was measured: the paper's number, the model's and ours side by side. Pure.

A claim is only as good as the runs of the points that it compares. One run that is invalid, has failed or is not
there, and the claim is not judged. One that is degraded, and a claim that holds is degraded, too; one that does not
hold is not judged, because it may be the machine's fault. Where runs count that were made otherwise than they would be
here and now, by another machine or code, it is the same.

Where no more than bounds of a number are known, the claim holds or fails if it does so for every number within them,
and else is not judged.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from testbed.claims.formulas import FormulaError, evaluate
from testbed.claims.numbers import Numbers
from testbed.claims.wording import expected_text
from testbed.experiment.claims import Claim, Interval, Row, matches
from testbed.record.summary import STANDING

State = Literal["holds", "degraded", "fails", "not judged"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A point of a sweep as claims see it."""

    settings: Mapping[str, Any]
    text: str
    """Its settings in few characters."""
    outcome: str
    """The worst of its runs: valid, degraded, invalid, failed, unsupported, not run."""
    numbers: Numbers
    unlike: tuple[str, ...] = ()
    """In what its runs differ from those that would be made here and now."""


class PointValue(NamedTuple):
    """What a claim looks at, at one point."""

    text: str
    """Its settings."""
    over: float | None
    """Where it lies on the claim's other axis; None: it has none."""
    measured: float | None
    model: float | None
    reservation: str = ""
    """Why its number stands with a reservation, or not at all; empty: it stands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What became of a claim."""

    claim: Claim
    state: State
    measured: float | None
    """The number, of what was emulated; None: there is none, or no more than a bound of it, and the reason says why."""
    model: float | None
    """The same of what the model's formula says; None: the claim has no model, or as above."""
    reason: str
    """Why it does not hold, or is not judged; how many of its points are degraded or made otherwise; or nothing."""
    points: tuple[PointValue, ...]

    @property
    def holds(self) -> bool:
        """Whether it does, be it on runs that are degraded."""
        return self.state in ("holds", "degraded")


def judge(claim: Claim, points: Sequence[Point]) -> Judgement:
    """Of a sweep's points. Raises FormulaError where a formula cannot be right whatever is measured."""
    there = [point for point in points if matches(point.settings, claim.where)]
    # The others say nothing of the claim, however bad their runs are.
    mine = [point for point in there if claim.take.uses(point.settings)]

    def judged(state: State, reason: str, measured: float | None = None, model: float | None = None) -> Judgement:
        return Judgement(
            claim=claim,
            state=state,
            measured=measured,
            model=model,
            reason=reason,
            points=tuple(values_at(claim, mine)),
        )

    if not there:
        return judged("not judged", f"no point has {dict(claim.where)}")
    bad = [point for point in mine if point.outcome not in STANDING]
    if bad:
        others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        return judged("not judged", f"{bad[0].text}: {bad[0].outcome}{others}")
    try:
        of = [evaluate(claim.of, point.numbers) for point in mine]
        by_model = [] if claim.model is None else [evaluate(claim.model, point.numbers) for point in mine]
        counted = claim.take.counted(of, by_model, claim.expect)
        rows = [_row(claim, mine[index]) for index in counted]
        measured = claim.take.interval(rows, [of[index] for index in counted])
        model = claim.take.interval(rows, [by_model[index] for index in counted]) if by_model else None
    except (FormulaError, ValueError, ArithmeticError) as error:
        return judged("not judged", str(error))
    holds = claim.expect.holds(measured, model)
    doubts = _doubts(mine)
    expected = f"expected {expected_text(claim)}"
    reasons = [
        *([] if holds else [f"{expected}, which bounds do not decide" if holds is None else expected]),
        *_bounds(claim, measured, model),
        *doubts,
    ]
    states: tuple[State, State] = ("degraded", "not judged") if doubts else ("holds", "fails")
    state = "not judged" if holds is None else states[0 if holds else 1]
    return judged(state, "; ".join(reasons), measured.number, None if model is None else model.number)


def _bounds(claim: Claim, measured: Interval, model: Interval | None) -> list[str]:
    """What is known of places that are no numbers."""
    over = next(iter(claim.take.formulas()), "")
    found = []
    for by, interval in (("", measured), (" by the model", model)):
        if interval is not None and interval.low == -math.inf:
            found.append(f"reached{by} at the first place already, {over} {interval.high:g}")
        elif interval is not None and interval.high == math.inf:
            found.append(f"never reached{by} up to the last place, {over} {interval.low:g}")
    return found


def _doubts(points: Sequence[Point]) -> list[str]:
    """Why what the points say may be of the machine, or of no run that would be made here and now."""
    num_degraded = sum(point.outcome == "degraded" for point in points)
    num_unlike = sum(bool(point.unlike) for point in points)
    differences = "; ".join(dict.fromkeys(each for point in points for each in point.unlike))
    return [
        *([f"{num_degraded} of {len(points)} points degraded"] if num_degraded else []),
        *([f"{num_unlike} of {len(points)} points made otherwise: {differences}"] if num_unlike else []),
    ]


def values_at(claim: Claim, points: Sequence[Point]) -> list[PointValue]:
    """What the claim looks at, at each of its points; None for what a point does not have."""
    over = next(iter(claim.take.formulas()), None)
    return [
        PointValue(
            text=point.text,
            over=_or_none(over, point.numbers),
            measured=_or_none(claim.of, point.numbers),
            model=_or_none(claim.model, point.numbers),
            reservation="; ".join([*([] if point.outcome == "valid" else [point.outcome]), *point.unlike]),
        )
        for point in points
    ]


def _or_none(formula: str | None, numbers: Numbers) -> float | None:
    try:
        return None if formula is None else evaluate(formula, numbers)
    except FormulaError:
        return None


def _row(claim: Claim, point: Point) -> Row:
    return Row(settings=point.settings, numbers={each: evaluate(each, point.numbers) for each in claim.take.formulas()})
