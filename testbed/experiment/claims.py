"""What a spec claims of its points: the papers' statements as data that a run can refute. Pure.

    claims:
      - name: one server's time grows with the workers
        feature: 1a
        of: allreduce.time_s                       # of each point: a formula over its numbers (testbed.claims.numbers)
        model: 2 * W * S / B                       # what theory says of the same point; optional
        where: {collective: parameter_server}      # which points
        take: {kind: slope, over: W}               # one number of all of them
        expect: {within: 10%}                      # of the model's; or at_least, at_most, difference
        why: headers and acknowledgements, which the formula leaves out, take 5 %
        paper: {says: "2S/B per worker", evidence: reconstructed, source: section 2.2}

`take` is computed of the measured numbers, and of the model's in the same way; `expect` compares them.
"""

import itertools
import math
import statistics
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from testbed.errors import SpecError
from transports.units import parse_fraction

CLAIM_KEYS: Final = ("claims", "quick")
"""Keys of a spec, beside those of a sweep, that belong to no single run."""

Evidence = Literal["abstract", "figure", "code", "public", "computed", "reconstructed", "unverified"]
"""How what a paper says is known: stated in its abstract; read off its own figure; read in its authors' code or
data; in another public text; computed from public data; rebuilt from the standard theory; not checked. `reconstructed`
and `unverified` are never shown as the paper's own words."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Share = Annotated[float, BeforeValidator(lambda value: parse_fraction(value) if isinstance(value, str) else value)]


class PaperSays(_Part):
    """What the paper says about a claim, and how that is known."""

    says: str = Field(min_length=1)
    evidence: Evidence
    source: str = ""
    """Where: page, figure, table, file."""
    value: float | None = None
    """As a number of the claim's kind, for the table and the figures."""
    points: tuple[tuple[float, float], ...] = ()
    """Read off its figure, for ours: where on the claim's other axis, and what is there."""
    points_are: str = ""
    """What they are, where not the same thing: `measured, 8 servers with NCCL`."""

    @model_validator(mode="after")
    def _has_numbers_that_are_known(self) -> Self:
        if self.evidence == "unverified" and (self.value is not None or self.points):
            raise ValueError("`value` and `points` are numbers of the paper, and nobody checked that it has them")
        return self


class Interval(NamedTuple):
    """Between what a number lies for certain, both ends included; an infinite one: nothing bounds it there."""

    low: float
    high: float

    @property
    def number(self) -> float | None:
        """The number itself; None: no more than bounds of it are known."""
        return self.low if self.low == self.high else None


class Numbers(_Part):
    """What one number is taken from: `of` at each of the claim's points, in the order of the sweep."""

    in_units_of_over: ClassVar[bool] = False
    """Whether the number is a place on the other axis, and its unit not that of the points' values."""

    @abstractmethod
    def number(self, rows: Sequence["Row"], values: Sequence[float]) -> float:
        """Of the values, one for each row. Raises ValueError where they are too few or alike."""

    def interval(self, rows: Sequence["Row"], values: Sequence[float]) -> Interval:
        """Where the number lies. Raises ValueError as `number` does, and where it is not finite."""
        found = self.number(rows, values)
        if not math.isfinite(found):
            raise ValueError(f"what is taken of the points is no finite number (got {found:g})")
        return Interval(found, found)

    def formulas(self) -> Sequence[str]:
        """Further formulas that it asks of each point, by which `Row.numbers` knows them."""
        return ()

    def sides(self) -> Sequence[Mapping[str, Any]]:
        """The settings of those that it compares; nothing where it looks at all points alike."""
        return ()

    def uses(self, settings: Mapping[str, Any]) -> bool:
        """Whether the number depends on a point with these settings."""
        sides = self.sides()
        return not sides or any(matches(settings, side) for side in sides)

    @property
    def extreme(self) -> Literal["least", "most"] | None:
        """Which of several it is, so that nothing bounds the others from its far side; None: it is of all of them."""
        return None

    def counted(self, measured: Sequence[float], model: Sequence[float], expect: "Expectation") -> Sequence[int]:  # noqa: ARG002 (others need them)
        """Which points the number is taken of, by index; `model` is empty where the claim has none."""
        return range(len(measured))


