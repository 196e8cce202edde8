"""Every factor between two bounds is as likely as any other."""

from random import Random
from typing import Self

from pydantic import model_validator

from testbed.experiment.slowdowns.base import SLOWDOWNS, Factor, Slowdown


@SLOWDOWNS.register
class Uniform(Slowdown):
    """Drawn anew for each iteration."""

    low: Factor = 1.0
    high: Factor = 2.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low ({self.low:g}) may not exceed high ({self.high:g})")
        return self

    def draw(self, random: Random) -> float:
        """Between low and high."""
        return random.uniform(self.low, self.high)
