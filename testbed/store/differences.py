"""Whether two settings differ by more than noise: ratios of means with intervals. Pure.

Runs of one setting differ from each other (caches, what else the machine does, where a thread began), and by more than
the iterations within a run say: these follow one another and share whatever the run has. So the unit is the run. The
standard error of the logarithm of the ratio is that of resampling runs with replacement (Efron and Tibshirani, An
Introduction to the Bootstrap, 1993, chapter 6: for a mean it has a closed form), in pairs where runs were made in
turns, so that drift is in both and falls out. The interval is that error times Student's t, since the plain percentiles
of five resampled runs hold 82 to 88 % instead of 95 (Hesterberg, What Teachers Should Know About the Bootstrap, 2015,
section 3).

With one run of a setting only the iterations within it can be resampled: in blocks, since neighbours are alike (Kunsch
1989; the blocks are as long as the correlation lasts). What differs from run to run is then unknown, and that is said.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

CONFIDENCE: Final = 0.95
_RESAMPLES: Final = 4000
_BLOCKS_AT_ONCE: Final = 1 << 20
"""Drawn at once, of as many resamples as have so many."""
_SEED: Final = 20_200_617
"""The same runs give the same interval."""
_ROUNDING: Final = 1e-9
"""Two numbers this close are the same one."""
_MIN_BLOCKS: Final = 4
"""Fewer independent parts of a run than this say nothing of its mean."""

Basis = Literal["pairs", "runs", "one run"]


class RunValues(NamedTuple):
    """What one run says of the quantity that is compared."""

    started_at: str
    """ISO 8601; the order in which runs were made."""
    values: Sequence[float]
    """One for each measured iteration, in order; or the run's one number. All above 0."""

    @property
    def mean(self) -> float:
        """Of the run."""
        return math.fsum(self.values) / len(self.values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The second setting's mean over the first one's."""

    ratio: float
    low: float | None
    """The ratio's interval of confidence; None where the runs are too few to say."""
    high: float | None
    basis: Basis
    """What was resampled: `one run` knows of no noise between runs."""
    num_first: int
    num_second: int

    @property
    def distinguishable(self) -> bool:
        """Whether the difference is more than noise: the interval has not 1 in it, and knows the noise between runs."""
        if self.low is None or self.high is None or self.basis == "one run":
            return False
        return self.low > 1 + _ROUNDING or self.high < 1 - _ROUNDING


def difference(first: Sequence[RunValues], second: Sequence[RunValues]) -> Difference:
    """Compare two settings by their runs. Raises ValueError where one has none, or a value is not above 0."""
    if not first or not second:
        raise ValueError("a setting without a run cannot be compared")
    if any(value <= 0 or not math.isfinite(value) for run in (*first, *second) for value in run.values):
        raise ValueError("a ratio needs numbers above 0")
    logs = [np.log([run.mean for run in runs]) for runs in (first, second)]
    centre = float(logs[1].mean() - logs[0].mean())
    basis: Basis
    if min(len(first), len(second)) == 1:
        basis = "one run"
        errors = [_error_within(run_values) for run_values in _single(first, second)]
    elif _in_turns(first, second):
        basis = "pairs"
        errors = [_error_between(logs[1] - logs[0])]
    else:
        basis = "runs"
        errors = [_error_between(each) for each in logs]
    half = _half_width(errors)
    return Difference(
        ratio=math.exp(centre),
        low=None if half is None else math.exp(centre - half),
        high=None if half is None else math.exp(centre + half),
        basis=basis,
        num_first=len(first),
        num_second=len(second),
    )


class _Error(NamedTuple):
    """A standard error and how much it can be trusted."""

    standard: float
    degrees_of_freedom: float


def _single(first: Sequence[RunValues], second: Sequence[RunValues]) -> list[np.ndarray]:
    """The series within runs: of a setting with several runs all of them, one after the other."""
    return [np.concatenate([np.asarray(run.values, dtype=float) for run in runs]) for runs in (first, second)]


def _in_turns(first: Sequence[RunValues], second: Sequence[RunValues]) -> bool:
    """Whether the i-th run of one and the i-th of the other were made next to each other."""
    if len(first) != len(second):
        return False
    made = sorted([(run.started_at, 0) for run in first] + [(run.started_at, 1) for run in second])
    return all(made[index][1] != made[index + 1][1] for index in range(0, len(made), 2))


def _error_between(values: np.ndarray) -> _Error:
    """Of the mean of runs' logarithms: what resampled means would vary by after infinitely many resamples, and the
    factor n / (n - 1) that their variance lacks."""
    return _Error(float(values.std(ddof=1)) / math.sqrt(len(values)), len(values) - 1)


def _error_within(values: np.ndarray) -> _Error | None:
    """Of the logarithm of a series' mean, by circular blocks (Politis and Romano 1992); None where it is too short.
    Every series is resampled from the same seed, so that which one is called the first makes no difference."""
    random = np.random.default_rng(_SEED)
    count = len(values)
    length = block_length(values)
    num_blocks = count // length
    if num_blocks < _MIN_BLOCKS:
        return None
    lengths = np.full(-(-count // length), length)
    lengths[-1] -= lengths.sum() - count
    # A block's sum is a difference of two of these, so that long series need no more memory than short ones.
    until = np.concatenate([[0.0], np.cumsum(np.concatenate([values, values]))])
    means = np.empty(_RESAMPLES)
    num_at_once = max(1, _BLOCKS_AT_ONCE // len(lengths))
    for begin in range(0, _RESAMPLES, num_at_once):
        drawn = means[begin : begin + num_at_once]
        starts = random.integers(0, count, size=(len(drawn), len(lengths)))
        drawn[:] = (until[starts + lengths] - until[starts]).sum(axis=1) / count
    means = np.log(means)
    return _Error(float(means.std()) * math.sqrt(num_blocks / (num_blocks - 1)), num_blocks - 1)


def block_length(values: np.ndarray) -> int:
    """For how many elements a series is like itself: twice the integrated correlation time, summed as long as it is
    positive (Geyer's initial positive sequence, 1992), and at least the cube root of its length."""
    count = len(values)
    least = max(1, round(math.cbrt(count)))
    centred = values - values.mean()
    variance = float(centred @ centred) / count
    if count < 4 or variance <= 0:
        return least
    time = 0.5
    for lag in range(1, count // 2):
        correlation = float(centred[:-lag] @ centred[lag:]) / count / variance
        if correlation <= 0:
            break
        time += correlation
    return max(least, math.ceil(2 * time))


def _half_width(errors: Sequence[_Error | None]) -> float | None:
    """Half of the interval's width, by Student's t with Welch's degrees of freedom; None where an error is unknown."""
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return None
    variance = sum(error.standard**2 for error in known)
    if variance == 0:
        return 0.0
    freedom = variance**2 / sum(error.standard**4 / error.degrees_of_freedom for error in known)
    from scipy.special import stdtrit  # half a second of imports that few commands need

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(variance)