class Row(BaseModel):
    """A point as an aggregate sees it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: Mapping[str, Any]
    numbers: Mapping[str, float]
    """By formula."""


class Slope(Numbers):
    """The slope of the straight line through the points, by least squares."""

    kind: Literal["slope"]
    over: str

    def formulas(self) -> Sequence[str]:
        """What lies on the other axis."""
        return (self.over,)

    def number(self, rows: Sequence[Row], values: Sequence[float]) -> float:
        """The slope of the regression, in units of `of` for each unit of `over`."""
        return statistics.linear_regression([row.numbers[self.over] for row in rows], values).slope


class Linearity(Numbers):
    """R^2 of the straight line through the points: 1 where they lie on it. At least three."""

    kind: Literal["linearity"]
    over: str

    def formulas(self) -> Sequence[str]:
        """What lies on the other axis."""
        return (self.over,)

    def number(self, rows: Sequence[Row], values: Sequence[float]) -> float:
        """0 to 1."""
        if len(rows) < 3:
            raise ValueError(f"two points always lie on a line: at least three are needed (got {len(rows)})")
        return statistics.correlation([row.numbers[self.over] for row in rows], values) ** 2


class Ratio(Numbers):
    """The median over some points, or their least or most, over the median of others."""

    kind: Literal["ratio"]
    of: Mapping[str, Any]
    """The settings of those above the line."""
    to: Mapping[str, Any]
    """The settings of those below it."""
    by: Literal["median", "least", "most"] = "median"
    """Which of those above the line: a median says nothing of each."""

    @property
    def extreme(self) -> Literal["least", "most"] | None:
        """By those above the line."""
        return None if self.by == "median" else self.by

    def sides(self) -> Sequence[Mapping[str, Any]]:
        """Those above the line and those below it."""
        return (self.of, self.to)

    def number(self, rows: Sequence[Row], values: Sequence[float]) -> float:
        """Without a unit."""
        above = [value for row, value in zip(rows, values, strict=True) if matches(row.settings, self.of)]
        below = [value for row, value in zip(rows, values, strict=True) if matches(row.settings, self.to)]
        for side, found in zip(self.sides(), (above, below), strict=True):
            if not found:
                raise ValueError(f"no point has {dict(side)}")
        return _EXTREMES[self.by](above) / statistics.median(below)


class Spread(Numbers):
    """The largest over the smallest: 1 where all are the same."""

    kind: Literal["spread"]

    def number(self, rows: Sequence[Row], values: Sequence[float]) -> float:  # noqa: ARG002 (others need them)
        """The largest value over the smallest, at least 1. Raises ValueError for any that is not above 0, and for one
        alone."""
        if len(values) < 2:
            raise ValueError(f"a spread is of two points or more (got {len(values)})")
        if min(values) <= 0:
            raise ValueError(f"a spread is of numbers above 0 (got {min(values):g})")
        return max(values) / min(values)


class Order(Numbers):
    """How surely values fall from each to the next of a list: the smallest ratio of neighbours; over 1, they do."""

    kind: Literal["order"]
    by: str
    """The path of the setting."""
    falling: tuple[Any, ...] = Field(min_length=2)
    """Its values, the one with the largest number first. Those that `quick` leaves no point of are passed over."""

    @property
    def extreme(self) -> Literal["least", "most"] | None:
        """The least of all ratios of neighbours."""
        return "least"

    def sides(self) -> Sequence[Mapping[str, Any]]:
        """Each value's points, in the order of the list."""
        return [{self.by: value} for value in self.falling]

    def number(self, rows: Sequence[Row], values: Sequence[float]) -> float:
        """Without a unit."""
        medians = []
        for side in self.sides():
            found = [value for row, value in zip(rows, values, strict=True) if matches(row.settings, side)]
            if found:
                medians.append(statistics.median(found))
        if len(medians) < 2:
            raise ValueError(f"at least two of {self.by}: {list(self.falling)} are needed (got {len(medians)})")
        return min(first / second for first, second in itertools.pairwise(medians))


