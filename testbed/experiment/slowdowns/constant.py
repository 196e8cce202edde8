"""Always the same factor: a slower processor."""

from random import Random
from typing import ClassVar

from testbed.experiment.slowdowns.base import SLOWDOWNS, Factor, Slowdown


@SLOWDOWNS.register
class Constant(Slowdown):
    """`slowdown: 2` for short."""

    varies: ClassVar[bool] = False

    factor: Factor = 2.0

    def draw(self, random: Random) -> float:  # noqa: ARG002
        """The factor."""
        return self.factor
