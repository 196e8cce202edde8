"""A log-normally distributed delay on top of the computing itself: mostly small, now and then large."""

import math
from random import Random

from pydantic import Field

from testbed.experiment.slowdowns.base import MAX_FACTOR, SLOWDOWNS, Factor, Slowdown


@SLOWDOWNS.register
class Lognormal(Slowdown):
    """Drawn anew for each iteration."""

    mean: Factor = 1.5
    """Of the factor."""
    deviation: float = Field(0.5, ge=0, le=MAX_FACTOR)
    """Standard deviation of the factor."""

    def draw(self, random: Random) -> float:
        """1 and a delay with the mean and the deviation that make the factor's."""
        excess = self.mean - 1
        if excess == 0:
            return 1.0
        variance = math.log1p((self.deviation / excess) ** 2)
        return min(MAX_FACTOR, 1 + random.lognormvariate(math.log(excess) - variance / 2, math.sqrt(variance)))