class _Place(Numbers):
    """A place on the other axis, at which something is reached."""

    in_units_of_over: ClassVar[bool] = True
    over: str

    def formulas(self) -> Sequence[str]:
        """What is looked for."""
        return (self.over,)

    @abstractmethod
    def places(self, rows: Sequence[Row]) -> Sequence[float]:
        """Where it is looked for, in order."""

    def interval(self, rows: Sequence[Row], values: Sequence[float]) -> Interval:
        """What is reached at the first place already may have been reached anywhere before it, and what never is may be
        anywhere beyond the last."""
        places, found = self.places(rows), self.number(rows, values)
        if found == math.inf:
            # The last itself is none of them: it was looked for there.
            return Interval(math.nextafter(places[-1], math.inf), math.inf)
        return Interval(-math.inf if found == places[0] else found, found)


class First(_Place):
    """The smallest `over` at which the value is at least a level, by a straight line between neighbours."""

    kind: Literal["first"]
    level: float

    def places(self, rows: Sequence[Row]) -> Sequence[float]:
        """Of all points."""
        return sorted(row.numbers[self.over] for row in rows)

    def number(self, rows: Sequence[Row], values: Sequence[float]) -> float:
        """In units of `over`; infinite where no point reaches the level."""
        return _reached(
            sorted((row.numbers[self.over], value) for row, value in zip(rows, values, strict=True)), self.level
        )


class Crossing(_Place):
    """The smallest `over` at which some points are no longer below others, by a straight line through the logarithm of
    the ratio of their medians: where one way becomes worse than the other."""

    kind: Literal["crossing"]
    of: Mapping[str, Any]
    """The settings of those that are below at first."""
    to: Mapping[str, Any]
    """The settings of the others, at the same places."""

    def sides(self) -> Sequence[Mapping[str, Any]]:
        """Those that are below at first, and the others."""
        return (self.of, self.to)

    def places(self, rows: Sequence[Row]) -> Sequence[float]:
        """Those that both have."""
        above, below = (
            {row.numbers[self.over] for row in rows if matches(row.settings, side)} for side in self.sides()
        )
        return sorted(above & below)

    def number(self, rows: Sequence[Row], values: Sequence[float]) -> float:
        """In units of `over`; infinite where they stay below everywhere."""
        places = self.places(rows)
        if len(places) < 2:
            raise ValueError(f"at least two places that both have are needed (got {len(places)})")
        first, second = (
            {place: statistics.median(self._values_at(place, side, rows, values)) for place in places}
            for side in self.sides()
        )
        return _reached([(place, math.log(first[place] / second[place])) for place in places], 0.0)

    def _values_at(
        self, place: float, side: Mapping[str, Any], rows: Sequence[Row], values: Sequence[float]
    ) -> list[float]:
        return [
            value
            for row, value in zip(rows, values, strict=True)
            if row.numbers[self.over] == place and matches(row.settings, side)
        ]


class RankCorrelation(Numbers):
    """Spearman's: 1 where a point that has more of one has more of the other, always. At least three points."""

    kind: Literal["rank_correlation"]
    over: str

    def formulas(self) -> Sequence[str]:
        """The other quantity."""
        return (self.over,)

    def number(self, rows: Sequence[Row], values: Sequence[float]) -> float:
        """-1 to 1."""
        if len(rows) < 3:
            raise ValueError(f"at least three points are needed (got {len(rows)})")
        return statistics.correlation(_ranks([row.numbers[self.over] for row in rows]), _ranks(values))


class Extreme(Numbers):
    """The least, median, mean or most of all points."""

    kind: Literal["least", "median", "mean", "most"]

    @property
    def extreme(self) -> Literal["least", "most"] | None:
        """The kind, where it is one."""
        return self.kind if self.kind in ("least", "most") else None

    def number(self, rows: Sequence[Row], values: Sequence[float]) -> float:  # noqa: ARG002 (others need them)
        """The extreme or mean of the points' values, in units of `of`."""
        return _EXTREMES[self.kind](values)


class Farthest(Numbers):
    """Each point by itself, in all that is expected: the number is that of the point which is farthest from it."""

    kind: Literal["farthest"]
    over: str | None = None
    """Another axis, for the figure."""

    def formulas(self) -> Sequence[str]:
        """For the figure alone."""
        return () if self.over is None else (self.over,)

    def counted(self, measured: Sequence[float], model: Sequence[float], expect: "Expectation") -> Sequence[int]:
        """That point alone: where it is as expected, all are."""
        modelled: Sequence[float | None] = model or [None] * len(measured)
        margins = [expect.margin(one, other) for one, other in zip(measured, modelled, strict=True)]
        return [margins.index(min(margins))]

    def number(self, rows: Sequence[Row], values: Sequence[float]) -> float:  # noqa: ARG002 (others need them)
        """Of that point, which is given alone."""
        (value,) = values
        return value


_EXTREMES: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "least": min,
    "median": statistics.median,
    "mean": statistics.fmean,
    "most": max,
}
AnyNumbers = Annotated[
    Slope | Linearity | Ratio | Spread | Order | First | Crossing | RankCorrelation | Extreme | Farthest,
    Field(discriminator="kind"),
]


class Expectation(_Part):
    """When a claim holds. All that are said must."""

    within: Share | None = Field(None, gt=0, lt=1)
    """At most so far from the model's number, relative to it: 10%."""
    difference: float | None = Field(None, gt=0)
    """At most so far from the model's number, in its own unit."""
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set or all(getattr(self, name) is None for name in self.model_fields_set):
            raise ValueError("says nothing; allowed: within, difference, at_least, at_most")
        return self

    @property
    def needs_model(self) -> bool:
        """Whether there must be a model's number."""
        return self.within is not None or self.difference is not None

    def margin(self, measured: float, model: float | None) -> float:
        """By how much a number may still be worse; below 0: it is not as expected. In shares of the model's number
        where `within` is said, else in its own unit. Raises ValueError where it needs a model's and there is none."""
        low, high = self._allowed(model)
        margin = min(measured - low, high - measured)
        return margin if self.within is None or not model else margin / abs(model)

    def holds(self, measured: Interval, model: Interval | None) -> bool | None:
        """True: whatever the numbers are within their bounds, it is as expected; False: whatever they are, it is not;
        None: the bounds do not decide. Raises ValueError where it needs a model's number and there is none."""
        # Both ends of what is allowed move up with the model's number.
        (least, always_at_most), (always_at_least, most) = (self._allowed(each) for each in model or (None, None))
        if always_at_least <= measured.low and measured.high <= always_at_most:
            return True
        return None if max(least, measured.low) <= min(most, measured.high) else False

    def _allowed(self, model: float | None) -> tuple[float, float]:
        """The least and the most that is as expected, where the model's number is this one; no number is where the
        least is the larger."""
        if self.needs_model and model is None:
            raise ValueError("`within` and `difference` need a `model`")
        at_least = -math.inf if self.at_least is None else self.at_least
        ends = [(at_least, math.inf if self.at_most is None else self.at_most)]
        if self.within is not None and model is not None:
            low, high = sorted((model * (1 - self.within), model * (1 + self.within)))
            ends.append((low, high))
        if self.difference is not None and model is not None:
            ends.append((model - self.difference, model + self.difference))
        return max(low for low, _ in ends), min(high for _, high in ends)


class Claim(_Part):
    """One statement about a sweep's points that a run can refute."""

    name: str = Field(min_length=1)
    feature: str = ""
    """Which of the testbed's features it checks, such as 1a: groups the table."""
    of: str = Field(min_length=1)
    """A formula over the numbers of a point."""
    model: str | None = None
    """A formula for what theory says of the same."""
    where: Mapping[str, Any] = Field(default_factory=dict)
    """Settings that its points have, by path; all points where nothing is said."""
    take: AnyNumbers
    expect: Expectation
    why: str = Field(min_length=1)
    """Why this tolerance and no other."""
    paper: PaperSays | None = None
    unit: str = ""
    """Of the number: s, s/worker; nothing for a ratio."""

    def missing(self, points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """What none of the points, by their settings, has: all that it looks at, or sides of what it compares."""
        there = [settings for settings in points if matches(settings, self.where)]
        wanted = self.take.sides() if there else [self.where]
        return [side for side in wanted if not any(matches(settings, side) for settings in there)]

    def can_be_taken(self, points: Sequence[Mapping[str, Any]]) -> bool:
        """Whether there are points of it, and of two of those that it compares at least."""
        sides, missing = self.take.sides(), self.missing(points)
        return missing != [self.where] and (not sides or len(sides) - len(missing) >= 2)

    @model_validator(mode="after")
    def _has_what_it_compares_with(self) -> Self:
        if self.expect.needs_model and self.model is None:
            raise ValueError("expect: `within` and `difference` compare with a `model`; write its formula")
        return self

    @model_validator(mode="after")
    def _leaves_no_side_unchecked(self) -> Self:
        extreme = self.take.extreme
        if extreme is not None:
            far = "at_most" if extreme == "least" else "at_least"
            for name in (far, "within", "difference"):
                if getattr(self.expect, name) is not None:
                    raise ValueError(
                        f"expect: `{name}` of the {extreme} says nothing of the others; take `farthest`, which looks "
                        "at each point, or make a claim of each"
                    )
        return self


def _reached(points: Sequence[tuple[float, float]], level: float) -> float:
    """Where the level is first reached, of places in order and what is there, by a straight line from the place before;
    infinite where it never is."""
    for index, (at, value) in enumerate(points):
        if value >= level:
            if index == 0:
                return at
            before_at, before = points[index - 1]
            return before_at + (at - before_at) * (level - before) / (value - before)
    return math.inf


def _ranks(values: Sequence[float]) -> list[float]:
    """From the least on; those that are alike share the mean of theirs."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


def matches(settings: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a point has these settings: `collective: ring` also where the spec has `{kind: ring, ...}`, a list where
    it has one of them, or is that list."""
    return all(path in settings and _alike(settings[path], value) for path, value in wanted.items())


def _alike(setting: Any, wanted: Any) -> bool:
    if isinstance(wanted, list | tuple):
        return setting == wanted or any(_alike(setting, one) for one in wanted)
    if isinstance(setting, Mapping) and isinstance(wanted, Mapping):
        return all(key in setting and setting[key] == value for key, value in wanted.items())
    if isinstance(setting, Mapping) and isinstance(wanted, str):
        return bool(setting.get("kind") == wanted)
    return bool(setting == wanted)


def parse_claims(data: object) -> tuple[Claim, ...]:
    """The `claims` of a spec. Raises SpecError that names the field of each that cannot be right."""
    if not isinstance(data, list):
        raise SpecError(f"claims: a list of claims (got {data!r})")
    found, errors = [], []
    for number, each in enumerate(data):
        try:
            found.append(Claim.model_validate(each))
        except ValidationError as error:
            errors += [
                f"claims.{number}.{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()
            ]
    names = [claim.name for claim in found]
    errors += [
        f"claims: {name!r} is there twice; names tell claims apart" for name in {*names} if names.count(name) > 1
    ]
    if errors:
        raise SpecError("\n".join(errors))
    return tuple(found)
